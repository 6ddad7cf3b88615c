// WeightStream: weights of layers that do not fit on the device. Their matrices stay in host memory and are copied over
// the link while other layers compute. Called by the decoder only.
//
// Streamed layers are spread evenly over the depth, so that one is copied while the resident layers between two of them
// compute. The matrices of a layer are one block in host memory, which is one copy. The device has memory for two
// blocks. Blocks are prefetched in the order of a forward pass; a layer that is used in another order is copied on
// demand. Norms and biases stay on the device.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "model/parameters.h"
#include "model/weights.h"

namespace infinigen {

// Whether a layer is streamed when the share `on_device` of the layers is resident. Streamed layers are spread evenly;
// the last layer is one of them.
inline bool IsStreamed(int64_t layer, int64_t layers, double on_device) {
  const auto streamed = static_cast<int64_t>(std::llround((1.0 - on_device) * static_cast<double>(layers)));
  return (layer + 1) * streamed / layers > layer * streamed / layers;
}

// Calls visit(matrix) for the matrices of a layer, in the order of a block.
template <class Visit>
void VisitMatrices(LayerWeights& layer, Visit&& visit) {
  VisitLayer(0, layer, [&](const Parameter&, auto& view) {
    if constexpr (std::is_same_v<decltype(view), WeightView&>) visit(view);
  });
}
// Bytes of a matrix in a block, where each begins at a multiple of 256.
inline size_t MatrixBytes(const WeightView& matrix) { return (static_cast<size_t>(matrix.bytes()) + 255) / 256 * 256; }
inline size_t BlockBytes(LayerWeights layer) {
  size_t bytes = 0;
  VisitMatrices(layer, [&](const WeightView& matrix) { bytes += MatrixBytes(matrix); });
  return bytes;
}

template <Backend B>
class WeightStream {
 public:
  explicit WeightStream(B& backend) : backend_(backend) {}

  // Copies the matrices of streamed layers to pinned host memory and sets their views in `layers` to null; from here on
  // only Use returns their addresses.
  Status Start(std::span<LayerWeights> layers, double on_device) {
    const auto count = static_cast<int64_t>(layers.size());
    blocks_.resize(layers.size());
    size_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (!IsStreamed(i, count, on_device)) continue;
      LayerWeights& layer = layers[static_cast<size_t>(i)];
      ASSIGN_OR_RETURN(Buffer block, Buffer::Make(backend_.host_memory(), BlockBytes(layer)));
      size_t at = 0;
      VisitMatrices(layer, [&](WeightView& matrix) {
        if (!matrix) return;
        std::memcpy(block.data() + at, matrix.data, static_cast<size_t>(matrix.bytes()));
        at += MatrixBytes(matrix);
        matrix.data = nullptr;
      });
      largest = std::max(largest, block.bytes());
      blocks_[static_cast<size_t>(i)] = std::move(block);
      streamed_.push_back(static_cast<int32_t>(i));
    }
    for (DeviceBlock& block : device_blocks_) {
      if (streamed_.empty()) break;
      ASSIGN_OR_RETURN(block.memory, Buffer::Make(backend_.compute_memory(), largest));
    }
    // From here on both device blocks are full; Done refills them.
    for (size_t i = 0; i < std::min(device_blocks_.size(), streamed_.size()); ++i) Bring(streamed_[i], i);
    return Ok();
  }

  bool streams_any() const { return !streamed_.empty(); }
  bool streams(LayerId layer) const { return !streamed_.empty() && blocks_[layer.index()].bytes() > 0; }

  // The layer's weights with matrices on the device, valid for the compute queue until Done.
  LayerWeights Use(LayerId layer, LayerWeights weights) {
    if (!streams(layer)) return weights;
    const size_t block_index = Find(layer.value());
    if (block_index == device_blocks_.size()) BringNow(layer.value(), Oldest());
    DeviceBlock& at = device_blocks_[Find(layer.value())];
    backend_.Wait(Queue::kCompute, at.arrived);
    at.used = ++uses_;
    at.in_use = true;
    size_t offset = 0;
    VisitMatrices(weights, [&](WeightView& matrix) {
      if (matrix.rows == 0) return;
      matrix.data = at.memory.data() + offset;
      offset += MatrixBytes(matrix);
    });
    return weights;
  }

  // To be called after the last use of the layer was enqueued: starts to copy the next streamed layer that is not on
  // the device to its block.
  void Done(LayerId layer) {
    if (!streams(layer)) return;
    const size_t block_index = Find(layer.value());
    device_blocks_[block_index].free = backend_.Record(Queue::kCompute);
    device_blocks_[block_index].in_use = false;
    const auto here = std::find(streamed_.begin(), streamed_.end(), layer.value()) - streamed_.begin();
    for (int64_t ahead = 1; ahead <= std::ssize(device_blocks_); ++ahead) {
      const int32_t next = streamed_[static_cast<size_t>((here + ahead) % std::ssize(streamed_))];
      if (Find(next) == device_blocks_.size()) return Bring(next, block_index);
    }
  }

 private:
  struct DeviceBlock {
    Buffer memory;
    int32_t layer = -1;
    Ticket arrived, free;
    uint64_t used = 0;
    bool in_use = false;  // used since its latest Done, so compute may still read it
  };

  size_t Find(int32_t layer) const {
    return static_cast<size_t>(std::find_if(device_blocks_.begin(), device_blocks_.end(),
                                            [&](const DeviceBlock& block) { return block.layer == layer; }) -
                               device_blocks_.begin());
  }
  size_t Oldest() const { return device_blocks_[0].used <= device_blocks_[1].used ? 0 : 1; }

  // On demand. The block's present layer may still be in use by a prompt, which copies it again later.
  void BringNow(int32_t layer, size_t block_index) {
    DeviceBlock& at = device_blocks_[block_index];
    if (std::exchange(at.in_use, false)) at.free = backend_.Record(Queue::kCompute);
    Bring(layer, block_index);
  }
  void Bring(int32_t layer, size_t block_index) {
    DeviceBlock& at = device_blocks_[block_index];
    const Buffer& block = blocks_[static_cast<size_t>(layer)];
    backend_.Wait(Queue::kWeights, at.free);
    const ByteMove move{.from = block.data(), .to = at.memory.data(), .bytes = block.bytes()};
    backend_.Move(Queue::kWeights, {&move, 1});
    at.layer = layer;
    at.arrived = backend_.Record(Queue::kWeights);
  }

  B& backend_;
  std::vector<Buffer> blocks_;     // [layers] in host memory; empty if the layer is resident
  std::vector<int32_t> streamed_;  // the streamed layers, ascending
  std::array<DeviceBlock, 2> device_blocks_;
  uint64_t uses_ = 0;
};

// Copies a model's weights to memory that `backend` reads (on a GPU: device memory) and returns their views. The share
// `on_device` of the layers is resident; matrices of the others are streamed.
template <Backend B>
Result<WeightViews> LoadWeightsTo(B& backend, WeightStream<B>& stream, const WeightViews& host, double on_device) {
  // Check all types, including those of streamed matrices, before anything is copied.
  RETURN_IF_ERROR(VisitParameters(host, [&](const Parameter&, const auto& view) -> Status {
    if constexpr (std::is_same_v<decltype(view), const WeightView&>)
      return backend.CheckWeight(view.type);
    else
      return Ok();
  }));
  WeightViews weights = host;
  RETURN_IF_ERROR(stream.Start(weights.layers, on_device));
  RETURN_IF_ERROR(VisitParameters(weights, [&](const Parameter& parameter, auto& view) -> Status {
    if (!view || (parameter.role == WeightRole::kLmHead && host.has_tied_head())) return Ok();
    ASSIGN_OR_RETURN(view, backend.Load(view));
    return Ok();
  }));
  if (host.has_tied_head()) weights.lm_head.weight = weights.embedding;
  return weights;
}

}  // namespace infinigen
