// The options of the KV cache as text: one table of names, values and help, read by the command line (--kv-cap 5%), the
// library (set "kv-cap" to "5%") and whatever else takes options as words. A value is checked where it is set; what
// values contradict together is CheckKvRequest's.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/kv_request.h"

namespace infinigen {

struct KvOption {
  std::string name;  // "kv-cap"; the flag is --kv-cap
  std::string meta;  // what help calls the value: "SHARE"
  std::string help;
  // Sets the value; returns what is wrong with it, or nothing. On failure the request is unchanged.
  std::string (*set)(const std::string& value, KvRequest* request);
};

// All but the preset, in the order in which help lists them.
std::span<const KvOption> KvOptions();

// "full", or where `list` "full,infinigen". Returns what is wrong with the text, or nothing.
std::string ParsePresets(std::string_view text, bool list, std::vector<const KvPreset*>* presets);
// What help says of the preset.
std::string PresetHelp();

// 0.05 or 5%; what is wrong with the text, or nothing.
std::string ParseShare(std::string_view text, double* share);

}  // namespace infinigen
