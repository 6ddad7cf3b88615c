// Names of models on a hub: "hf:ORG/NAME[@REVISION][:FILE or quantisation]". All parts come from a user, and file names
// also from a server, so each is checked here before it becomes part of a path or of a URL. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace infinigen {

struct HubName {
  std::string org, name;
  std::string revision = "main";  // branch, tag or commit
  std::string wanted;             // a file of the repository, or a quantisation; empty: the default choice

  std::string repository() const { return org + "/" + name; }
  // Name of the repository's directory in a cache.
  std::string directory() const { return "models--" + org + "--" + name; }
  // The whole name, as users write it.
  std::string Text() const;
};

// True for names with the prefix "hf:". Every other name is a path.
bool IsHubName(std::string_view text);
// Precondition: IsHubName(text). Errors quote the text.
Result<HubName> ParseHubName(std::string_view text);
// From the directory's name in a cache: "models--ORG--NAME". False if it is not one.
bool ParseRepositoryDirectory(std::string_view directory, HubName* name);

// A relative path that stays below the directory it is appended to: no empty part, no "." or "..", no backslash, no
// control character, parts of at most 255 bytes, at most 1,024 bytes in all.
bool IsSafePath(std::string_view path);
// Exactly `digits` lower-case hexadecimal digits: 40 for a commit or a git blob, 64 for SHA-256.
bool IsHex(std::string_view text, size_t digits);

inline std::string_view BaseNameOf(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace infinigen
