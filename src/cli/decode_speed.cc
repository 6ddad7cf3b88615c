#include "cli/decode_speed.h"

#include <vector>

#include "cli/interrupt.h"
#include "runtime/clock.h"

namespace infinigen {
namespace {

// False: interrupted.
Result<bool> Prefill(Executor& executor, SeqSlot slot, std::span<const int32_t> tokens, Timing& timing,
                     const std::function<void(int64_t unit, int64_t units)>& on_prefill) {
  const Clock::time_point start = Clock::now();
  RETURN_IF_ERROR(executor.BeginPrefill(slot, 0, tokens));
  const int64_t units = executor.PrefillUnits(slot);
  bool done = false;
  for (int64_t unit = 1; !done && !Interrupted(); ++unit) {
    done = executor.RunPrefillUnit(slot);
    on_prefill(unit, units);
  }
  executor.EndPrefill(slot);
  timing.prefill_s = Seconds(start);
  timing.prefill_tokens = static_cast<int64_t>(tokens.size());
  return done;
}

}  // namespace

Result<DecodeSpeed> MeasureDecode(Executor& executor, std::span<const int32_t> tokens, int64_t steps,
                                  const std::function<void(int64_t unit, int64_t units)>& on_prefill) {
  CHECK(steps > 0 && steps < static_cast<int64_t>(tokens.size()));
  DecodeSpeed speed{.depth = static_cast<int64_t>(tokens.size()) - steps};
  ASSIGN_OR_RETURN(const SeqSlot slot, executor.Admit(static_cast<int64_t>(tokens.size())));
  const Result<bool> prefilled =
      Prefill(executor, slot, tokens.first(static_cast<size_t>(speed.depth)), speed.timing, on_prefill);
  std::vector<float> logits(static_cast<size_t>(executor.config().vocab));
  StepItem item{.slot = slot, .row = speed.depth};
  for (; prefilled.ok() && *prefilled && item.row < static_cast<int64_t>(tokens.size()) && !Interrupted(); ++item.row) {
    item.token = tokens[static_cast<size_t>(item.row)];
    const Clock::time_point start = Clock::now();
    executor.Step({&item, 1}, logits);
    const double elapsed = Seconds(start);
    speed.timing.decode_s += elapsed;
    speed.timing.step_ms.push_back(static_cast<float>(elapsed * 1e3));
    ++speed.timing.decode_tokens;
  }
  speed.complete = speed.timing.decode_tokens == steps;
  speed.stats = executor.instruments().Stats();
  speed.pool = {executor.instruments().pool_bytes(), executor.instruments().pool_peak_bytes()};
  executor.Release(slot);
  if (!prefilled.ok()) return prefilled.error();
  return speed;
}

}  // namespace infinigen
