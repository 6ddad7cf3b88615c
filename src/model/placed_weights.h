// A model's weights where a backend reads them: views of the same shapes, on a GPU into its memory. The matrices of
// streamed layers stay on the host and are moved when they are used (model/weight_stream.h). Called by the decoder
// while it is made.
#pragma once

#include <type_traits>

#include "backend/backend.h"
#include "model/parameter_walk.h"
#include "model/weight_stream.h"
#include "model/weights.h"

namespace infinigen {

template <Backend B>
class WeightPlacer {
 public:
  WeightPlacer(B& backend, WeightStream<B>& stream) : backend_(backend), stream_(stream) {}

  // `on_device`: share of the layers whose weights are placed.
  Result<WeightViews> PlaceAll(const WeightViews& host, double on_device) {
    // Before anything is copied, and for streamed matrices too, which are never placed.
    RETURN_IF_ERROR(VisitParameters(host, [&](const Parameter&, const auto& view) -> Status {
      if constexpr (std::is_same_v<decltype(view), const WeightView&>)
        return backend_.CheckWeight(view.type);
      else
        return Ok();
    }));
    WeightViews weights = host;
    RETURN_IF_ERROR(stream_.Start(weights.layers, on_device));
    RETURN_IF_ERROR(VisitParameters(weights, [&](const Parameter& parameter, auto& view) -> Status {
      if (!view || (parameter.role == WeightRole::kLmHead && host.has_tied_head())) return Ok();
      ASSIGN_OR_RETURN(view, backend_.Place(view));
      return Ok();
    }));
    if (host.has_tied_head()) weights.lm_head.weight = weights.embedding;
    return weights;
  }

 private:
  B& backend_;
  WeightStream<B>& stream_;
};

}  // namespace infinigen
