// Result<T>: a value, or an Error that a user can act on. Every function that can fail for a reason outside the program
// returns one; no exception crosses a module. The message is one line: where (file, tensor, offset), what is wrong,
// what was expected. It often quotes bytes of a file or a client: control characters and malformed UTF-8 in it become
// \xNN, here and so everywhere.
//
//   Result<Config> ParseConfig(...);
//   ASSIGN_OR_RETURN(Config config, ParseConfig(...));   // inside a function that returns a Result or Status
//   return Invalid("{}: field '{}' must be positive, got {}", path, name, value);
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/utf8.h"

namespace infinigen {

enum class ErrorKind {
  kInvalid,      // the input is malformed or contradicts itself
  kUnsupported,  // the input is well formed but uses a feature that is not implemented
  kIo,           // the operating system reported an error: missing file, permission, short read
  kExhausted,    // a limit was reached: memory, pool, queue
};

struct Error {
  Error() = default;
  Error(ErrorKind kind_, std::string_view text) : kind(kind_), message(OneLine(text)) {}

  ErrorKind kind = ErrorKind::kInvalid;
  std::string message;  // valid UTF-8 in one line
};

template <class... Args>
Error Invalid(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kInvalid, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error Unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kUnsupported, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error IoError(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kIo, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
Error Exhausted(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kExhausted, fmt::format(format, std::forward<Args>(args)...)};
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit by design
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  const Error& error() const {
    CHECK(!ok());
    return std::get<1>(state_);
  }

  T& value() & {
    CHECK(ok());
    return std::get<0>(state_);
  }
  const T& value() const& {
    CHECK(ok());
    return std::get<0>(state_);
  }
  // Returns by value, so `for (x : F().value())` and `const T& t = F().value()` do not dangle.
  T value() && {
    CHECK(ok());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Error> state_;
};

struct Ok {};

// A Result without a value.
class [[nodiscard]] Status {
 public:
  Status(Ok) {}                                                  // NOLINT: implicit by design
  Status(Error error) : error_(std::move(error)), ok_(false) {}  // NOLINT
  bool ok() const { return ok_; }
  const Error& error() const {
    CHECK(!ok_);
    return error_;
  }

 private:
  Error error_;
  bool ok_ = true;
};

}  // namespace infinigen

#define INFINIGEN_CONCAT_INNER(a, b) a##b
#define INFINIGEN_CONCAT(a, b) INFINIGEN_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (auto status_ = (expression); !status_.ok()) return status_.error(); \
  } while (false)

#define ASSIGN_OR_RETURN(declaration, expression)                                                    \
  auto INFINIGEN_CONCAT(result_, __LINE__) = (expression);                                           \
  if (!INFINIGEN_CONCAT(result_, __LINE__).ok()) return INFINIGEN_CONCAT(result_, __LINE__).error(); \
  declaration = std::move(INFINIGEN_CONCAT(result_, __LINE__)).value()
