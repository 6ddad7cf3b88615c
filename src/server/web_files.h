// Files inside the binary: the web page and the description of the API. Made by cmake/embed.cmake from src/server.
#pragma once

#include <span>
#include <string_view>

namespace infinigen {

struct WebFile {
  std::string_view name;  // "index.html"
  std::string_view bytes;
};
std::span<const WebFile> WebFiles();

// By the ending of its name.
std::string_view ContentType(std::string_view name);

}  // namespace infinigen
