#include "model/layer_plan.h"

namespace infinigen {
namespace {

EntrySource SourceOf(const WorkspaceShape& shape, Pass pass, LayerId layer) {
  const KvMethod& method = shape.method;
  if (!shape.remote || shape.pool.on_device(layer.value())) return EntrySource::kPool;
  if (pass == Pass::kStep) {
    if (!method.selects()) return EntrySource::kStage;
    return shape.fetches && shape.selects(layer) ? EntrySource::kFetched : EntrySource::kPool;
  }
  // Evicting layers prefill in a PromptCache instead of a stage.
  return shape.evicts(layer) ? EntrySource::kPool : EntrySource::kStage;
}

}  // namespace

std::vector<LayerPlan> PlanLayers(const WorkspaceShape& shape, Pass pass) {
  const KvMethod& method = shape.method;
  std::vector<LayerPlan> plans;
  for (LayerId layer : IdRange<LayerId>(shape.config.layers)) {
    LayerPlan& plan = plans.emplace_back();
    plan.layer = layer;
    plan.spec = &shape.config.specs[layer.index()];
    plan.selects = pass != Pass::kPrefill && shape.selects(layer);
    plan.evicts = shape.evicts(layer);
    plan.has_index = shape.has_index(layer);
    plan.entries = SourceOf(shape, pass, layer);
    if (plan.selects) plan.query = method.from;
    plan.ahead = plan.entries == EntrySource::kFetched && method.guesses_from_layer();
    if (layer.value() == 0) continue;
    LayerPlan& before = plans[layer.index() - 1];
    before.leaves_guess = plan.selects && method.guesses_from_layer();
    if (plan.ahead)
      before.select_next =
          method.from == GuessSource::kPrevLayer ? SelectNext::kBeforeAttention : SelectNext::kAfterAttention;
  }
  return plans;
}

}  // namespace infinigen
