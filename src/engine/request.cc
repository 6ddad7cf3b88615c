#include "engine/request.h"

#include <array>

namespace infinigen {

bool MayFollow(RequestState from, RequestState to) {
  using enum RequestState;
  if (to == kCancelled) return from != kDone && from != kCancelled;
  switch (from) {
    case kQueued:
      return to == kAdmitted || to == kDone;  // done: with an error, if it can never be admitted
    case kAdmitted:
      return to == kPrefilling || to == kPreempted || to == kDone;
    case kPrefilling:
      return to == kDecoding || to == kPreempted || to == kDone;
    case kDecoding:
      return to == kDone || to == kPreempted;
    case kPreempted:
      return to == kQueued;
    case kDone:
    case kCancelled:
      return false;
  }
  return false;
}

std::string_view Name(FinishReason reason) {
  constexpr std::array<std::string_view, 5> kNames = {"stop", "stop", "length", "cancelled", "error"};
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace infinigen
