// What the files of the extension module share. They bind the public C++ API (include/infinigen/infinigen.h) and keep
// its names in Python's spelling; python/infinigen turns them into the package that users see. Whatever may take long
// runs without the GIL.
#pragma once

#include <infinigen/infinigen.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <utility>

namespace infinigen::python {

namespace nb = nanobind;

void BindModel(nb::module_& module);    // Model, ModelInfo, Options, Plan
void BindOutcome(nb::module_& module);  // what a request answers, as views without copies
void BindEngine(nb::module_& module);   // Request, Engine, Stream

// The library's callbacks as Python functions, for work that a signal may interrupt. Each function may be None. An
// exception in one of them, or in a signal's handler, cancels the work and is raised after it.
class PythonCallbacks {
 public:
  PythonCallbacks(nb::object on_warning, nb::object on_notice, nb::object on_progress);

  // Runs work(callbacks) without the GIL.
  template <class F>
  auto Run(F work) {
    try {
      auto result = [&] {
        nb::gil_scoped_release released;
        return work(callbacks_);
      }();
      if (caught_) std::rethrow_exception(caught_);
      return result;
    } catch (const v1::Error&) {
      if (caught_) std::rethrow_exception(caught_);
      throw;
    }
  }

 private:
  // Keeps the current Python error. Precondition: the GIL is held.
  void Catch();
  template <class... Args>
  void Call(const nb::object& function, Args&&... arguments);

  nb::object on_warning_, on_notice_, on_progress_;
  std::exception_ptr caught_;
  v1::Callbacks callbacks_;
};

}  // namespace infinigen::python
