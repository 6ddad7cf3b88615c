// Helpers for tests of selection: random rules, a call of any select operation with its outcome, and comparisons.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include "backend/backend.h"
#include "backend/operands.h"

namespace infinigen {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Memory of a backend, initialised to bytes of 0xff.
template <class B>
class DeviceBytes {
 public:
  DeviceBytes(B& backend, size_t bytes) : backend_(backend), bytes_(bytes) {
    Result<Buffer> buffer = Buffer::Make(backend.compute_memory(), bytes + 1);
    CHECK(buffer.ok());
    buffer_ = std::move(*buffer);
    const std::vector<std::byte> poison(bytes, std::byte{0xff});
    backend.Upload(Queue::kCompute, poison.data(), bytes, buffer_.data());
  }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(buffer_.data());
  }
  template <class T>
  void Put(const std::vector<T>& values) {
    CHECK(values.size() * sizeof(T) <= bytes_);
    backend_.Upload(Queue::kCompute, values.data(), values.size() * sizeof(T), buffer_.data());
  }
  template <class T>
  std::vector<T> Get() const {
    std::vector<T> values(bytes_ / sizeof(T));
    backend_.Synchronize(backend_.Download(Queue::kCompute, buffer_.data(), bytes_, values.data()));
    return values;
  }

 private:
  B& backend_;
  size_t bytes_;
  Buffer buffer_;
};

// The sketches of one layer in memory of a backend; there are gaps between heads and slots.
template <class B>
class TestSketches {
 public:
  TestSketches(B& backend, const SketchLayout& layout, int64_t slots, int64_t rows)
      : layout_(layout),
        head_stride_(layout.head_bytes(rows) + 128),
        slot_stride_(head_stride_ * static_cast<size_t>(layout.kv_heads) + 64),
        bytes_(backend, slot_stride_ * static_cast<size_t>(slots)) {}
  LayerSketches view() const { return {layout_, bytes_.template as<std::byte>(), head_stride_, slot_stride_}; }
  std::vector<std::byte> Get() const { return bytes_.template Get<std::byte>(); }
  void Put(const std::vector<std::byte>& bytes) { bytes_.Put(bytes); }

 private:
  SketchLayout layout_;
  size_t head_stride_, slot_stride_;
  DeviceBytes<B> bytes_;
};

struct Batch {
  std::vector<int32_t> slots, rows;
  int64_t count() const { return std::ssize(rows); }
  int64_t longest() const { return *std::max_element(rows.begin(), rows.end()) + 1; }
};

struct Outcome {
  std::vector<std::vector<int32_t>> rows;  // [token · head]
  std::vector<SelectionTotals> totals;     // [slots]
};

// Runs `select(batch, call, selection)` on a backend and reads the outcome back.
template <class B, class Run>
Outcome RunSelect(B& backend, const Batch& batch, const std::vector<SelectRule>& rules, int64_t kv_heads,
                  SelectCall call, Run&& select) {
  const int64_t capacity = batch.longest();
  const size_t lists = static_cast<size_t>(batch.count() * kv_heads);
  DeviceBytes<B> rows(backend, lists * static_cast<size_t>(capacity) * 4), counts(backend, lists * 4);
  DeviceBytes<B> drules(backend, rules.size() * sizeof(SelectRule));
  DeviceBytes<B> totals(backend, rules.size() * sizeof(SelectionTotals));
  drules.Put(rules);
  totals.Put(std::vector<SelectionTotals>(rules.size(), SelectionTotals{7, 5, 3, 2}));  // totals are added to, not set
  DeviceInts slots(backend, batch.slots), tokens(backend, batch.rows);
  call.rules = drules.template as<SelectRule>();
  call.totals = totals.template as<SelectionTotals>();
  call.max_rows = batch.longest();
  const Selection selection{rows.template as<int32_t>(), counts.template as<int32_t>(), capacity, kv_heads};
  select(TokenBatch{batch.count(), nullptr, slots, tokens}, call, selection);
  Outcome outcome{.rows = {}, .totals = totals.template Get<SelectionTotals>()};
  const auto all = rows.template Get<int32_t>();
  const auto lengths = counts.template Get<int32_t>();
  for (size_t i = 0; i < lists; ++i) {
    const auto begin = all.begin() + static_cast<int64_t>(i) * capacity;
    EXPECT_TRUE(lengths[i] >= 0 && lengths[i] <= capacity) << "list " << i << " of " << lengths[i];
    outcome.rows.emplace_back(begin, begin + std::clamp<int64_t>(lengths[i], 0, capacity));
  }
  return outcome;
}

inline void ExpectSame(const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.rows.size(), want.rows.size());
  for (size_t i = 0; i < want.rows.size(); ++i) ASSERT_EQ(got.rows[i], want.rows[i]) << "list " << i;
  for (size_t s = 0; s < want.totals.size(); ++s) {
    EXPECT_EQ(got.totals[s].chosen, want.totals[s].chosen) << "slot " << s;
    EXPECT_EQ(got.totals[s].attended, want.totals[s].attended) << "slot " << s;
    EXPECT_EQ(got.totals[s].retained, want.totals[s].retained) << "slot " << s;
    EXPECT_EQ(got.totals[s].late, want.totals[s].late) << "slot " << s;
  }
}

// Lists are valid, of nearly the expected length, and contain nearly the same rows.
inline void ExpectAlike(const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.rows.size(), want.rows.size());
  for (size_t i = 0; i < want.rows.size(); ++i) {
    ASSERT_TRUE(std::is_sorted(got.rows[i].begin(), got.rows[i].end()));
    std::vector<int32_t> differing;
    std::set_symmetric_difference(got.rows[i].begin(), got.rows[i].end(), want.rows[i].begin(), want.rows[i].end(),
                                  std::back_inserter(differing));
    ASSERT_LE(std::ssize(differing), 2 + std::ssize(want.rows[i]) / 200) << "list " << i;
  }
  for (size_t s = 0; s < want.totals.size(); ++s) EXPECT_EQ(got.totals[s].retained, want.totals[s].retained);
}

inline SelectRule RandomRule(Random& random) {
  SelectRule rule;
  rule.alpha = random.Int(0, 5) == 0 ? kInfinity : static_cast<float>(random.Int(0, 80)) * 0.1f;
  const float caps[] = {0.0f, 0.01f, 0.05f, 0.2f, 0.7f, 1.0f};
  rule.cap = caps[random.Int(0, 5)];
  const int32_t least[] = {0, 1, 1, 3, 100, 100000};
  rule.min_rows = least[random.Int(0, 5)];
  const int32_t extras[] = {0, 0, 1, 4, 40, 500};
  rule.sinks = extras[random.Int(0, 5)];
  rule.window = extras[random.Int(0, 5)];
  if (random.Int(0, 3) == 0) rule.force_count = static_cast<int32_t>(random.Int(1, 700));
  return rule;
}

}  // namespace infinigen
