#include <nanobind/ndarray.h>

#include "bindings.h"

namespace infinigen::python {
namespace {

// Numpy arrays that cannot be written and keep their owner alive.
using Floats = nb::ndarray<nb::numpy, const float, nb::ndim<2>, nb::c_contig>;

Floats View(const std::vector<float>& values, size_t rows, size_t columns, nb::handle owner) {
  return Floats(values.data(), {rows, columns}, owner);
}

void BindStatistics(nb::module_& module) {
  nb::class_<v1::KvStatistics>(module, "KvStatistics", "What decode steps attended to and fetched (docs/heart.md).")
      .def_ro("steps", &v1::KvStatistics::steps)
      .def_ro("selected_ratio", &v1::KvStatistics::selected_ratio)
      .def_ro("extra_ratio", &v1::KvStatistics::extra_ratio)
      .def_ro("attended_ratio", &v1::KvStatistics::attended_ratio, "Share of the entries that attention read.")
      .def_ro("read_bytes", &v1::KvStatistics::read_bytes)
      .def_ro("fetched_bytes", &v1::KvStatistics::fetched_bytes)
      .def_ro("hit_ratio", &v1::KvStatistics::hit_ratio, "Hits of the hot set; None if nothing is fetched.")
      .def_ro("evicted", &v1::KvStatistics::evicted)
      .def("__repr__", [](const v1::KvStatistics& kv) {
        return "<infinigen.KvStatistics: " + std::to_string(kv.steps) + " steps, attended_ratio " +
               std::to_string(kv.attended_ratio) + ">";
      });
  nb::class_<v1::EngineStatistics>(module, "EngineStatistics", "Counters of an engine since its start.")
      .def_ro("running", &v1::EngineStatistics::running)
      .def_ro("waiting", &v1::EngineStatistics::waiting)
      .def_ro("prompt_tokens", &v1::EngineStatistics::prompt_tokens)
      .def_ro("reused_tokens", &v1::EngineStatistics::reused_tokens)
      .def_ro("decode_tokens", &v1::EngineStatistics::decode_tokens)
      .def_ro("preemptions", &v1::EngineStatistics::preemptions)
      .def_ro("pool_bytes", &v1::EngineStatistics::pool_bytes)
      .def_ro("pool_peak_bytes", &v1::EngineStatistics::pool_peak_bytes)
      .def_ro("prefix_bytes", &v1::EngineStatistics::prefix_bytes)
      .def_ro("kv", &v1::EngineStatistics::kv);
}

}  // namespace

void BindOutcome(nb::module_& module) {
  BindStatistics(module);
  nb::class_<v1::TokenLogprob>(module, "TokenLogprob", "A token and the logarithm of its probability.")
      .def_ro("token", &v1::TokenLogprob::token)
      .def_ro("logprob", &v1::TokenLogprob::logprob)
      .def("__repr__", [](const v1::TokenLogprob& one) {
        return "TokenLogprob(" + std::to_string(one.token) + ", " + std::to_string(one.logprob) + ")";
      });
  nb::class_<v1::TokenLogprobs>(module, "TokenLogprobs",
                                "The log probabilities of a token and of the most likely ones.")
      .def_prop_ro("token", [](const v1::TokenLogprobs& of) { return of.chosen.token; })
      .def_prop_ro("logprob", [](const v1::TokenLogprobs& of) { return of.chosen.logprob; })
      .def_ro("top", &v1::TokenLogprobs::top, "The most likely tokens, best first.");
  nb::class_<v1::Outcome>(module, "Outcome", "The end of a request.")
      .def_ro("text", &v1::Outcome::text)
      .def_ro("tokens", &v1::Outcome::tokens)
      .def_ro("finish_reason", &v1::Outcome::finish_reason)
      .def_ro("prompt_tokens", &v1::Outcome::prompt_tokens)
      .def_ro("cached_tokens", &v1::Outcome::cached_tokens)
      .def_ro("queue_s", &v1::Outcome::queue_s)
      .def_ro("prefill_s", &v1::Outcome::prefill_s)
      .def_ro("decode_s", &v1::Outcome::decode_s)
      .def_ro("kv", &v1::Outcome::kv)
      .def_ro("logprobs", &v1::Outcome::logprobs)
      .def_ro("scores", &v1::Outcome::scores)
      .def_prop_ro("logits",
                   [](nb::handle self) {
                     const v1::Outcome& outcome = *nb::inst_ptr<v1::Outcome>(self);
                     const size_t rows = outcome.tokens.size();
                     return View(outcome.logits, outcome.logits.empty() ? 0 : rows,
                                 outcome.logits.empty() ? 0 : outcome.logits.size() / rows, self);
                   })
      .def_prop_ro("map_steps", [](const v1::Outcome& outcome) { return outcome.kv_map.steps; })
      .def_prop_ro("map_share", [](nb::handle self) {
        const v1::KvMap& map = nb::inst_ptr<v1::Outcome>(self)->kv_map;
        return View(map.share, static_cast<size_t>(map.layers), static_cast<size_t>(map.rows), self);
      });
}

}  // namespace infinigen::python
