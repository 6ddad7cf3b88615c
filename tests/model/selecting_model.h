// An independent forward pass with selection and eviction, in plain loops over std::vector. It shares no code with the
// decoder for the layers, the guess, its rotation and basis, or the groups of heads. Retained entries are a map from
// positions to priorities, without rows or eviction state. Scoring and choosing use the definitions of kv/. Each known
// error of published code in guess or eviction, and each likely error of a tail or of late rows, can be switched on, to
// show that a test would detect it.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "kv/index.h"
#include "kv/method.h"
#include "kv/select.h"
#include "model/config.h"
#include "model/weights.h"

namespace infinigen {

struct GuessMistakes {
  bool unrotated = false;        // the guess is not rotated to the current position
  bool unskewed = false;         // the query is not projected to the basis
  bool ungrouped = false;        // only the first query head of a group is used
  bool no_bias = false;          // the guess lacks the bias of the query
  bool wrong_norm = false;       // kPrevMid uses the norm of the layer before
  bool undead = false;           // evicted rows are still selected
  bool no_tail = false;          // rows outside the selection are ignored
  bool no_level = false;         // the tail's scores lack what all keys have in common
  bool next_value = false;       // the tail uses the value of the next row
  bool undead_tail = false;      // evicted rows are still in the tail
  bool late_by_guess = false;    // late rows are chosen by the scores of the guess
  bool late_in_tail = false;     // late rows are in the tail as well
  bool late_off_by_one = false;  // one late row too few
  bool no_means = false;         // the tail's values lack the means of their blocks
  bool early_mean = false;       // a block has the mean of the rows that it has so far
};

class SelectingModel {
 public:
  using Vector = std::vector<float>;

  SelectingModel(const ModelConfig& config, const Weights& weights, const KvMethod& method,
                 const std::vector<SketchMatrices>& bases, const std::vector<TailMatrices>& tails,
                 GuessMistakes mistakes = {})
      : config_(config),
        weights_(weights),
        method_(method),
        bases_(bases),
        tails_(tails),
        mistakes_(mistakes),
        layers_(static_cast<size_t>(config.layers)) {
    for (Layer& layer : layers_) layer.keys.resize(static_cast<size_t>(config.kv_heads));
    for (Layer& layer : layers_) layer.values.resize(static_cast<size_t>(config.kv_heads));
    for (Layer& layer : layers_) layer.alive.resize(static_cast<size_t>(config.kv_heads));
    for (const RopeConfig& rope : config.ropes)
      frequencies_.push_back(RopeInverseFrequencies(rope, config.head_dim, config.max_positions));
  }

  // The sequence will have `final_tokens` tokens; the first `prompt` are prefilled, the others are steps.
  void Limit(int64_t final_tokens, int64_t prompt) {
    quota_ = method_.evicts() ? QuotaRule{.limit = method_.limit}.Quota(final_tokens) : final_tokens;
    prompt_ = prompt;
  }

  // Appends a token and returns its logits. `select`: as a decode step; otherwise it attends to everything.
  Vector Next(int32_t token, bool select) {
    Vector x = Row(weights_.embedding, token);
    for (float& number : x) number *= config_.embedding_scale;
    if (config_.positions == PositionKind::kLearned) Add(x, Row(weights_.positions, row_ + config_.position_offset));
    Vector guess_in;
    for (size_t i = 0; i < layers_.size(); ++i) x = RunLayer(i, std::move(x), guess_in, select);
    ++row_;
    if (config_.final_norm) x = Norm(*config_.final_norm, weights_.final_norm, x);
    Vector logits = Times(config_.tied_embeddings ? Linear{weights_.embedding, {}} : weights_.lm_head, x);
    for (float& logit : logits) logit = static_cast<float>(Capped(logit, config_.logit_soft_cap));
    return logits;
  }

 private:
  struct Layer {
    std::vector<std::vector<Vector>> keys, values;  // [kv_heads][rows][head_dim]
    std::vector<std::map<int64_t, float>> alive;    // [kv_heads] position → priority
    Vector last_query;                              // of the token before, not rotated
  };

  bool HasWindow(size_t i) const { return config_.specs[i].window > 0; }
  bool Evicts(size_t i) const { return method_.evicts(LayerId(static_cast<int64_t>(i))) && !HasWindow(i); }
  bool Selects(size_t i) const { return method_.selects(LayerId(static_cast<int64_t>(i))) && !HasWindow(i); }
  static double Capped(double score, float cap) {
    return cap == 0 ? score : static_cast<double>(cap) * std::tanh(score / static_cast<double>(cap));
  }
  // The output of attention or MLP as it is added to the stream.
  static Vector Branch(const LayerSpec& spec, const NormWeights& w, const Vector& out) {
    return spec.norm_placement == NormPlacement::kBothSides ? Norm(spec.norm, w, out) : out;
  }

  // Finds the entry to evict by a search over all retained positions.
  void Evict(std::map<int64_t, float>& alive, int64_t coming, int64_t room) {
    while (static_cast<int64_t>(alive.size()) > room) {
      const int64_t half = quota_ / 2, sinks = std::min<int64_t>(method_.rule.sinks, quota_ - half - 1);
      auto victim = alive.end();
      for (auto one = alive.begin(); one != alive.end(); ++one) {
        if (one->first < sinks || one->first >= coming - half) continue;
        if (victim == alive.end() || one->second < victim->second) victim = one;  // ascending: equals are older
      }
      alive.erase(victim);
    }
  }
  void Welcome(size_t i, bool step) {
    for (size_t kv = 0; kv < layers_[i].alive.size(); ++kv) {
      std::map<int64_t, float>& alive = layers_[i].alive[kv];
      if (Evicts(i) && step) Evict(alive, row_, quota_ - 1);
      alive[row_] = !Evicts(i) || method_.retain->on_append == InitialPriority::kZero ? 0.0f
                    : method_.retain->on_append == InitialPriority::kPosition
                        ? static_cast<float>(row_)
                        : ScrambledPriority(static_cast<int32_t>(row_), static_cast<int64_t>(kv));
    }
  }
  void Touch(std::map<int64_t, float>& alive, const std::vector<int64_t>& attended) {
    bool overflow = false;
    for (const int64_t position : attended) {
      if (position < method_.rule.sinks || position >= row_ - method_.rule.window) continue;
      if (method_.retain->on_select == PriorityUpdate::kStamp) alive[position] = static_cast<float>(row_);
      if (method_.retain->on_select == PriorityUpdate::kCount && ++alive[position] > 255) overflow = true;
    }
    if (!overflow) return;
    for (auto& [position, priority] : alive) priority = std::floor(priority / 2);
  }

  Vector RunLayer(size_t i, Vector x, Vector& guess_in, bool select) {
    Layer& layer = layers_[i];
    const LayerWeights& w = weights_.layers[i];
    const LayerSpec& spec = config_.specs[i];
    const bool before = spec.norm_placement != NormPlacement::kAfterResidual;
    const Vector in = before ? Norm(spec.norm, w.attention_norm, x) : x;
    const Vector plain_query = HeadNorm(i, w.q_norm, Times(w.q, in));
    Vector q = Rotated(i, plain_query), k = Rotated(i, HeadNorm(i, w.k_norm, Times(w.k, in))), v = Times(w.v, in);
    const size_t d = static_cast<size_t>(config_.head_dim);
    for (size_t head = 0; head < layer.keys.size(); ++head) {
      layer.keys[head].emplace_back(k.begin() + static_cast<ptrdiff_t>(head * d),
                                    k.begin() + static_cast<ptrdiff_t>((head + 1) * d));
      layer.values[head].emplace_back(v.begin() + static_cast<ptrdiff_t>(head * d),
                                      v.begin() + static_cast<ptrdiff_t>((head + 1) * d));
    }
    Welcome(i, select);
    Vector guess = q;
    if (select && method_.from != GuessSource::kSelf && Selects(i)) {
      guess =
          method_.from == GuessSource::kPrevStep
              ? (layer.last_query.empty() ? plain_query : layer.last_query)  // the first token attends only to itself
              : HeadNorm(i, w.q_norm, Times(mistakes_.no_bias ? Linear{w.q.weight, {}} : w.q, guess_in));
      if (!mistakes_.unrotated) guess = Rotated(i, guess);
    }
    layer.last_query = plain_query;
    if (method_.from == GuessSource::kPrevLayer) guess_in = in;
    Add(x, Branch(spec, w.attention_out_norm, Times(w.o, Attend(i, q, guess, select))));
    if (Evicts(i) && !select && row_ + 1 == prompt_)
      for (std::map<int64_t, float>& alive : layer.alive) Evict(alive, prompt_, quota_);
    if (!before) x = Norm(spec.norm, w.attention_norm, x);
    if (method_.from == GuessSource::kPrevMid && i + 1 < layers_.size()) {
      const size_t of = mistakes_.wrong_norm ? i : i + 1;
      guess_in = before ? Norm(config_.specs[of].norm, weights_.layers[of].attention_norm, x) : x;
    }
    const Vector mlp_in = before ? Norm(spec.norm, w.mlp_norm, x) : x;
    Vector up = Times(w.up, mlp_in);
    if (spec.mlp.gated) {
      const Vector gate = Times(w.gate, mlp_in);
      const bool gelu = spec.mlp.activation == Activation::kGeluTanh;
      for (size_t j = 0; j < up.size(); ++j) {
        const double g = static_cast<double>(gate[j]);
        const double tanh = std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g));
        up[j] *= static_cast<float>(gelu ? g * (1 + tanh) / 2 : g / (1 + std::exp(-g)));
      }
    } else {
      for (float& value : up) value = std::max(value, 0.0f);
    }
    Add(x, Branch(spec, w.mlp_out_norm, Times(w.down, up)));
    return before ? x : Norm(spec.norm, w.mlp_norm, x);
  }

  Vector Attend(size_t i, const Vector& q, const Vector& guess, bool select) {
    const size_t d = static_cast<size_t>(config_.head_dim), heads = static_cast<size_t>(config_.heads);
    const size_t group = heads / static_cast<size_t>(config_.kv_heads);
    Vector out(heads * d);
    for (size_t head = 0; head < heads; ++head) {
      const size_t kv = head / group;
      std::map<int64_t, float>& alive = layers_[i].alive[kv];
      std::vector<int64_t> rows;
      for (const auto& [position, priority] : alive)
        if (!HasWindow(i) || position > row_ - config_.specs[i].window) rows.push_back(position);
      const bool selects = Selects(i), last = head % group == group - 1;
      if (select && selects)
        rows = method_.select->page_rows > 1 ? SelectPages(i, kv, guess)
                                             : Select(i, kv, guess, method_.from == GuessSource::kSelf);
      // Once for the heads of a group, because they share a selection.
      if (Evicts(i) && selects && last && (select || row_ >= prompt_ - 256))
        Touch(alive, select ? rows : Select(i, kv, q, true, false));
      std::vector<int64_t> without_tail = rows;
      if (select && selects && method_.has_late()) {
        rows = WithLateRows(i, kv, mistakes_.late_by_guess ? guess : q, rows);
        if (!mistakes_.late_in_tail) without_tail = rows;
      }
      std::vector<double> weights;
      double most = -1e300, sum = 0;
      for (const int64_t row : rows) {
        double score = 0;
        for (size_t c = 0; c < d; ++c)
          score += static_cast<double>(q[head * d + c]) *
                   static_cast<double>(layers_[i].keys[kv][static_cast<size_t>(row)][c]);
        weights.push_back(
            Capped(score * static_cast<double>(config_.specs[i].attention_scale), config_.specs[i].attention_soft_cap));
        most = std::max(most, weights.back());
      }
      for (double& weight : weights) sum += weight = std::exp(weight - most);
      for (size_t j = 0; j < rows.size() && Evicts(i) && method_.retain->sums_attention; ++j)
        alive[rows[j]] += static_cast<float>(weights[j] / sum);
      std::vector<double> mixed(d);
      for (size_t j = 0; j < rows.size(); ++j)
        for (size_t c = 0; c < d; ++c)
          mixed[c] += weights[j] * static_cast<double>(layers_[i].values[kv][static_cast<size_t>(rows[j])][c]);
      if (select && selects && method_.rule.tail && !mistakes_.no_tail)
        AddTail(i, head, q, without_tail, most, mixed, sum);
      for (size_t c = 0; c < d; ++c) out[head * d + c] = static_cast<float>(mixed[c] / sum);
    }
    return out;
  }

  // Adds the weights and values of rows outside `selected`, as their sketches give them, to the sums of a query head,
  // whose weights are relative to the score `most`.
  void AddTail(size_t i, size_t head, const Vector& q, const std::vector<int64_t>& selected, double most,
               std::vector<double>& mixed, double& sum) const {
    const int64_t d = config_.head_dim, values = method_.sketch.value_dims;
    const size_t kv = head / static_cast<size_t>(config_.heads / config_.kv_heads);
    const TailMatrices& tail = tails_[i];
    const LayerSpec& spec = config_.specs[i];
    const auto at = [&](const Vector& of, int64_t size) { return of.data() + static_cast<int64_t>(kv) * size; };
    std::vector<int32_t> positions;
    for (const auto& [position, priority] : layers_[i].alive[kv]) positions.push_back(static_cast<int32_t>(position));
    if (mistakes_.undead_tail) {
      positions.resize(static_cast<size_t>(row_ + 1));
      std::iota(positions.begin(), positions.end(), 0);
    }
    std::erase_if(positions, [&](int32_t p) { return std::binary_search(selected.begin(), selected.end(), p); });
    const float* query = q.data() + static_cast<int64_t>(head) * d;
    double level = 0;
    for (int64_t c = 0; c < d && !mistakes_.no_level; ++c)
      level += static_cast<double>(query[c]) * static_cast<double>(at(tail.key_mean, d)[c]);
    const Vector scores = Scores(i, kv, positions, query, bases_[i].query.data());
    for (size_t j = 0; j < positions.size(); ++j) {
      const double score = Capped(static_cast<double>(scores[j]) + level * static_cast<double>(spec.attention_scale),
                                  spec.attention_soft_cap);
      const int64_t row = std::min<int64_t>(positions[j] + (mistakes_.next_value ? 1 : 0), row_);
      Vector sketch =
          Project(layers_[i].values[kv][static_cast<size_t>(row)].data(), at(tail.value, d * values), values);
      for (int64_t c = 0; c < values; ++c) sketch[static_cast<size_t>(c)] -= at(tail.value_offset, values)[c];
      std::vector<std::byte> block(method_.sketch.block_bytes());
      StoreValueSketch(method_.sketch, block.data(), 0, sketch);
      sketch = LoadValueSketch(method_.sketch, block.data(), 0);
      const Vector mean = BlockMean(i, kv, row, at(tail.value_mean, d));
      for (int64_t n = 0; n < values; ++n)
        for (int64_t c = 0; c < d; ++c)
          sketch[static_cast<size_t>(n)] -= at(tail.value, d * values)[c * values + n] * mean[static_cast<size_t>(c)];
      const double weight = std::exp(score - most);
      sum += weight;
      for (int64_t c = 0; c < d; ++c) {
        double value = static_cast<double>(at(tail.value_mean, d)[c] + mean[static_cast<size_t>(c)]);
        for (int64_t n = 0; n < values; ++n)
          value += static_cast<double>(at(tail.value, d * values)[c * values + n]) *
                   static_cast<double>(sketch[static_cast<size_t>(n)]);
        mixed[static_cast<size_t>(c)] += weight * value;
      }
    }
  }

  // The mean that the block of a row has; zeros if it has none.
  Vector BlockMean(size_t i, size_t kv, int64_t row, const float* value_mean) const {
    const int64_t d = config_.head_dim, first = row / kSketchBlock * kSketchBlock;
    const bool complete = first + kSketchBlock <= row_ + 1;
    if (method_.sketch.mean_dims == 0 || mistakes_.no_means || !(complete || mistakes_.early_mean))
      return Vector(static_cast<size_t>(d));
    Vector values;
    for (int64_t r = first; r < first + kSketchBlock; ++r) {
      const Vector& value = layers_[i].values[kv][static_cast<size_t>(std::min(r, row_))];
      values.insert(values.end(), value.begin(), value.end());
    }
    std::vector<std::byte> block(method_.sketch.block_bytes());
    StoreBlockMean(method_.sketch, block.data(), values, {value_mean, static_cast<size_t>(d)});
    return LoadBlockMean(method_.sketch, block.data());
  }

  // The attended positions. `known`: the current token has a sketch. `step`: not to seed the priorities of a prompt.
  std::vector<int64_t> Select(size_t i, size_t kv, const Vector& guess, bool known, bool step = true) const {
    std::vector<int32_t> positions;
    for (const auto& [position, priority] : layers_[i].alive[kv]) positions.push_back(static_cast<int32_t>(position));
    if (mistakes_.undead) {
      positions.resize(static_cast<size_t>(row_ + 1));
      std::iota(positions.begin(), positions.end(), 0);
    }
    const int64_t n = std::ssize(positions);
    const int64_t d = config_.head_dim, dims = method_.sketch.dims, group = config_.heads / config_.kv_heads;
    const int64_t visible = known ? n : n - 1;
    const std::vector<int32_t> scored(positions.begin(), positions.begin() + visible);
    Vector plain(static_cast<size_t>(config_.kv_heads * d * dims));
    for (int64_t head = 0; head < config_.kv_heads; ++head)
      for (int64_t c = 0; c < dims; ++c) plain[static_cast<size_t>((head * d + c) * dims + c)] = 1;
    const float* query_side = mistakes_.unskewed ? plain.data() : bases_[i].query.data();
    Vector scores;
    const int64_t asked = mistakes_.ungrouped ? 1 : group;
    for (int64_t g = 0; g < asked; ++g) {
      const float* query = guess.data() + (static_cast<int64_t>(kv) * group + g) * d;
      Vector part = Scores(i, kv, scored, query, query_side);
      // In a step whose query is the layer's own and that has a tail, scores have their level when they are capped.
      double level = 0;
      for (int64_t c = 0; c < d && method_.rule.tail && known && step && config_.specs[i].attention_soft_cap > 0; ++c)
        level += static_cast<double>(query[c]) *
                 static_cast<double>(tails_[i].key_mean[static_cast<size_t>(static_cast<int64_t>(kv) * d + c)]);
      level *= static_cast<double>(config_.specs[i].attention_scale);
      for (float& score : part)
        score = static_cast<float>(Capped(static_cast<double>(score) + level, config_.specs[i].attention_soft_cap));
      scores.insert(scores.end(), part.begin(), part.end());
    }
    const Vector relative = RelativeScores(scores, asked);
    const int64_t passing = method_.rule.mass > 0 ? CountForMass(scores, asked, method_.rule.mass)
                                                  : CountPassing(relative, method_.rule.alpha);
    const int64_t count = ChosenCount(method_.rule, passing, visible, n);
    std::vector<int64_t> chosen;
    for (const int32_t row : ChooseRows(relative, method_.rule, count, {n, row_, positions.data()}).rows)
      chosen.push_back(positions[static_cast<size_t>(row)]);
    return chosen;
  }

  // The attended positions and the best of the others: by the group's largest score, each head's relative to its own
  // best of all positions.
  std::vector<int64_t> WithLateRows(size_t i, size_t kv, const Vector& queries, std::vector<int64_t> attended) const {
    const int64_t d = config_.head_dim, group = config_.heads / config_.kv_heads;
    const LayerSpec& spec = config_.specs[i];
    std::vector<int32_t> positions;
    for (const auto& [position, priority] : layers_[i].alive[kv]) positions.push_back(static_cast<int32_t>(position));
    Vector best(positions.size(), -INFINITY);
    for (int64_t g = 0; g < group; ++g) {
      const float* query = queries.data() + (static_cast<int64_t>(kv) * group + g) * d;
      Vector scores = Scores(i, kv, positions, query, bases_[i].query.data());
      double level = 0;
      for (int64_t c = 0; c < d && spec.attention_soft_cap > 0; ++c)
        level += static_cast<double>(query[c]) *
                 static_cast<double>(tails_[i].key_mean[static_cast<size_t>(static_cast<int64_t>(kv) * d + c)]);
      level *= static_cast<double>(spec.attention_scale);
      for (float& score : scores)
        score = static_cast<float>(Capped(static_cast<double>(score) + level, spec.attention_soft_cap));
      const float most = *std::max_element(scores.begin(), scores.end());
      for (size_t j = 0; j < best.size(); ++j) best[j] = std::max(best[j], scores[j] - most);
    }
    for (int32_t left = method_.rule.late - (mistakes_.late_off_by_one ? 1 : 0); left > 0; --left) {
      size_t next = positions.size();
      for (size_t j = 0; j < positions.size(); ++j)  // ascending: of equals the newer is taken
        if (std::find(attended.begin(), attended.end(), positions[j]) == attended.end() &&
            (next == positions.size() || best[j] >= best[next]))
          next = j;
      if (next == positions.size()) break;
      attended.push_back(positions[next]);
    }
    std::sort(attended.begin(), attended.end());
    return attended;
  }

  // Scores of the sketches of some positions. matrix: the query's side of the basis, [kv_heads][head_dim][dims].
  Vector Scores(size_t i, size_t kv, const std::vector<int32_t>& positions, const float* query,
                const float* matrix) const {
    const SketchMatrices& basis = bases_[i];
    const SketchLayout& layout = method_.sketch;
    const int64_t d = config_.head_dim, dims = layout.dims, before = static_cast<int64_t>(kv) * d * dims;
    std::vector<std::byte> sketches(layout.head_bytes(std::ssize(positions) + 1));
    for (size_t row = 0; row < positions.size(); ++row) {
      Vector numbers =
          Project(layers_[i].keys[kv][static_cast<size_t>(positions[row])].data(), basis.key.data() + before, dims);
      for (int64_t c = 0; c < dims; ++c)
        numbers[static_cast<size_t>(c)] -= basis.key_offset[static_cast<size_t>(static_cast<int64_t>(kv) * dims + c)];
      StoreSketch(layout, sketches.data() + row / kSketchBlock * layout.block_bytes(),
                  static_cast<int64_t>(row % kSketchBlock), numbers);
    }
    Vector projected = Project(query, matrix + before, dims);
    for (float& number : projected) number *= config_.specs[i].attention_scale;
    return ScoreSketches(layout, sketches.data(), std::ssize(positions), projected);
  }

  // Scores of the page of rows [first, first + 16), with a scaled query.
  float BoundsScore(size_t i, size_t kv, int64_t first, const Vector& query) const {
    std::vector<BF16> bounds(2 * query.size());
    for (int64_t row = first; row < first + 16; ++row)
      AddToBounds(bounds, row, layers_[i].keys[kv][static_cast<size_t>(row)]);
    return PageScore(bounds, query);
  }
  // The mean of the scores of its keys: what page-mean must come to, without a sum of keys.
  float MeanScore(size_t i, size_t kv, int64_t first, const Vector& query) const {
    double score = 0;
    for (int64_t row = first; row < first + 16; ++row)
      for (size_t c = 0; c < query.size(); ++c)
        score +=
            static_cast<double>(query[c]) * static_cast<double>(layers_[i].keys[kv][static_cast<size_t>(row)][c]) / 16;
    return static_cast<float>(score);
  }

  std::vector<int64_t> SelectPages(size_t i, size_t kv, const Vector& guess) const {
    const int64_t d = config_.head_dim, group = config_.heads / config_.kv_heads;
    const int64_t complete = row_ / 16 * 16;
    Vector scores;
    const int64_t asked = mistakes_.ungrouped ? 1 : group;
    for (int64_t g = 0; g < asked; ++g) {
      const float* numbers = guess.data() + (static_cast<int64_t>(kv) * group + g) * d;
      Vector query(numbers, numbers + d);
      for (float& number : query) number *= config_.specs[i].attention_scale;
      for (int64_t first = 0; first < complete; first += 16)
        scores.insert(
            scores.end(), 16,
            method_.select == &kSelectQuest ? BoundsScore(i, kv, first, query) : MeanScore(i, kv, first, query));
    }
    for (float& score : scores) score = static_cast<float>(Capped(score, config_.specs[i].attention_soft_cap));
    const Vector relative = RelativeScores(scores, asked);
    SelectRule rule = method_.rule;
    rule.window = std::max(rule.window, static_cast<int32_t>(row_ - complete));
    const int64_t count = ChosenCount(rule, CountPassing(relative, rule.alpha), complete, row_ + 1, 16);
    const std::vector<int32_t> rows = ChooseRows(relative, rule, count, row_, 16).rows;
    return {rows.begin(), rows.end()};
  }

  Vector Project(const float* x, const float* matrix, int64_t cols) const {
    Vector out(static_cast<size_t>(cols));
    for (int64_t i = 0; i < config_.head_dim; ++i)
      for (int64_t c = 0; c < cols; ++c) out[static_cast<size_t>(c)] += x[i] * matrix[i * cols + c];
    return out;
  }

  Vector Rotated(size_t layer, Vector x) const {
    const int32_t rope = config_.specs[layer].rope;
    if (rope == LayerSpec::kNoRope) return x;
    const Vector& frequencies = frequencies_[static_cast<size_t>(rope)];
    const RopeConfig& fields = config_.ropes[static_cast<size_t>(rope)];
    const size_t half = frequencies.size();
    const auto magnitude = static_cast<float>(fields.magnitude);
    for (size_t head = 0; head < x.size(); head += static_cast<size_t>(config_.head_dim)) {
      for (size_t i = 0; i < half; ++i) {
        const size_t first = head + (fields.order == RopeOrder::kPairs ? 2 * i : i);
        const size_t second = fields.order == RopeOrder::kPairs ? first + 1 : first + half;
        const float angle = static_cast<float>(row_) * frequencies[i], a = x[first], b = x[second];
        x[first] = magnitude * (a * std::cos(angle) - b * std::sin(angle));
        x[second] = magnitude * (b * std::cos(angle) + a * std::sin(angle));
      }
    }
    return x;
  }

  // Normalises each head of x separately.
  Vector HeadNorm(size_t layer, const NormWeights& w, const Vector& x) const {
    const LayerSpec& spec = config_.specs[layer];
    if (spec.qk_norm == QkNorm::kNone) return x;
    Vector out;
    for (auto head = x.begin(); head != x.end(); head += config_.head_dim) {
      const Vector normed =
          Norm({.kind = NormKind::kRms, .eps = spec.norm.eps}, w, Vector(head, head + config_.head_dim));
      out.insert(out.end(), normed.begin(), normed.end());
    }
    return out;
  }

  static Vector Norm(const NormSpec& norm, const NormWeights& w, const Vector& x) {
    const float n = static_cast<float>(x.size());
    float mean = 0, squares = 0;
    if (norm.kind == NormKind::kLayer) mean = std::accumulate(x.begin(), x.end(), 0.0f) / n;
    for (const float value : x) squares += (value - mean) * (value - mean);
    const float scale = 1.0f / std::sqrt(squares / n + norm.eps);
    Vector out(x.size());
    for (size_t i = 0; i < x.size(); ++i)
      out[i] = (x[i] - mean) * scale * w.weight.as<float>()[i] + (w.bias ? w.bias.as<float>()[i] : 0.0f);
    return out;
  }

  static Vector Row(const WeightView& table, int64_t row) {
    return {table.as<float>(row), table.as<float>(row) + table.cols};
  }
  static void Add(Vector& x, const Vector& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  static Vector Times(const Linear& linear, const Vector& x) {
    Vector out(static_cast<size_t>(linear.weight.rows));
    for (int64_t n = 0; n < linear.weight.rows; ++n) {
      double sum = linear.bias ? static_cast<double>(linear.bias.as<float>()[n]) : 0;
      for (size_t i = 0; i < x.size(); ++i)
        sum += static_cast<double>(x[i]) * static_cast<double>(linear.weight.as<float>(n)[i]);
      out[static_cast<size_t>(n)] = static_cast<float>(sum);
    }
    return out;
  }

  const ModelConfig& config_;
  const Weights& weights_;
  const KvMethod method_;
  const std::vector<SketchMatrices> bases_;
  const std::vector<TailMatrices> tails_;
  const GuessMistakes mistakes_;
  std::vector<Layer> layers_;
  std::vector<Vector> frequencies_;  // [ropes]
  int64_t row_ = 0;
  int64_t quota_ = 0, prompt_ = 0;
};

}  // namespace infinigen
