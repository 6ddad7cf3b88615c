// Every option of an engine as text, by the names of the command line's flags: what the public API and its C form take.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtime/device.h"
#include "runtime/kv_request.h"

namespace infinigen {

struct RunOptions {
  DeviceRequest device;
  KvRequest kv;
  int64_t context = 0;   // 0: what the model was made for, or less where memory is short
  int64_t batch = 0;     // 0: as many as are useful and fit
  int64_t queue = 1024;  // requests that may wait beyond those that run

  Status Set(std::string_view name, const std::string& value);
};

struct OptionHelp {
  std::string name, value, help;
};
std::vector<OptionHelp> RunOptionHelp();

}  // namespace infinigen
