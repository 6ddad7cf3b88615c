// What a build with sanitizers (INFINIGEN_SANITIZE) does differently: a wrong access shows in a small shape as in a
// large one, so the few tests that take half a minute there are given less to do. The release build runs all of it.
#pragma once

namespace infinigen {

#ifdef INFINIGEN_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace infinigen
