#include "hub/name.h"

#include <algorithm>

#include "base/utf8.h"

namespace infinigen {
namespace {

constexpr std::string_view kPrefix = "hf:";
constexpr std::string_view kRepositoryPrefix = "models--";
constexpr size_t kMaxNameBytes = 96;  // the hub's own limit for an organisation and for a name
constexpr size_t kMaxPartBytes = 255;
constexpr size_t kMaxPathBytes = 1024;

bool IsWordByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

// "--" separates the parts of a cache directory's name, so the hub allows it in neither part.
bool IsRepositoryPart(std::string_view part) {
  return !part.empty() && part.size() <= kMaxNameBytes && part[0] != '.' && part[0] != '-' &&
         part.find("--") == part.npos && part.find("..") == part.npos &&
         std::all_of(part.begin(), part.end(), IsWordByte);
}

// Branches may have slashes ("refs/pr/1").
bool IsRevision(std::string_view text) {
  return IsSafePath(text) && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), [](char c) { return IsWordByte(c) || c == '/'; });
}

}  // namespace

bool IsSafePath(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes) return false;
  for (const char c : path)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxPartBytes) return false;
    begin = end + 1;
  }
  return true;
}

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string HubName::Text() const {
  return fmt::format("hf:{}/{}{}{}{}{}", org, name, revision == "main" ? "" : "@", revision == "main" ? "" : revision,
                     wanted.empty() ? "" : ":", wanted);
}

bool IsHubName(std::string_view text) { return text.substr(0, kPrefix.size()) == kPrefix; }

Result<HubName> ParseHubName(std::string_view text) {
  CHECK(IsHubName(text));
  const auto refuse = [&](std::string_view why) {
    return Invalid("{}: {}; write hf:ORG/NAME, hf:ORG/NAME:Q4_K_M or hf:ORG/NAME:FILE.gguf", Quoted(text), why);
  };
  std::string_view rest = text.substr(kPrefix.size());
  HubName name;
  if (const size_t colon = rest.find(':'); colon != rest.npos) {
    name.wanted = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
    if (!IsSafePath(name.wanted)) return refuse("what follows ':' is not a file of a repository or a quantisation");
  }
  if (const size_t at = rest.find('@'); at != rest.npos) {
    name.revision = rest.substr(at + 1);
    rest = rest.substr(0, at);
    if (!IsRevision(name.revision)) return refuse("what follows '@' is not a branch, tag or commit");
  }
  const size_t slash = rest.find('/');
  if (slash == rest.npos) return refuse("the organisation is missing");
  name.org = rest.substr(0, slash);
  name.name = rest.substr(slash + 1);
  if (!IsRepositoryPart(name.org) || !IsRepositoryPart(name.name)) return refuse("not the name of a repository");
  return name;
}

bool ParseRepositoryDirectory(std::string_view directory, HubName* name) {
  if (directory.substr(0, kRepositoryPrefix.size()) != kRepositoryPrefix) return false;
  const std::string_view rest = directory.substr(kRepositoryPrefix.size());
  const size_t middle = rest.find("--");
  if (middle == rest.npos) return false;
  *name = {.org = std::string(rest.substr(0, middle)), .name = std::string(rest.substr(middle + 2))};
  return IsRepositoryPart(name->org) && IsRepositoryPart(name->name);
}

}  // namespace infinigen
