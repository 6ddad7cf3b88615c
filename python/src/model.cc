#include "bindings.h"

namespace infinigen::python {
namespace {

nb::bytes Bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

void BindPlan(nb::module_& module) {
  nb::class_<v1::Plan>(module, "Plan", "The memory that an engine will allocate, computed before any is.")
      .def_ro("fits", &v1::Plan::fits)
      .def_ro("refusal", &v1::Plan::refusal, "Why it does not fit; empty if it does.")
      .def_ro("text", &v1::Plan::text, "The plan as several lines for people.")
      .def_ro("context", &v1::Plan::context, "Tokens of a prompt and its answer.")
      .def_ro("batch", &v1::Plan::batch, "Sequences that run at once.")
      .def_ro("largest_context", &v1::Plan::largest_context, "The largest that fits at this batch; 0: none.")
      .def_ro("weights_bytes", &v1::Plan::weights_bytes)
      .def_ro("pool_bytes", &v1::Plan::pool_bytes, "KV entries.")
      .def_ro("sketch_bytes", &v1::Plan::sketch_bytes)
      .def_ro("hot_bytes", &v1::Plan::hot_bytes)
      .def_ro("workspace_bytes", &v1::Plan::workspace_bytes)
      .def_ro("prefill_bytes", &v1::Plan::prefill_bytes)
      .def_ro("total_bytes", &v1::Plan::total_bytes)
      .def_ro("host_bytes", &v1::Plan::host_bytes)
      .def_ro("device_bytes", &v1::Plan::device_bytes)
      .def_ro("available_bytes", &v1::Plan::available_bytes, "Free host memory.")
      .def_ro("prefix_bytes", &v1::Plan::prefix_bytes)
      .def("__str__", [](const v1::Plan& plan) { return plan.text; })
      .def("__repr__", [](const v1::Plan& plan) {
        return "<infinigen.Plan: " + (plan.fits ? std::to_string(plan.total_bytes) + " bytes" : plan.refusal) + ">";
      });
}

void BindInfo(nb::module_& module) {
  nb::class_<v1::ModelInfo>(module, "ModelInfo", "What a model is.")
      .def_ro("name", &v1::ModelInfo::name)
      .def_ro("architecture", &v1::ModelInfo::architecture)
      .def_ro("type", &v1::ModelInfo::type, "Type of most weights.")
      .def_ro("parameters", &v1::ModelInfo::parameters)
      .def_ro("layers", &v1::ModelInfo::layers)
      .def_ro("vocabulary", &v1::ModelInfo::vocabulary)
      .def_ro("context", &v1::ModelInfo::context, "Tokens that the model was trained for.")
      .def_ro("bos", &v1::ModelInfo::bos, "The token that begins a text, or None.")
      .def_ro("eos", &v1::ModelInfo::eos, "Tokens that end an answer.");
}

}  // namespace

void BindModel(nb::module_& module) {
  BindPlan(module);
  BindInfo(module);
  nb::class_<v1::Model>(module, "Model", "An open model: its configuration, mapped weights and tokenizer.")
      .def_static(
          "open",
          [](const std::string& path, nb::object on_warning, nb::object on_notice, nb::object on_progress) {
            PythonCallbacks callbacks(std::move(on_warning), std::move(on_notice), std::move(on_progress));
            return callbacks.Run([&](const v1::Callbacks& inner) { return v1::Model::Open(path, inner); });
          },
          nb::arg("path"), nb::arg("on_warning").none(), nb::arg("on_notice").none(), nb::arg("on_progress").none())
      .def("info", &v1::Model::info)
      .def("has_tokenizer", &v1::Model::has_tokenizer)
      .def("can_chat", &v1::Model::can_chat)
      .def(
          "encode",
          [](const v1::Model& model, const std::string& text, bool add_special) {
            return model.Encode(text, add_special);
          },
          nb::arg("text"), nb::arg("add_special"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "decode",
          [](const v1::Model& model, const std::vector<int32_t>& tokens, bool skip_special) {
            return Bytes(skip_special ? model.DecodePlain(tokens) : model.Decode(tokens));
          },
          nb::arg("tokens"), nb::arg("skip_special"))
      .def("opening", &v1::Model::Opening)
      .def(
          "encode_chat",
          [](const v1::Model& model, const std::vector<std::pair<std::string, std::string>>& messages) {
            std::vector<v1::ChatMessage> inner;
            for (const auto& [role, content] : messages) inner.push_back({role, content});
            nb::gil_scoped_release released;
            return model.EncodeChat(inner);
          },
          nb::arg("messages"));

  nb::class_<v1::Options>(module, "Options", "Options of an engine, as text by the names of the command line's flags.")
      .def(nb::init<>())
      .def(
          "set",
          [](v1::Options& options, const std::string& name, const std::string& value) { options.Set(name, value); },
          nb::arg("name"), nb::arg("value"))
      .def_static("describe", [] {
        std::vector<std::pair<std::string, std::string>> described;
        for (const v1::Options::Description& option : v1::Options::Describe())
          described.emplace_back(option.name, option.help);
        return described;
      });
  module.def("make_plan", &v1::MakePlan, nb::arg("model"), nb::arg("options"),
             nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace infinigen::python
