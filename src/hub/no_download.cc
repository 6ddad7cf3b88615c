// Downloads in a build without them (INFINIGEN_DOWNLOADS off): models of a hub are found in caches, and others refused.
#include "hub/download.h"

namespace infinigen {

Result<std::string> DownloadText(const HubServer&, const std::string&, const std::string& what, size_t, const HubHooks&,
                                 bool* unreachable) {
  *unreachable = true;  // an older copy in a cache will do
  return Unsupported(
      "{}: not in a cache of this machine, and this build cannot download; fetch it with `hf download {}` or "
      "`infinigen generate -m hf:{}`",
      what, what, what);
}

Status DownloadBlob(const HubServer&, const std::string&, const std::string& what, const HubFile&, const std::string&,
                    const HubHooks&, const std::function<void(uint64_t)>&) {
  return Unsupported("{}: this build cannot download", what);
}

uint64_t PartialBytes(const std::string&) { return 0; }

}  // namespace infinigen
