#include "engine/request.h"

#include <gtest/gtest.h>

namespace infinigen {
namespace {

TEST(RequestState, FinalStatesAreFinalAndCancelIsAlwaysPossibleBefore) {
  using enum RequestState;
  for (RequestState from : {kQueued, kAdmitted, kPrefilling, kDecoding, kPreempted})
    EXPECT_TRUE(MayFollow(from, kCancelled));
  for (RequestState final_state : {kDone, kCancelled})
    for (RequestState to : {kQueued, kAdmitted, kPrefilling, kDecoding, kPreempted, kDone, kCancelled})
      EXPECT_FALSE(MayFollow(final_state, to));
}

TEST(RequestState, NoStageIsSkippedOnTheWayForward) {
  using enum RequestState;
  EXPECT_TRUE(MayFollow(kQueued, kAdmitted));
  EXPECT_FALSE(MayFollow(kQueued, kPrefilling));
  EXPECT_FALSE(MayFollow(kAdmitted, kDecoding));
  EXPECT_FALSE(MayFollow(kDecoding, kPrefilling));
  EXPECT_TRUE(MayFollow(kDecoding, kPreempted));
  EXPECT_TRUE(MayFollow(kPreempted, kQueued));
}

}  // namespace
}  // namespace infinigen
