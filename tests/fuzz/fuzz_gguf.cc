// Opens the input as a GGUF file: header, then configuration and tokenizer from its metadata, then the weights. The
// tensors of an accepted file lie inside it, and errors are one line.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "loader/gguf_source.h"
#include "model/gguf_config.h"
#include "model/weights.h"
#include "runtime/gguf_tokenizer.h"

namespace infinigen {
namespace {

template <class R>
bool Accepted(const R& result) {
  if (!result.ok()) CHECK(result.error().message.find('\n') == std::string::npos);
  return result.ok();
}

void Open(const std::string& path) {
  Result<GgufSource> opened = GgufSource::Open(path);
  if (!Accepted(opened)) return;
  auto source = std::make_unique<const GgufSource>(std::move(opened).value());
  uint64_t sum = 0;
  for (const StoredTensor& tensor : source->tensors())
    for (const std::byte byte : tensor.bytes) sum += static_cast<uint8_t>(byte);
  for (const GgufEntry& entry : source->metadata().entries()) {
    CHECK(entry.value.Shown().find('\n') == std::string::npos);
    if (const auto strings = source->metadata().Strings(entry.key); strings.ok() && *strings)
      for (const std::string_view text : **strings) sum += text.size();
  }
  CHECK(sum != UINT64_MAX);  // the bytes are read
  const Result<GgufTokenizer> read = ReadGgufTokenizer(source->metadata());
  if (Accepted(read) && read->tokenizer != nullptr) {
    const auto ids = read->tokenizer->Encode("the hello\n 12 <|end|> \xff");
    if (Accepted(ids)) read->tokenizer->Decode(*ids, false);
  }
  const Result<ModelConfig> config = ReadGgufConfig(*source);
  if (!Accepted(config)) return;
  Accepted(LoadWeights(std::move(source), *config));
}

}  // namespace
}  // namespace infinigen

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  CHECK(fd >= 0 && ::write(fd, data, size) == static_cast<ssize_t>(size));
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (size >= 4 && infinigen::LooksLikeGguf(path)) infinigen::Open(path);
  ::close(fd);
  return 0;
}
