#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/mmap_file.h"
#include "base/new_file.h"
#include "base/size.h"
#include "kv/skew.h"

namespace infinigen {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's numbers are little-endian");

constexpr std::string_view kMagic = "IGSKEW\r\n";
constexpr size_t kChecksumBytes = 8;
constexpr size_t kMaxNameBytes = 255;
// Far beyond any model, and small enough that no product below overflows 64 bits.
constexpr uint64_t kMaxPositions = uint64_t{1} << 40;
constexpr uint32_t kMaxLayers = 4096, kMaxKvHeads = 4096, kMaxFileHeadDim = 512;

struct Header {
  uint32_t version = kSkewVersion;
  uint32_t layers = 0, kv_heads = 0, head_dim = 0;
  uint32_t tokens = 0;
  uint32_t name_bytes = 0;
  uint64_t positions = 0;
  uint64_t model_high = 0, model_low = 0;
};
static_assert(sizeof(Header) == 48, "the header has no padding");
constexpr size_t kFixedBytes = kMagic.size() + sizeof(Header);

uint64_t HeadBytes(uint64_t head_dim) {
  return (3 * head_dim + kValueColumns) * head_dim * sizeof(F16) + 7 * head_dim * sizeof(float);
}

// Calls f(name, numbers) for every array of a head, in the order of the file.
template <class SomeHead, class F>
void ForEachArray(SomeHead& head, F&& f) {
  f("rotation", head.rotation);
  f("pair query", head.pair_query);
  f("pair key", head.pair_key);
  f("key mean", head.key_mean);
  f("rotation RMS", head.rotation_rms);
  f("pair query scale", head.pair_query_scale);
  f("pair key scale", head.pair_key_scale);
  f("rotation energy", head.rotation_energy);
  f("pair energy", head.pair_energy);
  f("value columns", head.value);
  f("value mean", head.value_mean);
}

Status CheckSizes(const Header& header, uint64_t file_bytes, const std::string& path) {
  const auto check = [&](const char* field, uint32_t value, uint32_t most) -> Status {
    if (value >= 1 && value <= most) return Ok();
    return Invalid("{}: header: {} is {}, expected 1 to {}", path, field, value, most);
  };
  RETURN_IF_ERROR(check("layers", header.layers, kMaxLayers));
  RETURN_IF_ERROR(check("kv_heads", header.kv_heads, kMaxKvHeads));
  RETURN_IF_ERROR(check("head_dim", header.head_dim, kMaxFileHeadDim));
  if (header.name_bytes > kMaxNameBytes)
    return Invalid("{}: header: the text's name has {} bytes, at most {} are accepted", path, header.name_bytes,
                   kMaxNameBytes);
  if (header.positions > kMaxPositions)
    return Invalid("{}: header: {} positions, at most {} are accepted", path, header.positions, kMaxPositions);
  const std::optional<uint64_t> payload =
      CheckedMul(uint64_t{header.layers} * header.kv_heads, HeadBytes(header.head_dim));
  const std::optional<uint64_t> wanted =
      payload ? CheckedAdd(*payload, kFixedBytes + header.name_bytes + kChecksumBytes) : std::nullopt;
  if (!wanted) return Invalid("{}: header: {} layers of {} heads overflow", path, header.layers, header.kv_heads);
  if (file_bytes < *wanted)
    return Invalid("{}: {} bytes long, but its header implies {} (truncated file?)", path, file_bytes, *wanted);
  if (file_bytes > *wanted) return Invalid("{}: {} extra bytes after the end of the data", path, file_bytes - *wanted);
  return Ok();
}

Result<Header> ParseHeader(std::span<const std::byte> file, const std::string& path) {
  if (file.size() < kFixedBytes + kChecksumBytes)
    return Invalid("{}: {} bytes long, too short for a skew file", path, file.size());
  if (std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0)
    return Invalid("{}: not a skew file (wrong first bytes)", path);
  Header header;
  std::memcpy(&header, file.data() + kMagic.size(), sizeof(header));
  if (header.version != kSkewVersion)
    return Unsupported(
        "{}: format version {}, this program reads version {} ({})", path, header.version, kSkewVersion,
        header.version < kSkewVersion ? "the file is outdated; calibrate again" : "the file is from a newer program");
  RETURN_IF_ERROR(CheckSizes(header, file.size(), path));
  return header;
}

template <class T>
bool AllFinite(const std::vector<T>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](T number) { return std::isfinite(ToFloat(number)); });
}

}  // namespace

uint64_t SkewChecksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string SerialiseSkew(const Skew& skew) {
  const SkewShape& shape = skew.shape();
  const SkewOrigin& origin = skew.origin();
  const std::string_view name = std::string_view(origin.text).substr(0, kMaxNameBytes);
  const Header header{.layers = static_cast<uint32_t>(shape.layers),
                      .kv_heads = static_cast<uint32_t>(shape.kv_heads),
                      .head_dim = static_cast<uint32_t>(shape.head_dim),
                      .tokens = static_cast<uint32_t>(std::min<int64_t>(origin.tokens, UINT32_MAX)),
                      .name_bytes = static_cast<uint32_t>(name.size()),
                      .positions = static_cast<uint64_t>(origin.positions),
                      .model_high = origin.model.high,
                      .model_low = origin.model.low};
  std::string file(kMagic);
  file.append(reinterpret_cast<const char*>(&header), sizeof(header));
  file.append(name);
  for (LayerId layer : IdRange<LayerId>(shape.layers))
    for (KvHead head : IdRange<KvHead>(shape.kv_heads))
      ForEachArray(skew.head(layer, head), [&](const char*, const auto& numbers) {
        file.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0]));
      });
  const uint64_t checksum = SkewChecksum(std::as_bytes(std::span(file)));
  file.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return file;
}

Result<Skew> ParseSkew(std::span<const std::byte> file, const std::string& path) {
  ASSIGN_OR_RETURN(const Header header, ParseHeader(file, path));
  uint64_t checksum = 0;
  std::memcpy(&checksum, file.data() + file.size() - kChecksumBytes, kChecksumBytes);
  if (checksum != SkewChecksum(file.first(file.size() - kChecksumBytes)))
    return Invalid("{}: the checksum does not match: the file is damaged", path);
  const char* name = reinterpret_cast<const char*>(file.data()) + kFixedBytes;
  Skew skew({.layers = header.layers, .kv_heads = header.kv_heads, .head_dim = header.head_dim},
            {.model = {header.model_high, header.model_low},
             .tokens = header.tokens,
             .positions = static_cast<int64_t>(header.positions),
             .text = {name, header.name_bytes}});
  size_t at = kFixedBytes + header.name_bytes;
  for (LayerId layer : IdRange<LayerId>(header.layers)) {
    for (KvHead head : IdRange<KvHead>(header.kv_heads)) {
      const char* broken = nullptr;
      ForEachArray(skew.mutable_head(layer, head), [&](const char* part, auto& numbers) {
        const size_t bytes = numbers.size() * sizeof(numbers[0]);
        CHECK(bytes <= file.size() - at);
        std::memcpy(numbers.data(), file.data() + at, bytes);
        at += bytes;
        if (broken == nullptr && !AllFinite(numbers)) broken = part;
      });
      if (broken != nullptr)
        return Invalid("{}: layer {}, KV head {}, {}: a number is not finite", path, layer.value(), head.value(),
                       broken);
    }
  }
  return skew;
}

Result<Skew> ReadSkew(const std::string& path, const ModelIdentity& model, const SkewShape& shape) {
  ASSIGN_OR_RETURN(const MmapFile file, MmapFile::Open(path));
  ASSIGN_OR_RETURN(Skew skew, ParseSkew(file.bytes(), path));
  if (skew.origin().model != model)
    return Invalid("{}: calibrated for another model, or for an earlier version of this one (identity {}, expected {})",
                   path, skew.origin().model.Hex(), model.Hex());
  if (skew.shape() != shape)
    return Invalid("{}: made for {} layers, {} KV heads, head_dim {}; the model has {}, {}, {}", path,
                   skew.shape().layers, skew.shape().kv_heads, skew.shape().head_dim, shape.layers, shape.kv_heads,
                   shape.head_dim);
  return skew;
}

bool IsOutdatedSkew(const std::string& path) {
  const Result<MmapFile> file = MmapFile::Open(path);
  if (!file.ok() || file->bytes().size() < kFixedBytes) return false;
  const std::byte* bytes = file->bytes().data();
  Header header;
  std::memcpy(&header, bytes + kMagic.size(), sizeof(header));
  return std::memcmp(bytes, kMagic.data(), kMagic.size()) == 0 && header.version >= 1 && header.version < kSkewVersion;
}

Status WriteSkew(const Skew& skew, const std::string& path) {
  NewFile file(path);
  RETURN_IF_ERROR(file.Begin());
  RETURN_IF_ERROR(file.Append(SerialiseSkew(skew)));
  return file.Finish();
}

}  // namespace infinigen
