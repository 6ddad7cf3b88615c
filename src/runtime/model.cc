#include "runtime/model.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/machine.h"
#include "base/size.h"
#include "base/utf8.h"
#include "hub/hub.h"
#include "loader/gguf_source.h"
#include "model/gguf_config.h"
#include "runtime/gguf_tokenizer.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

bool IsRegularFile(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool IsDirectory(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The file that this code was loaded from: the program, or libinfinigen.so. Empty if that is unknown.
std::string PathOfThisCode() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&PathOfThisCode), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;  // leaves the path empty
  return std::filesystem::canonical(info.dli_fname, error).string();
}

// The only GGUF model of a directory without config.json; `directory` itself if it has none.
Result<std::string> ModelInDirectory(const std::string& directory) {
  if (IsRegularFile(directory + "/config.json")) return directory;
  std::set<std::string> found;  // of a split model, its first part
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    if (path.ends_with(".safetensors")) return directory;
    if (!HasGgufSuffix(path)) continue;
    GgufPartName part = ParseGgufPartName(path);
    if (part.parts != 0) part.part = 1;
    found.insert(part.parts == 0 ? path : FormatGgufPartName(part));
  }
  if (error) return IoError("{}: cannot list: {}", directory, error.message());
  if (found.empty()) return directory;
  if (found.size() == 1) return *found.begin();
  return Invalid("{}: holds {} GGUF models; pass one of the files, for example {}", directory, found.size(),
                 *found.begin());
}

// What the metadata describes: configuration and tokenizer.
Status ReadGgufModel(const GgufSource& source, ModelConfig& config, std::unique_ptr<Tokenizer>& tokenizer) {
  ASSIGN_OR_RETURN(config, ReadGgufConfig(source));
  ASSIGN_OR_RETURN(GgufTokenizer read, ReadGgufTokenizer(source.metadata()));
  tokenizer = std::move(read.tokenizer);
  std::set<int64_t> ends(config.eos_ids.begin(), config.eos_ids.end());
  for (const int64_t id : read.end_ids)
    if (id < config.vocab) ends.insert(id);
  config.eos_ids.assign(ends.begin(), ends.end());
  return Ok();
}

Result<std::string> FindHubModel(const std::string& text, const Callbacks& callbacks) {
  ASSIGN_OR_RETURN(const HubName name, ParseHubName(text));
  ASSIGN_OR_RETURN(const HubEnvironment environment, ReadHubEnvironment());
  const HubHooks hooks{.warn = callbacks.on_warning,
                       .notice = callbacks.on_notice,
                       .progress =
                           [&](uint64_t done, uint64_t total) {
                             callbacks.Progress({.kind = WorkKind::kDownload,
                                                 .done = static_cast<int64_t>(done),
                                                 .total = static_cast<int64_t>(total)});
                           },
                       .cancelled = callbacks.cancelled};
  const auto check = [](const std::string& directory) -> Status {
    const Result<ModelConfig> config = LoadModelConfig(directory);
    return config.ok() ? Ok() : Status(config.error());
  };
  return ResolveHubModel(name, environment, hooks, check);
}

uint64_t BytesOfFiles(const std::string& directory) {
  uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) bytes += entry->file_size(ignored);
  }
  return bytes;
}

// A snapshot's directory is named after a commit, so the model gets the repository's name.
void NameAfterRepository(const std::string& path, ModelConfig& config) {
  if (std::string name = NameOfSnapshot(path); !name.empty()) config.name = std::move(name);
}

InspectedEntry InspectEntry(const GgufEntry& entry) {
  const GgufValue& value = entry.value;
  const bool is_array = value.type == GgufValueType::kArray;
  return {.key = Escaped(entry.key),
          .type = is_array ? fmt::format("array of {}", Name(value.element)) : std::string(Name(value.type)),
          .value = value.Shown()};
}

}  // namespace

std::vector<std::string> BuiltInDirectories(const std::string& binary, const std::string& data_home,
                                            const std::string& home) {
  using Path = std::filesystem::path;
  constexpr const char* kModel = "models/infinigen-mini";
  constexpr const char* kShared = "infinigen/models/infinigen-mini";  // below a directory of shared data
  constexpr int kLevels = 3;
  std::vector<std::string> directories;
  const auto add = [&](const Path& path) {
    std::string directory = path.string();
    if (std::find(directories.begin(), directories.end(), directory) == directories.end())
      directories.push_back(std::move(directory));
  };
  if (!binary.empty()) {
    Path directory = Path(binary).parent_path();
    add(directory.parent_path() / "share" / kShared);
    for (int level = 0; level < kLevels; ++level, directory = directory.parent_path()) add(directory / kModel);
  }
  add(Path(INFINIGEN_SOURCE_DIR) / kModel);
  // The XDG specification says to ignore a relative XDG_DATA_HOME.
  if (Path(data_home).is_absolute())
    add(Path(data_home) / kShared);
  else if (Path(home).is_absolute())
    add(Path(home) / ".local/share" / kShared);
  add(Path("/usr/local/share") / kShared);
  add(Path("/usr/share") / kShared);
  return directories;
}

Result<std::string> FindBuiltIn(const std::vector<std::string>& directories) {
  for (const std::string& directory : directories)
    if (IsDirectory(directory)) return directory;
  return IoError("the built-in model was not found; pass a model with -m, or put it in one of: {}",
                 fmt::format("{}", fmt::join(directories, ", ")));
}

Result<std::string> FindModel(const std::string& name, const Callbacks& callbacks) {
  if (IsHubName(name)) return FindHubModel(name, callbacks);
  if (name.empty()) {
    const std::string data_home = Environment("XDG_DATA_HOME"), home = Environment("HOME");
    std::error_code error;  // leaves the path empty
    const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", error);
    std::vector<std::string> directories = BuiltInDirectories(binary.string(), data_home, home);
    // In a shared library the model is installed relative to the library, not to the program.
    const std::vector<std::string> beside = BuiltInDirectories(PathOfThisCode(), data_home, home);
    directories.insert(directories.begin(), beside.begin(), beside.end());
    return FindBuiltIn(directories);
  }
  struct stat info {};
  if (::stat(name.c_str(), &info) != 0)
    return IoError("{}: no such model: {}; pass a directory with config.json, a GGUF file, or hf:ORG/NAME", name,
                   std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return ModelInDirectory(name);
  if (LooksLikeGguf(name)) return name;
  return Invalid("{}: neither a directory nor a GGUF file; pass the directory that holds config.json, or a GGUF file",
                 name);
}

std::string TokenizerFile(const std::string& path) {
  if (LooksLikeGguf(path)) return std::filesystem::path(path).filename().string();
  for (const char* file : {"tokenizer.json", "tokenizer.model", "vocab.json"})
    if (IsRegularFile(path + "/" + file)) return file;
  return {};
}

Error NoTokenizer(const std::string& path, std::string_view what) {
  return Invalid("{}: the model has no tokenizer, but {} needs one; {}", path, what,
                 LooksLikeGguf(path) ? "get a GGUF file that contains it"
                                     : "put its tokenizer.json and tokenizer_config.json into this directory");
}

Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& path) {
  if (!LooksLikeGguf(path)) return Tokenizer::Load(path);
  ASSIGN_OR_RETURN(const GgufSource source, GgufSource::Open(path));
  ASSIGN_OR_RETURN(GgufTokenizer read, ReadGgufTokenizer(source.metadata()));
  if (read.tokenizer == nullptr) return NoTokenizer(path, "encoding text");
  return std::move(read.tokenizer);
}

Result<std::unique_ptr<Model>> OpenModel(const std::string& path) {
  const Clock::time_point start = Clock::now();
  auto model = std::make_unique<Model>();
  model->path = path;
  if (LooksLikeGguf(path)) {
    ASSIGN_OR_RETURN(GgufSource opened, GgufSource::Open(path));
    auto source = std::make_unique<const GgufSource>(std::move(opened));
    RETURN_IF_ERROR(ReadGgufModel(*source, model->config, model->tokenizer));
    ASSIGN_OR_RETURN(model->weights, LoadWeights(std::move(source), model->config));
  } else {
    ASSIGN_OR_RETURN(model->config, LoadModelConfig(path));
    NameAfterRepository(path, model->config);
    ASSIGN_OR_RETURN(model->weights, LoadWeights(path, model->config));
    if (!TokenizerFile(path).empty()) {
      ASSIGN_OR_RETURN(model->tokenizer, Tokenizer::Load(path));
    }
  }
  model->weight_type = model->weights.DominantType();
  model->dtype = PlainTypeOf(model->weight_type);
  model->load_s = Seconds(start);
  return model;
}

Result<std::unique_ptr<Model>> RandomModel(const std::string& shape, WeightType type, int threads) {
  const Clock::time_point start = Clock::now();
  auto model = std::make_unique<Model>();
  ASSIGN_OR_RETURN(model->config, ShapeByName(shape));
  const WeightFormat& format = FormatOf(type);
  const uint64_t bytes = static_cast<uint64_t>(ParameterCount(model->config)) *
                         static_cast<uint64_t>(format.block_bytes) / static_cast<uint64_t>(format.block_numbers);
  const uint64_t available = AvailableHostMemory().value_or(UINT64_MAX);
  if (bytes + kMarginBytes > available)
    return Exhausted("--shape {}: the weights take {} in {}, but only {} of memory is available", shape,
                     FormatSize(bytes), Name(type), FormatSize(available));
  ASSIGN_OR_RETURN(model->weights, RandomWeights(model->config, type, 1, threads));
  model->weight_type = type;
  model->dtype = PlainTypeOf(type);
  model->load_s = Seconds(start);
  return model;
}

Result<int64_t> ChooseContext(const ModelConfig& config, int64_t asked) {
  if (asked == 0) return std::min(config.max_positions, kMaxContext);
  if (asked <= config.max_positions) return asked;
  if (config.positions == PositionKind::kLearned)
    return Invalid("--ctx {}: {} has learned positions for only {} tokens; pass at most {}", asked, config.name,
                   config.max_positions, config.max_positions);
  return asked;
}

Status CheckIds(const ModelConfig& config, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids)
    if (id < 0 || id >= config.vocab)
      return Invalid("{}: the tokenizer produced the id {}, but the model's vocabulary ends at {}", config.name, id,
                     config.vocab - 1);
  return Ok();
}

Result<std::vector<int32_t>> OpeningIds(const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> with, tokenizer.Encode("a"));
  ASSIGN_OR_RETURN(const std::vector<int32_t> without, tokenizer.Encode("a", {.add_special = false}));
  const auto text = std::search(with.begin(), with.end(), without.begin(), without.end());
  return std::vector<int32_t>(with.begin(), text);
}

std::vector<std::string> ModelCaches() {
  std::vector<std::string> directories;
  if (std::string foreign = ForeignCacheDirectory(); !foreign.empty()) directories.push_back(std::move(foreign));
  if (const std::string own = OwnCacheDirectory(); !own.empty()) {
    directories.push_back(own + "/hub");
    directories.push_back(own + "/models");
  }
  return directories;
}

std::vector<InstalledModel> InstalledModels() {
  std::vector<InstalledModel> models;
  if (const Result<std::string> built_in = FindModel(""); built_in.ok())
    models.push_back({.form = "safetensors", .bytes = BytesOfFiles(*built_in), .path = *built_in, .cache = "built-in"});
  const auto add = [&](const char* cache, std::vector<CachedModel> found) {
    for (CachedModel& model : found)
      models.push_back({.name = std::move(model.name),
                        .form = std::move(model.form),
                        .bytes = model.bytes,
                        .path = std::move(model.path),
                        .cache = cache,
                        .complete = model.complete});
  };
  add("hub", ListModels(HubCache(ForeignCacheDirectory())));
  const std::string own = OwnCacheDirectory();
  if (own.empty()) return models;
  add("infinigen", ListModels(HubCache(own + "/hub")));
  add("infinigen", ListGgufFiles(own + "/models"));
  return models;
}

Result<Inspection> InspectModel(const std::string& path) {
  Inspection model;
  model.path = path;
  std::unique_ptr<const TensorSource> source;
  if (LooksLikeGguf(path)) {
    ASSIGN_OR_RETURN(GgufSource opened, GgufSource::Open(path));
    RETURN_IF_ERROR(ReadGgufModel(opened, model.config, model.tokenizer));
    for (const GgufEntry& entry : opened.metadata().entries()) model.metadata.push_back(InspectEntry(entry));
    source = std::make_unique<const GgufSource>(std::move(opened));
  } else {
    ASSIGN_OR_RETURN(model.config, LoadModelConfig(path));
    NameAfterRepository(path, model.config);
    ASSIGN_OR_RETURN(source, OpenTensorSource(path));
    if (!TokenizerFile(path).empty()) {
      ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::Load(path));
    }
  }
  std::map<std::string_view, std::vector<InspectedTensor>> files;
  for (const StoredTensor& tensor : source->tensors())
    files[tensor.path].push_back({.name = std::string(tensor.name),
                                  .dtype = std::string(tensor.type_name),
                                  .shape = {tensor.shape.begin(), tensor.shape.end()},
                                  .bytes = tensor.bytes.size()});
  for (auto& [file, tensors] : files) model.files.push_back({std::string(file), std::move(tensors)});
  if (const Result<Weights> weights = LoadWeights(std::move(source), model.config); !weights.ok())
    model.misfit = weights.error().message;
  return model;
}

}  // namespace infinigen
