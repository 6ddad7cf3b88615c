// StrongIndex<Tag>: an integer id of one kind of object. The compiler rejects a LayerId where a KvHead is expected. Ids
// can be compared and, through index(), used as subscripts; they have no arithmetic.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/check.h"

namespace infinigen {

template <class Tag>
class StrongIndex {
 public:
  StrongIndex() = default;
  explicit constexpr StrongIndex(int64_t value) : value_(static_cast<int32_t>(value)) {
    DCHECK(value >= 0 && value <= INT32_MAX);
  }

  constexpr int32_t value() const { return value_; }
  constexpr size_t index() const { return static_cast<size_t>(value_); }
  auto operator<=>(const StrongIndex&) const = default;

 private:
  int32_t value_ = 0;
};

// for (LayerId layer : IdRange<LayerId>(layers))
template <class Id>
class IdRange {
 public:
  explicit IdRange(int64_t count) : count_(count) { CHECK(count >= 0); }
  class Iterator {
   public:
    explicit Iterator(int64_t value) : value_(value) {}
    Id operator*() const { return Id(value_); }
    Iterator& operator++() {
      ++value_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return value_ != other.value_; }

   private:
    int64_t value_;
  };
  Iterator begin() const { return Iterator(0); }
  Iterator end() const { return Iterator(count_); }

 private:
  int64_t count_;
};

}  // namespace infinigen

template <class Tag>
struct std::hash<infinigen::StrongIndex<Tag>> {
  size_t operator()(infinigen::StrongIndex<Tag> id) const { return std::hash<int32_t>()(id.value()); }
};
