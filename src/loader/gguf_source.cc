#include "loader/gguf_source.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/utf8.h"
#include "loader/checkpoint.h"

namespace infinigen {
namespace {

constexpr uint64_t kMaxParts = 1024;  // limits the files that a hostile name can open; published models have below 100

constexpr std::string_view kSplitCount = "split.count";
constexpr std::string_view kSplitNumber = "split.no";
constexpr std::string_view kSplitTensors = "split.tensors.count";

// The number of parts that a file states; 1 for a file that is not split.
Result<uint64_t> StatedParts(const GgufMetadata& metadata) {
  ASSIGN_OR_RETURN(const std::optional<uint64_t> stated, metadata.Unsigned(kSplitCount));
  return std::max<uint64_t>(stated.value_or(1), 1);  // writers state 0 in a file that is not split
}

Status CheckPart(const GgufFile& file, uint64_t part, uint64_t parts) {
  ASSIGN_OR_RETURN(const uint64_t stated, StatedParts(file.metadata()));
  if (stated != parts) return file.metadata().Mismatch(kSplitCount, fmt::format("{} as in the file names", parts));
  ASSIGN_OR_RETURN(const std::optional<uint64_t> number, file.metadata().Unsigned(kSplitNumber));
  if (number != part - 1)
    return file.metadata().Mismatch(kSplitNumber, fmt::format("{}, the part's number from 0", part - 1));
  return Ok();
}

Result<std::vector<GgufFile>> OpenParts(const std::string& path, GgufFile given, uint64_t parts) {
  GgufPartName name = ParseGgufPartName(path);
  if (name.parts != parts || name.part > parts)
    return Invalid("{}: the file is one of {} parts, but its name does not end in -00001-of-{:05}.gguf", path, parts,
                   parts);
  if (parts > kMaxParts) return Unsupported("{}: {} parts; at most {} are supported", path, parts, kMaxParts);
  const uint64_t given_part = name.part;
  std::vector<GgufFile> files;
  for (name.part = 1; name.part <= parts; ++name.part) {
    if (name.part == given_part) {
      files.push_back(std::move(given));
    } else {
      ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(FormatGgufPartName(name)));
      files.push_back(std::move(file));
    }
    RETURN_IF_ERROR(CheckPart(files.back(), name.part, parts));
  }
  return files;
}

}  // namespace

bool LooksLikeGguf(const std::string& path) {
  std::error_code ignored;  // an unreadable path is no GGUF file
  if (HasGgufSuffix(path)) return !std::filesystem::is_directory(path, ignored);
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::array<char, 4> magic{};
  std::ifstream file(path, std::ios::binary);
  return file.read(magic.data(), magic.size()) && std::string_view(magic.data(), magic.size()) == "GGUF";
}

Result<GgufSource> GgufSource::Open(const std::string& path) {
  ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  ASSIGN_OR_RETURN(const uint64_t parts, StatedParts(file.metadata()));
  if (parts == 1) {
    std::vector<GgufFile> files;
    files.push_back(std::move(file));
    return Make(std::move(files));
  }
  ASSIGN_OR_RETURN(std::vector<GgufFile> files, OpenParts(path, std::move(file), parts));
  return Make(std::move(files));
}

std::vector<std::string> GgufSource::paths() const {
  std::vector<std::string> paths;
  for (const GgufFile& file : files_) paths.push_back(file.path());
  return paths;
}

Result<GgufSource> GgufSource::Make(std::vector<GgufFile> files) {
  std::vector<StoredTensor> tensors;
  for (const GgufFile& file : files)
    for (const GgufTensor& tensor : file.tensors())
      tensors.push_back({.name = tensor.name,
                         .path = file.path(),
                         .type_name = tensor.type->name,
                         .type = WeightTypeOf(*tensor.type),
                         .shape = tensor.shape(),
                         .bytes = file.Data(tensor)});
  std::sort(tensors.begin(), tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                        [](const StoredTensor& a, const StoredTensor& b) { return a.name == b.name; });
  if (twice != tensors.end())
    return Invalid("{}: tensor {} is also in {}; each tensor must be in one file", twice->path, Quoted(twice->name),
                   std::next(twice)->path);
  const GgufMetadata& metadata = files[0].metadata();
  if (files.size() > 1) {
    ASSIGN_OR_RETURN(const std::optional<uint64_t> stated, metadata.Unsigned(kSplitTensors));
    if (stated && *stated != tensors.size())
      return metadata.Mismatch(kSplitTensors, fmt::format("{}, the number of tensors in all parts", tensors.size()));
  }
  return GgufSource(std::move(files), std::move(tensors));
}

Result<std::unique_ptr<const TensorSource>> OpenTensorSource(const std::string& path) {
  if (LooksLikeGguf(path)) {
    ASSIGN_OR_RETURN(GgufSource source, GgufSource::Open(path));
    return std::unique_ptr<const TensorSource>(std::make_unique<GgufSource>(std::move(source)));
  }
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(path));
  return std::unique_ptr<const TensorSource>(std::make_unique<Checkpoint>(std::move(checkpoint)));
}

}  // namespace infinigen
