// Models by name: "hf:ORG/NAME" becomes the path of a model on this machine, taken from a cache or downloaded
// (docs/hub.md). runtime/model.cc calls this for every command and for the library. Any thread; blocks while it
// downloads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/cache.h"
#include "hub/download.h"
#include "hub/name.h"

namespace infinigen {

// What the environment says about hubs.
struct HubEnvironment {
  HubCache foreign{""};  // the hub's own cache
  HubCache own{""};      // ours
  HubServer server;
  Status token = Ok();  // why the token that was given is unusable
  bool offline = false;
};
// Refuses a malformed endpoint or time-out.
Result<HubEnvironment> ReadHubEnvironment(const ReadVariable& variable = VariableOfProcess);

// Refuses a model by its config.json, which is in `directory`. May be empty.
using CheckHubConfig = std::function<Status(const std::string& directory)>;

// The path to open: a directory, or a GGUF file (of a split model, its first part). `check` is called before the
// weights of a directory are downloaded.
Result<std::string> ResolveHubModel(const HubName& name, const HubEnvironment& environment, const HubHooks& hooks,
                                    const CheckHubConfig& check = {});

}  // namespace infinigen
