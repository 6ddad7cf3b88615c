#include "tensor/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <limits>

namespace infinigen {
namespace {

class CountingAllocator final : public Allocator {
 public:
  Result<std::byte*> Allocate(size_t bytes) override {
    live += bytes;
    return inner_.Allocate(bytes);
  }
  void Free(std::byte* data, size_t bytes) override {
    live -= bytes;
    inner_.Free(data, bytes);
  }
  size_t live = 0;

 private:
  HostAllocator inner_;
};

TEST(Buffer, OwnsExactlyOnce) {
  CountingAllocator allocator;
  {
    Buffer a = Buffer::Make(allocator, 1000).value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 64, 0u);
    Buffer b = std::move(a);
    EXPECT_EQ(allocator.live, 1000u);
    b = Buffer::Make(allocator, 10).value();
    EXPECT_EQ(b.bytes(), 10u);
  }
  EXPECT_EQ(allocator.live, 0u);
}

TEST(Buffer, UnreasonableSizeIsAnErrorNotACrash) {
  HostAllocator allocator;
  const Result<Buffer> buffer = Buffer::Make(allocator, std::numeric_limits<size_t>::max() / 2);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.error().kind, ErrorKind::kExhausted);
}

#ifdef INFINIGEN_ASAN
TEST(BufferDeathTest, TheAddressSanitizerKnowsTheEnd) {
  HostAllocator allocator;
  for (const size_t bytes : {1000, 4096}) {
    const Buffer buffer = Buffer::Make(allocator, bytes).value();
    const std::byte* data = buffer.data();
    EXPECT_EQ(data[bytes - 1], std::byte{0});
    EXPECT_DEATH(std::exit(std::to_integer<int>(data[bytes])), "use-after-poison") << bytes;
  }
}
#endif

}  // namespace
}  // namespace infinigen
