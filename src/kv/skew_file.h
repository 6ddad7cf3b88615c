// The file of a skew: format and rules in docs/skew.md. Every size is checked against the bytes at hand before it is
// used, and what does not belong is refused with file, place and reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "kv/skew.h"

namespace infinigen {

inline constexpr uint32_t kSkewVersion = 1;

// The whole file as bytes. The text's name is cut to 255 bytes.
std::string SerialiseSkew(const Skew& skew);

// `path` is used in messages only.
Result<Skew> ParseSkew(std::span<const std::byte> file, const std::string& path);

// The last 8 bytes of a file are this of all before them.
uint64_t SkewChecksum(std::span<const std::byte> bytes);

// Reads the file and refuses one that belongs to another model than `model`, or to another shape.
Result<Skew> ReadSkew(const std::string& path, const ModelIdentity& model, const SkewShape& shape);

// Whole or not at all: written beside `path` under another name, then renamed.
Status WriteSkew(const Skew& skew, const std::string& path);

}  // namespace infinigen
