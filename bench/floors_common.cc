// Shared by bench_floors and bench_selection: random memory, the streaming read that gives the floor, lists in flags.
#include <cstdlib>

#include "floors.h"
#include "tensor/random_blocks.h"

namespace infinigen::bench {

Buffer RandomBf16(Allocator& memory, size_t bytes) {
  Result<Buffer> buffer = Buffer::Make(memory, bytes);
  CHECK(buffer.ok());
  auto* values = reinterpret_cast<BF16*>(buffer->data());
  uint32_t state = 12345;
  for (size_t i = 0; i < bytes / sizeof(BF16); ++i) {
    state = state * 1664525u + 1013904223u;
    values[i] = ToBF16(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f);
  }
  return std::move(*buffer);
}

Buffer RandomWeightBytes(Allocator& memory, WeightType type, int64_t numbers) {
  const WeightFormat& format = FormatOf(type);
  const auto bytes = static_cast<size_t>(numbers / format.block_numbers * format.block_bytes);
  if (type == WeightType::kBF16) return RandomBf16(memory, bytes);
  CHECK(!IsPlain(type));
  Result<Buffer> buffer = Buffer::Make(memory, bytes);
  CHECK(buffer.ok());
  std::byte* const data = buffer->data();
  uint64_t state = 12345;
  for (size_t i = 0; i < bytes; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = static_cast<std::byte>(state >> 56);
  }
  for (size_t at = 0; at < bytes; at += static_cast<size_t>(format.block_bytes)) SetBlockScales(type, 1.0f, data + at);
  return std::move(*buffer);
}

void ReadAll(ThreadPool& pool, const Buffer& buffer) {
  constexpr size_t kTask = size_t{1} << 20;
  std::vector<uint64_t> sums(static_cast<size_t>(pool.threads()) * 8);
  pool.Run(static_cast<int64_t>(buffer.bytes() / kTask), [&](int64_t task, int thread) {
    const auto* words = reinterpret_cast<const uint64_t*>(buffer.data() + static_cast<size_t>(task) * kTask);
    uint64_t lanes[16] = {};
    for (size_t i = 0; i < kTask / 8; i += 16)
      for (size_t lane = 0; lane < 16; ++lane) lanes[lane] ^= words[i + lane];
    for (const uint64_t lane : lanes) sums[static_cast<size_t>(thread) * 8] ^= lane;
  });
  volatile uint64_t sink = sums[0];
  (void)sink;
}

std::vector<int64_t> ParseList(std::string_view text) {
  std::vector<int64_t> values;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    values.push_back(std::strtoll(std::string(text.substr(0, comma)).c_str(), nullptr, 10));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return values;
}

}  // namespace infinigen::bench
