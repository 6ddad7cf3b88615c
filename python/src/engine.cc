#include <chrono>
#include <memory>
#include <mutex>

#include "bindings.h"

namespace infinigen::python {
namespace {

// A wait ends so often to look for signals: Ctrl-C is answered at once for a person.
constexpr std::chrono::milliseconds kBetweenSignals{100};

// A stream whose waits can be interrupted.
class PythonStream {
 public:
  explicit PythonStream(v1::Stream stream) : stream_(std::move(stream)) {}

  std::optional<std::string> Next() {
    Await([this](auto timeout) { return stream_.AwaitText(timeout); });
    return stream_.Next();
  }
  v1::Outcome Wait() {
    Await([this](auto timeout) { return stream_.AwaitEnd(timeout); });
    return stream_.Wait();
  }
  bool IsDone() { return stream_.AwaitEnd(std::chrono::milliseconds(0)); }
  void Cancel() { stream_.Cancel(); }

 private:
  // A signal's handler that raises cancels the request.
  template <class F>
  void Await(F ready) {
    while (!ready(std::chrono::milliseconds(0))) {
      {
        nb::gil_scoped_release released;
        if (ready(kBetweenSignals)) return;
      }
      if (PyErr_CheckSignals() == 0) continue;
      stream_.Cancel();
      throw nb::python_error();
    }
  }

  v1::Stream stream_;
};

// An engine that any thread may close while others use it: the last of them destroys it.
class PythonEngine {
 public:
  PythonEngine(const v1::Model& model, const v1::Options& options, nb::object on_warning, nb::object on_notice,
               nb::object on_progress) {
    PythonCallbacks callbacks(std::move(on_warning), std::move(on_notice), std::move(on_progress));
    engine_ =
        callbacks.Run([&](const v1::Callbacks& inner) { return std::make_shared<v1::Engine>(model, options, inner); });
  }
  ~PythonEngine() { Close(); }

  std::vector<PythonStream> Submit(const std::vector<v1::Request>& requests) {
    nb::gil_scoped_release released;
    std::vector<PythonStream> streams;
    for (v1::Stream& stream : Get()->SubmitAll(requests)) streams.emplace_back(std::move(stream));
    return streams;
  }
  v1::EngineStatistics Statistics() {
    nb::gil_scoped_release released;
    return Get()->statistics();
  }
  v1::Plan plan() { return Get()->plan(); }
  void Close() {
    nb::gil_scoped_release released;
    std::shared_ptr<v1::Engine> last;  // destroyed after the lock is released
    const std::lock_guard lock(mutex_);
    last.swap(engine_);
  }
  bool closed() {
    const std::lock_guard lock(mutex_);
    return engine_ == nullptr;
  }

 private:
  std::shared_ptr<v1::Engine> Get() {
    const std::lock_guard lock(mutex_);
    if (engine_ == nullptr) throw v1::Error(v1::ErrorKind::kInvalid, "this LLM is closed");
    return engine_;
  }

  std::mutex mutex_;  // held for a few instructions
  std::shared_ptr<v1::Engine> engine_;
};

// A member of Request::sampling as an attribute of the request.
template <auto Member>
void BindSampling(nb::class_<v1::Request>& request, const char* name) {
  using Value = std::remove_reference_t<decltype(std::declval<v1::Sampling&>().*Member)>;
  request.def_prop_rw(
      name, [](const v1::Request& of) { return of.sampling.*Member; },
      [](v1::Request& of, const Value& value) { of.sampling.*Member = value; });
}

void BindRequest(nb::module_& module) {
  nb::class_<v1::Request> request(module, "Request", "A prompt to complete and how.");
  request.def(nb::init<>())
      .def_rw("prompt", &v1::Request::prompt)
      .def_rw("tokens", &v1::Request::tokens)
      .def_rw("max_tokens", &v1::Request::max_tokens)
      .def_rw("stop", &v1::Request::stop)
      .def_rw("ignore_eos", &v1::Request::ignore_eos)
      .def_rw("kv_full", &v1::Request::kv_full)
      .def_rw("kv_alpha", &v1::Request::kv_alpha)
      .def_rw("kv_cap", &v1::Request::kv_cap)
      .def_rw("kv_mass", &v1::Request::kv_mass)
      .def_rw("kv_tail", &v1::Request::kv_tail)
      .def_rw("logit_bias", &v1::Request::logit_bias)
      .def_rw("top_logprobs", &v1::Request::top_logprobs)
      .def_rw("keep_logits", &v1::Request::keep_logits)
      .def_rw("keep_kv_map", &v1::Request::keep_kv_map)
      .def_rw("score_from", &v1::Request::score_from)
      .def_rw("score_steps", &v1::Request::score_steps);
  BindSampling<&v1::Sampling::temperature>(request, "temperature");
  BindSampling<&v1::Sampling::top_k>(request, "top_k");
  BindSampling<&v1::Sampling::top_p>(request, "top_p");
  BindSampling<&v1::Sampling::min_p>(request, "min_p");
  BindSampling<&v1::Sampling::repeat_penalty>(request, "repeat_penalty");
  BindSampling<&v1::Sampling::repeat_window>(request, "repeat_window");
  BindSampling<&v1::Sampling::presence_penalty>(request, "presence_penalty");
  BindSampling<&v1::Sampling::frequency_penalty>(request, "frequency_penalty");
  BindSampling<&v1::Sampling::seed>(request, "seed");
}

}  // namespace

void BindEngine(nb::module_& module) {
  BindRequest(module);
  nb::class_<PythonStream>(module, "Stream", "A submitted request. Dropping it cancels the request.")
      .def("next", &PythonStream::Next, "Waits for more text; None when the request has ended.")
      .def("wait", &PythonStream::Wait, "Waits until the request has ended.")
      .def("done", &PythonStream::IsDone)
      .def("cancel", &PythonStream::Cancel, "Ends the request at its next step. Any thread.");
  nb::class_<PythonEngine>(module, "Engine", "A running model with its own thread.")
      .def(nb::init<const v1::Model&, const v1::Options&, nb::object, nb::object, nb::object>(), nb::arg("model"),
           nb::arg("options"), nb::arg("on_warning").none(), nb::arg("on_notice").none(), nb::arg("on_progress").none())
      .def("submit", &PythonEngine::Submit, nb::arg("requests"))
      .def("statistics", &PythonEngine::Statistics)
      .def("plan", &PythonEngine::plan)
      .def("close", &PythonEngine::Close)
      .def("closed", &PythonEngine::closed);
}

}  // namespace infinigen::python
