#include "eval/full_cache.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <tuple>

#include "base/check.h"
#include "base/mmap_file.h"
#include "base/new_file.h"

namespace infinigen {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnding = ".hidden";

struct Header {
  char magic[8] = {'I', 'G', 'H', 'I', 'D', 'D', 'E', '1'};
  uint64_t numbers = 0;
  uint64_t checksum = 0;  // of the numbers
};

std::string Hex(const XXH128_hash_t& hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

uint64_t Checksum(std::span<const float> numbers) { return XXH3_64bits(numbers.data(), numbers.size_bytes()); }

// The bytes of the running program; empty if they cannot be read.
std::string HashOfProgram() {
  const Result<MmapFile> program = MmapFile::Open("/proc/self/exe");
  return program.ok() ? Hex(XXH3_128bits(program->bytes().data(), program->bytes().size())) : "";
}

// The numbers of a file; an error says what is wrong with it.
Status ReadNumbers(const std::string& path, std::span<float> numbers) {
  ASSIGN_OR_RETURN(const MmapFile file, MmapFile::Open(path));
  const std::span<const std::byte> bytes = file.bytes();
  Header header;
  if (bytes.size() != sizeof(header) + numbers.size_bytes())
    return Invalid("{}: {} bytes instead of {}", path, bytes.size(), sizeof(header) + numbers.size_bytes());
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::memcpy(numbers.data(), bytes.data() + sizeof(header), numbers.size_bytes());
  if (std::memcmp(header.magic, Header().magic, sizeof(header.magic)) != 0 || header.numbers != numbers.size() ||
      header.checksum != Checksum(numbers))
    return Invalid("{}: damaged", path);
  return Ok();
}

}  // namespace

std::optional<FullCache> FullCache::Open(const Model& model, Executor& full, int64_t from, uint64_t limit_bytes,
                                         const Callbacks& callbacks) {
  const std::string directory = CachedFullDirectory();
  if (directory.empty()) return std::nullopt;
  std::error_code failed;
  fs::create_directories(directory, failed);
  if (failed) {
    callbacks.Warn(fmt::format("{}: {}; the predictions of full are not kept", directory, failed.message()));
    return std::nullopt;
  }
  const ExecutorOptions& options = full.options();
  CHECK(options.is_full());
  const std::string key = fmt::format("full 1, {}, {}, {}, device {}, entries {}, activations {}, from {}",
                                      IdentifyModel(model.config, model.weights).Hex(), HashOfProgram(),
                                      full.instruments().device_name(), static_cast<int>(options.device),
                                      static_cast<int>(options.kv_type), static_cast<int>(options.activation), from);
  return FullCache(directory, key, full, from, limit_bytes, callbacks);
}

FullCache::FullCache(std::string directory, std::string key, Executor& full, int64_t from, uint64_t limit_bytes,
                     Callbacks callbacks)
    : directory_(std::move(directory)),
      key_(std::move(key)),
      full_(&full),
      from_(from),
      limit_bytes_(limit_bytes),
      callbacks_(std::move(callbacks)) {}

std::string FullCache::PathOf(std::span<const int32_t> fed) const {
  std::string text = fmt::format("{}, from {}, tokens ", key_, from_);
  text.append(reinterpret_cast<const char*>(fed.data()), fed.size_bytes());
  return fmt::format("{}/{}{}", directory_, Hex(XXH3_128bits(text.data(), text.size())), kEnding);
}

Result<bool> FullCache::Read(size_t index, std::span<const int32_t> fed) {
  CHECK(std::ssize(fed) > from_);
  if (read_.contains(index)) return true;
  const int64_t rows = std::ssize(fed) - from_;
  std::vector<float> hidden(static_cast<size_t>(rows * full_->config().hidden));
  const std::string path = PathOf(fed);
  std::error_code ignored;
  bool found = fs::exists(path, ignored);
  if (found) {
    const Status read = ReadNumbers(path, hidden);
    if (!read.ok()) callbacks_.Warn(fmt::format("{}; it is made again", read.error().message));
    found = read.ok();
  }
  if (found) {
    ++hits_;
    fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  } else {
    ASSIGN_OR_RETURN(const bool whole, Make(fed, hidden));
    if (!whole) return false;
    if (const Status written = Write(path, hidden); !written.ok())
      callbacks_.Warn(fmt::format("{}; the predictions of full are not kept", written.error().message));
  }
  read_.emplace(index, std::move(hidden));
  return true;
}

Result<bool> FullCache::Make(std::span<const int32_t> fed, std::vector<float>& hidden) {
  WindowReader reader(*full_, callbacks_, /*keep=*/0, from_);
  ASSIGN_OR_RETURN(const bool whole, reader.Read(0, fed));
  if (!whole) return false;
  RETURN_IF_ERROR(reader.Hidden(0, from_, std::ssize(fed) - from_, hidden));
  return true;
}

Status FullCache::Logits(size_t index, int64_t row, int64_t count, std::span<float> logits) {
  const auto found = read_.find(index);
  CHECK(found != read_.end() && row >= from_);
  const int64_t width = full_->config().hidden;
  return full_->instruments().LogitsOfHidden(
      std::span(found->second).subspan(static_cast<size_t>((row - from_) * width), static_cast<size_t>(count * width)),
      logits);
}

Status FullCache::Write(const std::string& path, std::span<const float> hidden) const {
  const Header header{.numbers = hidden.size(), .checksum = Checksum(hidden)};
  if (sizeof(header) + hidden.size_bytes() > limit_bytes_) return Ok();  // a larger limit was not asked for
  NewFile file(path);
  RETURN_IF_ERROR(file.Begin(sizeof(header) + hidden.size_bytes()));
  RETURN_IF_ERROR(file.Append({reinterpret_cast<const char*>(&header), sizeof(header)}));
  RETURN_IF_ERROR(file.Append({reinterpret_cast<const char*>(hidden.data()), hidden.size_bytes()}));
  RETURN_IF_ERROR(file.Finish());
  DeleteOldest();
  return Ok();
}

void FullCache::DeleteOldest() const {
  struct Kept {
    fs::file_time_type used;
    fs::path path;
    uint64_t bytes;
  };
  std::vector<Kept> all;
  uint64_t bytes = 0;
  std::error_code failed;  // another process may delete files too
  for (fs::directory_iterator at(directory_, failed), end; !failed && at != end; at.increment(failed)) {
    if (at->path().extension() != kEnding) continue;
    std::error_code gone;
    const Kept one{at->last_write_time(gone), at->path(), at->file_size(gone)};
    if (gone) continue;
    bytes += one.bytes;
    all.push_back(one);
  }
  std::sort(all.begin(), all.end(),
            [](const Kept& a, const Kept& b) { return std::tie(a.used, a.path) < std::tie(b.used, b.path); });
  for (const Kept& one : all) {
    if (bytes <= limit_bytes_) return;
    std::error_code ignored;
    fs::remove(one.path, ignored);
    bytes -= one.bytes;
  }
}

}  // namespace infinigen
