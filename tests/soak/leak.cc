// A leak on purpose, for the soak's test of itself: loaded into the server with LD_PRELOAD, it allocates and writes 2
// MiB every second and never frees them.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>

namespace {

[[gnu::constructor]] void Start() {
  std::thread([] {
    for (;;) {
      const timespec pause{0, 250'000'000};
      nanosleep(&pause, nullptr);
      constexpr size_t kBytes = size_t{512} << 10;
      if (void* block = std::malloc(kBytes)) std::memset(block, 1, kBytes);
    }
  }).detach();
}

}  // namespace
