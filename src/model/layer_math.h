// LayerMath: the part of a layer that does not use the cache: norms, projections, rotation, MLP, and the addition to
// the residual stream. Called by the decoder only.
#pragma once

#include <initializer_list>

#include "backend/backend.h"
#include "base/check.h"
#include "model/config.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace infinigen {

template <Backend B>
class LayerMath {
 public:
  // All arguments outlive the object.
  LayerMath(B& backend, const WorkspaceShape& shape, const Workspace& work)
      : backend_(backend), shape_(shape), head_dim_(shape.config.head_dim), work_(work) {}

  // The input of attention or MLP: x itself, or its norm in the workspace.
  Tensor Input(const LayerSpec& spec, const NormWeights& norm, const Tensor& x) {
    if (spec.norm_placement == NormPlacement::kAfterResidual) return x;
    return Norm(spec.norm, norm, x, work_.normed.Rows(0, x.rows));
  }

  // Computes the queries of `input` [count][hidden] with the layer's head norms, unrotated.
  void Query(const LayerSpec& spec, const LayerWeights& w, const Tensor& input, const Tensor& q) {
    MatMul(input, {To(w.q, q)});
    NormHeads(spec, w.q_norm, q);
  }
  void QueryKeyValue(const LayerSpec& spec, const LayerWeights& w, const Tensor& input, const Tensor& q,
                     const Tensor& k, const Tensor& v) {
    MatMul(input, {To(w.q, q), To(w.k, k), To(w.v, v)});
    NormHeads(spec, w.q_norm, q);
    NormHeads(spec, w.k_norm, k);
  }
  // Rotates each head by the positions of the batch that was uploaded last, if the layer uses RoPE.
  void Rotate(const LayerSpec& spec, const Tensor& x) {
    if (spec.rope == LayerSpec::kNoRope) return;
    const RopeConfig& rope = shape_.config.ropes[static_cast<size_t>(spec.rope)];
    backend_.Rope(Queue::kCompute, RopeRows(spec.rope, x.rows),
                  {.head_dim = head_dim_, .adjacent = rope.order == RopeOrder::kPairs}, x);
  }
  // Cosines and sines of `count` tokens in RoPE table `table`: [count][rotated dimensions].
  Tensor RopeRows(int64_t table, int64_t count) const {
    Tensor rows = work_.rope.Rows(table * shape_.tokens(), count);
    rows.cols = shape_.config.ropes[static_cast<size_t>(table)].dims(head_dim_);
    return rows;
  }

  // The MLP without its last projection.
  Tensor MlpHidden(const LayerSpec& spec, const LayerWeights& w, const Tensor& x) {
    const Tensor input = Input(spec, w.mlp_norm, x), up = work_.up.Rows(0, x.rows);
    if (!spec.mlp.gated) {
      MatMul(input, {To(w.up, up, Epilogue::kRelu)});
      return up;
    }
    const Tensor gate = work_.gate.Rows(0, x.rows);
    MatMul(input, {To(w.gate, gate), To(w.up, up)});
    if (spec.mlp.activation == Activation::kGeluTanh)
      backend_.GeluMul(Queue::kCompute, gate, up);
    else
      backend_.SiluMul(Queue::kCompute, gate, up);
    return gate;
  }

  // x += h · output + bias: adds the output of attention or MLP to the residual stream, normalised by `out_norm` where
  // the layer has norms on both sides. `norm` is the one after the addition, if the layer has it there. The only place
  // that adds to the stream: if heads are ever split over processes, partial sums must be added and the bias counted
  // once here.
  void Join(const LayerSpec& spec, const Linear& output, const NormWeights& norm, const NormWeights& out_norm,
            const Tensor& h, const Tensor& x) {
    if (spec.norm_placement == NormPlacement::kBothSides) {
      const Tensor branch = work_.branch.Rows(0, x.rows);
      MatMul(h, {To(output, branch)});
      backend_.Add(Queue::kCompute, Norm(spec.norm, out_norm, branch, branch), x);
      return;
    }
    MatMul(h, {To(output, x, Epilogue::kAdd)});
    if (spec.norm_placement == NormPlacement::kAfterResidual) Norm(spec.norm, norm, x, x);
  }

  Tensor Norm(const NormSpec& spec, const NormWeights& w, const Tensor& x, const Tensor& out) {
    if (spec.kind == NormKind::kRms)
      backend_.RmsNorm(Queue::kCompute, x, w.weight, spec.eps, out);
    else
      backend_.LayerNorm(Queue::kCompute, x, w.weight, w.bias, spec.eps, out);
    return out;
  }
  void Project(const Linear& linear, const Tensor& x, const Tensor& out) { MatMul(x, {To(linear, out)}); }

 private:
  // Normalises each head of x [count][heads·head_dim] in place, if the layer has head norms.
  void NormHeads(const LayerSpec& spec, const NormWeights& w, const Tensor& x) {
    if (spec.qk_norm == QkNorm::kNone) return;
    CHECK(x.stride == x.cols && x.cols % head_dim_ == 0);
    const Tensor heads{x.data, x.type, x.rows * (x.cols / head_dim_), head_dim_, head_dim_};
    backend_.RmsNorm(Queue::kCompute, heads, w.weight, spec.norm.eps, heads);
  }
  static Projection To(const Linear& linear, const Tensor& out, Epilogue epilogue = Epilogue::kStore) {
    return {.weight = linear.weight, .bias = linear.bias, .out = out, .epilogue = epilogue};
  }
  void MatMul(const Tensor& x, std::initializer_list<Projection> projections) {
    backend_.MatMul(Queue::kCompute, x, {projections.begin(), projections.size()});
  }

  B& backend_;
  const WorkspaceShape shape_;
  const int64_t head_dim_;
  const Workspace& work_;
};

}  // namespace infinigen
