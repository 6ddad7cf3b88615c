// Parses the input as a skew file. An accepted skew gives finite sketches and serialises to the same bytes. Because the
// checksum would reject nearly every input, the input is parsed a second time with its checksum corrected.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "base/check.h"
#include "kv/skew.h"

namespace {

using namespace infinigen;

void Read(std::span<const std::byte> file) {
  const Result<Skew> skew = ParseSkew(file, "f.skew");
  if (!skew.ok()) {
    CHECK(skew.error().message.find("f.skew") != std::string::npos);
    return;
  }
  const SkewShape& shape = skew->shape();
  CHECK(shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0);
  const int64_t dims = SketchDims(shape.head_dim, 0.3);
  for (const ProjectionKind kind : {ProjectionKind::kRotation, ProjectionKind::kPair}) {
    const SketchMatrices basis = skew->Basis(LayerId(shape.layers - 1), kind, dims);
    CHECK(static_cast<int64_t>(basis.query.size()) == shape.kv_heads * shape.head_dim * dims);
    CHECK(!std::isnan(skew->HeldEnergy(LayerId(0), kind, dims)));
  }
  const std::string again = SerialiseSkew(*skew);
  CHECK(again.size() == file.size() && std::memcmp(again.data(), file.data(), again.size()) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string file(reinterpret_cast<const char*>(data), size);
  Read(std::as_bytes(std::span(file)));
  if (size < 8) return 0;
  const uint64_t checksum = SkewChecksum(std::as_bytes(std::span(file)).first(size - 8));
  std::memcpy(file.data() + size - 8, &checksum, 8);
  Read(std::as_bytes(std::span(file)));
  return 0;
}
