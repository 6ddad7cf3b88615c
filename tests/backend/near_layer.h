// One layer whose entries come near, for tests: a pool that can be changed behind the hot set's back, memory near by,
// and steps of any sequences with what came out of them. And the hot set of one KV head as a plain map.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/operands.h"
#include "backend/selections.h"

namespace infinigen {

using Bytes = std::vector<std::byte>;

struct NearShape {
  StoreType type = StoreType::kBF16;
  int64_t kv_heads = 2, group = 2, dim = 16;
  int64_t slots = 2, rows = 400;
  int64_t places = 24;
  bool hot = true;

  EntryLayout layout() const { return {type, kv_heads, dim}; }
};

// One token of a step.
struct NearToken {
  int32_t slot = 0, position = 0;
  std::vector<int32_t> own;                 // [kv_heads] its row
  std::vector<std::vector<int32_t>> lists;  // [kv_heads] ascending, with its own row
};

// Of one (token, KV head).
struct NearOutcome {
  std::vector<int32_t> places, misses;
  int32_t own = -1;
};

template <class B>
class NearLayer {
 public:
  NearLayer(B& backend, const NearShape& shape, uint64_t seed)
      : backend_(backend),
        shape_(shape),
        random_(seed),
        home_(backend, shape.layout(), shape.slots, shape.rows, random_),
        data_(backend, Heads() * static_cast<size_t>(shape.places) * shape.layout().entry_bytes()),
        holds_(backend, Heads() * static_cast<size_t>(shape.places) * 4),
        used_(backend, Heads() * static_cast<size_t>(shape.places) * 4),
        place_of_(backend, Heads() * static_cast<size_t>(shape.rows) * 4),
        totals_(backend, static_cast<size_t>(shape.slots) * sizeof(NearTotals)),
        clock_(backend, sizeof(FetchClock)),
        mirror_(Heads() * static_cast<size_t>(shape.rows)) {
    totals_.Put(std::vector<NearTotals>(static_cast<size_t>(shape.slots)));
    clock_.Put(std::vector<FetchClock>(1));
    for (int64_t slot = 0; slot < shape.slots; ++slot) {
      std::vector<NearToken> all;
      all.reserve(static_cast<size_t>(shape.rows));
      for (int32_t row = 0; row < shape.rows; ++row)
        all.push_back(
            {static_cast<int32_t>(slot), row, std::vector<int32_t>(static_cast<size_t>(shape.kv_heads), row), {}});
      Write(all);
    }
  }

  NearEntries near() const {
    NearEntries near{.layout = shape_.layout(), .data = data_.template as<std::byte>(), .capacity = shape_.places};
    if (!shape_.hot) return near;
    near.holds = holds_.template as<int32_t>();
    near.used = used_.template as<int32_t>();
    near.place_of = place_of_.template as<int32_t>();
    near.rows = shape_.rows;
    return near;
  }

  // New random entries at the tokens' rows of the pool.
  void Write(const std::vector<NearToken>& tokens) {
    const Operands operands(*this, tokens, /*room=*/1);
    backend_.Append(Queue::kCompute, operands.batch(), operands.keys, operands.values, home_.view());
    for (const NearToken& token : tokens)
      for (int64_t head = 0; head < shape_.kv_heads; ++head) {
        const int32_t row = token.own[static_cast<size_t>(head)];
        mirror_[Index(token.slot, head) * static_cast<size_t>(shape_.rows) + static_cast<size_t>(row)] =
            home_.Bytes(token.slot, head, row);
      }
  }
  // An entry of the pool.
  const Bytes& Home(int64_t slot, int64_t head, int32_t row) const {
    return mirror_[Index(slot, head) * static_cast<size_t>(shape_.rows) + static_cast<size_t>(row)];
  }

  // FindNear, FetchNear, and new entries at home and near. Outcomes [token · kv_heads + head]. The step's memory stays,
  // for Attend.
  std::vector<NearOutcome> Step(const std::vector<NearToken>& tokens, double forced_hits = 0) {
    size_t capacity = 1;
    for (const NearToken& token : tokens)
      for (const auto& list : token.lists) capacity = std::max(capacity, list.size());
    step_ = std::make_unique<Operands>(*this, tokens, static_cast<int64_t>(capacity) + 3);
    const Operands& step = *step_;
    backend_.FindNear(Queue::kCompute, step.batch(), step.selection(), near(), forced_hits, step.list(),
                      totals_.template as<NearTotals>());
    backend_.Wait(Queue::kFetch, backend_.Record(Queue::kCompute));
    backend_.FetchNear(Queue::kFetch, step.batch(), step.selection(), home_.view(), near(), step.list(), clock());
    backend_.Wait(Queue::kCompute, backend_.Record(Queue::kFetch));
    backend_.AppendNear(Queue::kCompute, step.batch(), step.keys, step.values, near(), step.list());
    backend_.Append(Queue::kCompute, step.batch(), step.keys, step.values, home_.view());
    for (const NearToken& token : tokens)
      for (int64_t head = 0; head < shape_.kv_heads; ++head) {
        const int32_t row = token.own[static_cast<size_t>(head)];
        mirror_[Index(token.slot, head) * static_cast<size_t>(shape_.rows) + static_cast<size_t>(row)] =
            home_.Bytes(token.slot, head, row);
      }
    return step.Outcomes(tokens);
  }

  // Outputs of tokens [first, first + count) of the last step, as bytes: from the places, or from the pool.
  Bytes Attend(const HostTensor& queries, int64_t first, int64_t count, bool from_places) {
    HostTensor part(queries.type, count, queries.cols, 3), out(queries.type, count, queries.cols, 1);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < queries.cols; ++c) part.Set(i, c, queries.At(first + i, c));
    DeviceTensor dqueries(backend_, part), dout(backend_, out);
    const AttentionShape shape{shape_.kv_heads * shape_.group, 0.2f};
    const int64_t lists = first * shape_.kv_heads;
    Selection selection = step_->selection();
    NearList list = step_->list();
    selection.rows += lists * selection.capacity;
    selection.counts += lists;
    list.places += lists * list.capacity;
    const TokenBatch batch = step_->batch().Range(first, count);
    if (from_places)
      backend_.AttendNear(Queue::kCompute, dqueries, batch, selection, shape, home_.view(), near(), list, dout);
    else
      backend_.AttendSelected(Queue::kCompute, dqueries, batch, selection, shape, home_.view(), dout);
    return dout.Fetch().bytes;
  }

  void Forget(int64_t slot) { backend_.ForgetNear(Queue::kCompute, near(), SeqSlot(slot)); }
  FetchClock* clock() const { return clock_.template as<FetchClock>(); }
  FetchClock Clock() const { return clock_.template Get<FetchClock>()[0]; }
  std::vector<NearTotals> Totals() const { return totals_.template Get<NearTotals>(); }
  // All places; one of them is at At(slot, head, place).
  Bytes Data() const { return data_.template Get<std::byte>(); }
  Bytes At(const Bytes& data, int64_t slot, int64_t head, int32_t place) const {
    const size_t size = shape_.layout().entry_bytes();
    const auto begin =
        data.begin() +
        static_cast<int64_t>((Index(slot, head) * static_cast<size_t>(shape_.places) + static_cast<size_t>(place)) *
                             size);
    return {begin, begin + static_cast<int64_t>(size)};
  }
  Random& random() { return random_; }
  const NearShape& shape() const { return shape_; }

 private:
  // What a call is about, in memory of the backend.
  struct Operands {
    Operands(NearLayer& layer, const std::vector<NearToken>& tokens, int64_t room)
        : kv_heads(layer.shape_.kv_heads),
          capacity(room),
          count(std::ssize(tokens)),
          host_keys(HostTensor::Normal(layer.random_, DType::kF32, count, kv_heads * layer.shape_.dim, 1.0f, 2)),
          host_values(HostTensor::Normal(layer.random_, DType::kF32, count, kv_heads * layer.shape_.dim, 1.0f, 1)),
          keys(layer.backend_, host_keys),
          values(layer.backend_, host_values),
          slots(layer.backend_, Collect(tokens, [](const NearToken& t) { return std::vector{t.slot}; })),
          positions(layer.backend_, Collect(tokens, [](const NearToken& t) { return std::vector{t.position}; })),
          own(layer.backend_, Collect(tokens, [](const NearToken& t) { return t.own; })),
          rows(layer.backend_, Lists() * static_cast<size_t>(capacity) * 4),
          counts(layer.backend_, Lists() * 4),
          places(layer.backend_, Lists() * static_cast<size_t>(capacity) * 4),
          misses(layer.backend_, Lists() * static_cast<size_t>(capacity) * 4),
          miss_counts(layer.backend_, Lists() * 4),
          own_places(layer.backend_, Lists() * 4) {
      std::vector<int32_t> all(Lists() * static_cast<size_t>(capacity), -1), lengths;
      for (const NearToken& token : tokens)
        for (const auto& list : token.lists) {
          std::copy(list.begin(), list.end(), all.begin() + std::ssize(lengths) * capacity);
          lengths.push_back(static_cast<int32_t>(list.size()));
        }
      rows.Put(all);
      counts.Put(lengths);
    }
    TokenBatch batch() const {
      return {.count = count, .slots = slots, .rows = positions, .places = own, .kv_heads = kv_heads};
    }
    Selection selection() const {
      return {rows.template as<int32_t>(), counts.template as<int32_t>(), capacity, kv_heads};
    }
    NearList list() const {
      return {places.template as<int32_t>(),
              misses.template as<int32_t>(),
              miss_counts.template as<int32_t>(),
              own_places.template as<int32_t>(),
              capacity,
              kv_heads};
    }
    std::vector<NearOutcome> Outcomes(const std::vector<NearToken>& tokens) const {
      const auto all_places = places.template Get<int32_t>(), all_misses = misses.template Get<int32_t>(),
                 missed = miss_counts.template Get<int32_t>(), owns = own_places.template Get<int32_t>();
      std::vector<NearOutcome> outcomes;
      for (const NearToken& token : tokens)
        for (const auto& list : token.lists) {
          const size_t at = outcomes.size();
          const auto begin = static_cast<int64_t>(at) * capacity;
          EXPECT_TRUE(missed[at] >= 0 && missed[at] < std::ssize(list)) << missed[at] << " misses";
          const int64_t length = std::clamp<int64_t>(missed[at], 0, std::ssize(list));
          outcomes.push_back({{all_places.begin() + begin, all_places.begin() + begin + std::ssize(list)},
                              {all_misses.begin() + begin, all_misses.begin() + begin + length},
                              owns[at]});
        }
      return outcomes;
    }
    size_t Lists() const { return static_cast<size_t>(count * kv_heads); }
    template <class F>
    static std::vector<int32_t> Collect(const std::vector<NearToken>& tokens, F&& of) {
      std::vector<int32_t> all;
      for (const NearToken& token : tokens)
        for (const int32_t x : of(token)) all.push_back(x);
      return all;
    }

    int64_t kv_heads, capacity, count;
    HostTensor host_keys, host_values;
    DeviceTensor<B> keys, values;
    DeviceInts<B> slots, positions, own;
    DeviceBytes<B> rows, counts, places, misses, miss_counts, own_places;
  };

  size_t Heads() const { return static_cast<size_t>(shape_.slots * shape_.kv_heads); }
  size_t Index(int64_t slot, int64_t head) const { return static_cast<size_t>(slot * shape_.kv_heads + head); }

  B& backend_;
  NearShape shape_;
  Random random_;
  TestEntries<B> home_;
  DeviceBytes<B> data_, holds_, used_, place_of_, totals_, clock_;
  std::vector<Bytes> mirror_;  // [slots][kv_heads][rows] of the pool
  std::unique_ptr<Operands> step_;
};

// What the hot set of one (sequence, KV head) holds, and what it does with a list.
class HotModel {
 public:
  explicit HotModel(int64_t capacity) : capacity_(capacity) {}

  NearOutcome Find(const std::vector<int32_t>& list, int32_t own, int32_t position) {
    NearOutcome outcome;
    if (std::ssize(list) > capacity_) {  // stays at home
      for (const int32_t row : list) outcome.places.push_back(NearList::AtHome(row));
      outcome.own = NearList::AtHome(own);
      for (auto& [place, held] : held_)
        if (held.row == own) held.row = -1;
      return outcome;
    }
    std::map<int32_t, int32_t> place_of;
    for (const auto& [place, held] : held_) place_of[held.row] = place;
    std::vector<int32_t> homeless;
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i] != own && !place_of.contains(list[i])) {
        outcome.misses.push_back(static_cast<int32_t>(i));
        homeless.push_back(list[i]);
      }
    if (!place_of.contains(own)) homeless.push_back(own);

    std::vector<std::pair<int32_t, int32_t>> leaving;  // used, place
    for (int32_t place = 0; place < capacity_; ++place) {
      const auto held = held_.find(place);
      if (held == held_.end())
        leaving.emplace_back(-1, place);
      else if (std::find(list.begin(), list.end(), held->second.row) == list.end())
        leaving.emplace_back(held->second.used, place);
    }
    std::sort(leaving.begin(), leaving.end());
    leaving.resize(homeless.size());
    std::sort(leaving.begin(), leaving.end(), [](auto a, auto b) { return a.second < b.second; });
    for (size_t i = 0; i < homeless.size(); ++i) {
      held_[leaving[i].second] = {homeless[i], position, {}};
      place_of[homeless[i]] = leaving[i].second;
    }
    for (const int32_t row : list) {
      outcome.places.push_back(place_of[row]);
      held_[place_of[row]].used = position;
    }
    outcome.own = place_of[own];
    return outcome;
  }

  Bytes& At(int32_t place) { return held_.at(place).bytes; }

 private:
  struct Held {
    int32_t row = -1, used = -1;
    Bytes bytes;
  };
  int64_t capacity_;
  std::map<int32_t, Held> held_;  // by place
};

}  // namespace infinigen
