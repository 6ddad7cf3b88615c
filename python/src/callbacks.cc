#include <string_view>

#include "bindings.h"

namespace infinigen::python {

template <class... Args>
void PythonCallbacks::Call(const nb::object& function, Args&&... arguments) {
  nb::gil_scoped_acquire held;
  if (caught_) return;
  try {
    function(std::forward<Args>(arguments)...);
  } catch (nb::python_error&) {
    caught_ = std::current_exception();
  }
}

PythonCallbacks::PythonCallbacks(nb::object on_warning, nb::object on_notice, nb::object on_progress)
    : on_warning_(std::move(on_warning)), on_notice_(std::move(on_notice)), on_progress_(std::move(on_progress)) {
  if (!on_warning_.is_none())
    callbacks_.on_warning = [this](std::string_view message) { Call(on_warning_, std::string(message)); };
  if (!on_notice_.is_none())
    callbacks_.on_notice = [this](std::string_view message) { Call(on_notice_, std::string(message)); };
  if (!on_progress_.is_none())
    callbacks_.on_progress = [this](int64_t done, int64_t total) { Call(on_progress_, done, total); };
  callbacks_.cancelled = [this] {
    nb::gil_scoped_acquire held;
    if (!caught_ && PyErr_CheckSignals() != 0) Catch();
    return static_cast<bool>(caught_);
  };
}

void PythonCallbacks::Catch() {
  try {
    throw nb::python_error();
  } catch (nb::python_error&) {
    caught_ = std::current_exception();
  }
}

}  // namespace infinigen::python
