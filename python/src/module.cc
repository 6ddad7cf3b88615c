// infinigen._core: the extension module of the Python package.
#include "bindings.h"

namespace infinigen::python {
namespace {

const char* ClassOf(v1::ErrorKind kind) {
  switch (kind) {
    case v1::ErrorKind::kInvalid:
      return "InvalidError";
    case v1::ErrorKind::kUnsupported:
      return "UnsupportedError";
    case v1::ErrorKind::kIo:
      return "IoError";
    case v1::ErrorKind::kExhausted:
      return "ExhaustedError";
  }
  return "Error";
}

// The library's errors become the classes of infinigen._errors, with its sentence.
void Translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const v1::Error& error) {
    const nb::object type = nb::module_::import_("infinigen._errors").attr(ClassOf(error.kind()));
    PyErr_SetString(type.ptr(), error.what());
  }
}

}  // namespace
}  // namespace infinigen::python

NB_MODULE(_core, module) {
  module.doc() = "The C++ library; use the classes of the package infinigen instead.";
  nanobind::set_leak_warnings(false);  // an engine that is alive when the interpreter ends is no mistake
  nanobind::register_exception_translator(infinigen::python::Translate);
  module.def("version", &infinigen::v1::Version);
  infinigen::python::BindModel(module);
  infinigen::python::BindOutcome(module);
  infinigen::python::BindEngine(module);
}
