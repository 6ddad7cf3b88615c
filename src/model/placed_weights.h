// A model's weights where a backend reads them: views of the same shapes, on a GPU into its memory. Those of streamed
// layers stay on the host, and come when they are used (model/weight_stream.h).
#pragma once

#include "backend/backend.h"
#include "model/weight_stream.h"
#include "model/weights.h"

namespace infinigen {

template <Backend B>
class WeightPlacer {
 public:
  WeightPlacer(B& backend, WeightStream<B>& stream) : backend_(backend), stream_(stream) {}

  // `on_device`: share of the layers whose weights are placed. The storage of what is returned is empty.
  Result<Weights> PlaceAll(const Weights& host, bool tied_embeddings, double on_device) {
    Weights weights;
    weights.embedding = host.embedding;
    weights.positions = host.positions;
    weights.project_in = host.project_in;
    weights.project_out = host.project_out;
    weights.layers = host.layers;
    weights.final_norm = host.final_norm;
    weights.lm_head = host.lm_head;
    RETURN_IF_ERROR(Place(weights.embedding));
    RETURN_IF_ERROR(Place(weights.positions));
    RETURN_IF_ERROR(stream_.Start(weights.layers, on_device));
    for (LayerWeights& layer : weights.layers) {
      for (NormWeights* norm : {&layer.attention_norm, &layer.mlp_norm}) RETURN_IF_ERROR(Place(*norm));
      for (Linear* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
        RETURN_IF_ERROR(Place(*linear));
    }
    RETURN_IF_ERROR(Place(weights.final_norm));
    for (Linear* linear : {&weights.project_in, &weights.project_out}) RETURN_IF_ERROR(Place(*linear));
    if (tied_embeddings)
      weights.lm_head = {.weight = weights.embedding, .bias = {}};
    else
      RETURN_IF_ERROR(Place(weights.lm_head));
    return Result<Weights>(std::move(weights));
  }

 private:
  Status Place(ConstTensor& tensor) {
    if (!tensor) return Ok();
    ASSIGN_OR_RETURN(tensor, backend_.Place(tensor));
    return Ok();
  }
  Status Place(Linear& linear) {
    RETURN_IF_ERROR(Place(linear.weight));
    return Place(linear.bias);
  }
  Status Place(NormWeights& norm) {
    RETURN_IF_ERROR(Place(norm.weight));
    return Place(norm.bias);
  }

  B& backend_;
  WeightStream<B>& stream_;
};

}  // namespace infinigen
