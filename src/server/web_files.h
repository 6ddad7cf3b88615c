// Files embedded in the binary: the web page and openapi.json. cmake/embed.cmake generates them from src/server.
#pragma once

#include <span>
#include <string_view>

namespace infinigen {

struct WebFile {
  std::string_view name;  // "index.html"
  std::string_view bytes;
};
std::span<const WebFile> WebFiles();

// The MIME type for a file name's extension.
std::string_view ContentType(std::string_view name);

}  // namespace infinigen
