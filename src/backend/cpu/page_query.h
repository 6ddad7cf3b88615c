// The scaled queries that a page's index is multiplied with. Private to the CPU backend.
#pragma once

#include <cstdint>

namespace infinigen {

// The queries of one KV head, as vectors whose dot product with a page's numbers is the page's score.
struct PageQuery {
  int64_t group = 0;
  int64_t numbers = 0;     // of a page
  int64_t stride = 0;      // from head to head, a multiple of any target's lanes
  float* parts = nullptr;  // [group][stride], zeros after `numbers`

  static int64_t Stride(int64_t numbers) { return (numbers + 15) / 16 * 16; }
};

}  // namespace infinigen
