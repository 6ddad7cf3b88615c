// InfiniGen as a C++ library: open a model, plan its memory, start an engine, submit prompts, stream text.
//
//   infinigen::v1::Model model = infinigen::v1::Model::Open("path/to/model");
//   infinigen::v1::Engine engine(model, infinigen::v1::Options().Set("kv-limit", "8GiB"));
//   infinigen::v1::Stream stream = engine.Submit({.prompt = "Once upon a time", .max_tokens = 64});
//   while (std::optional<std::string> text = stream.Next()) std::cout << *text;
//
// Handles (Model, Engine, Stream) are cheap to move; a Model may also be copied, and lives as long as an engine uses
// it. Functions that fail throw Error, whose sentence says what was wrong, where, and what to do. All functions may be
// called from any thread, except that one Stream belongs to one thread at a time (Cancel may come from any).
//
// The same as a C ABI: infinigen_c.h. docs/library.md explains both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#define INFINIGEN_API __attribute__((visibility("default")))

namespace infinigen::v1 {

// "0.1.0".
INFINIGEN_API const char* Version();

enum class ErrorKind : uint8_t {
  kInvalid,      // the input is malformed or contradicts itself
  kUnsupported,  // well formed, but this build does not do it
  kIo,           // the operating system refused
  kExhausted,    // memory, pool or queue limit
};

class INFINIGEN_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ~Error() override;
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// What the library tells its caller while a model is opened or an engine starts. Each may be empty. They are called on
// the caller's thread and must not call back into the library.
struct Callbacks {
  std::function<void(std::string_view message)> on_warning;  // one sentence
  std::function<void(std::string_view message)> on_notice;   // long work begins: "calibrating … (once per model)"
  std::function<void(int64_t done, int64_t total)> on_progress;
  std::function<bool()> cancelled;  // true ends the start with an Error
};

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct ModelInfo {
  std::string name;
  std::string architecture;  // "llama"
  std::string type;          // of most weights: "bf16"
  int64_t parameters = 0;
  int64_t layers = 0;
  int64_t vocabulary = 0;
  int64_t context = 0;  // tokens that the model was made for
};

class INFINIGEN_API Model {
 public:
  // A model directory as Hugging Face lays it out. Empty: the small model that comes with InfiniGen.
  static Model Open(const std::string& path = {});
  ~Model();
  Model(const Model&);
  Model& operator=(const Model&);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  ModelInfo info() const;

  // Text and tokens; Error where the model has no tokenizer. `add_special`: with what the tokenizer puts around a text.
  bool has_tokenizer() const;
  std::vector<int32_t> Encode(std::string_view text, bool add_special = true) const;
  std::string Decode(std::span<const int32_t> tokens) const;

  // The prompt of a conversation by the model's chat template; Error where it has none.
  bool can_chat() const;
  std::vector<int32_t> EncodeChat(const std::vector<ChatMessage>& messages) const;

 private:
  friend class Engine;
  friend struct PlanAccess;
  struct Impl;
  explicit Model(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

// How an engine runs, as the command line's flags: "device" (cpu, cuda), "threads", "device-memory",
// "weights-on-device", "ctx" (tokens of a prompt and its answer), "batch" (sequences at once), "queue" (that may wait),
// "kv" (infinigen, full, int8, …) and every --kv-… flag by its name. Unset: as the command line's defaults.
class INFINIGEN_API Options {
 public:
  Options();
  ~Options();
  Options(const Options&);
  Options& operator=(const Options&);
  Options(Options&&) noexcept;
  Options& operator=(Options&&) noexcept;

  // Error where there is no such option, or the value makes no sense.
  Options& Set(std::string_view name, std::string_view value);

  struct Description {
    std::string name, value, help;
  };
  // Every option, for help texts.
  static std::vector<Description> Describe();

 private:
  friend class Engine;
  friend struct PlanAccess;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What an engine takes, stated before anything is allocated.
struct Plan {
  bool fits = false;
  std::string refusal;  // why not
  std::string text;     // the plan in lines, for people
  int64_t context = 0;
  int64_t batch = 0;
  int64_t largest_context = 0;  // that fits at this batch; 0: none
  uint64_t weights_bytes = 0;
  uint64_t pool_bytes = 0;  // KV entries
  uint64_t sketch_bytes = 0;
  uint64_t hot_bytes = 0;  // entries kept on a GPU
  uint64_t workspace_bytes = 0;
  uint64_t prefill_bytes = 0;
  uint64_t total_bytes = 0;
  uint64_t host_bytes = 0, device_bytes = 0;
  uint64_t available_bytes = 0;  // host memory that is free
};
// An option that cannot be met by any memory is an Error; what does not fit has a refusal.
INFINIGEN_API Plan MakePlan(const Model& model, const Options& options);

struct Sampling {
  float temperature = 0.8f;  // 0: the most likely token, always
  int32_t top_k = 40;        // 0: all
  float top_p = 0.95f;
  float min_p = 0.05f;
  float repeat_penalty = 1.0f;
  int32_t repeat_window = 64;
  float presence_penalty = 0, frequency_penalty = 0;
  std::optional<uint64_t> seed;  // unset: a random one
};

struct Request {
  std::string prompt;           // text; ignored where tokens are given
  std::vector<int32_t> tokens;  // the prompt as token ids
  int64_t max_tokens = 256;
  Sampling sampling = {};
  std::vector<std::string> stop = {};  // text ends before any of these
  bool ignore_eos = false;
  // Selection of this request, in an engine that selects; unset: as the engine was started.
  bool kv_full = false;  // attend to everything
  std::optional<float> kv_alpha = {};
  std::optional<double> kv_cap = {};
};

// What decode steps attended to and moved; docs/heart.md defines the ratios.
struct KvStatistics {
  int64_t steps = 0;
  double selected_ratio = 0, extra_ratio = 0, attended_ratio = 0;
  uint64_t read_bytes = 0;          // entries that attention read
  uint64_t fetched_bytes = 0;       // that came from the pool to the compute device
  std::optional<double> hit_ratio;  // of the hot set; unset where nothing is fetched
  uint64_t evicted = 0;             // entries
};

struct Outcome {
  std::string text;             // all of it
  std::vector<int32_t> tokens;  // generated
  std::string finish_reason;    // "stop", "length" or "cancelled"
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, not computed again
  double queue_s = 0, prefill_s = 0, decode_s = 0;
  KvStatistics kv;
};

// A request on its way. Destroying it cancels the request.
class INFINIGEN_API Stream {
 public:
  ~Stream();
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Waits for more text; nullopt when the request has ended. Error where it failed.
  std::optional<std::string> Next();
  // The request ends at the next step, with the reason "cancelled". Any thread.
  void Cancel();
  // Waits for the end. Error where the request failed.
  Outcome Wait();

 private:
  friend class Engine;
  struct Impl;
  explicit Stream(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

struct EngineStatistics {
  int64_t running = 0, waiting = 0;
  int64_t prompt_tokens = 0, reused_tokens = 0;
  int64_t decode_tokens = 0;  // by decode steps; the first token of each answer comes from its prefill
  int64_t preemptions = 0;
  uint64_t pool_bytes = 0, pool_peak_bytes = 0;
  uint64_t prefix_bytes = 0;  // cached beginnings of prompts
  KvStatistics kv;
};

// A model that runs, on a thread of its own. Requests share its batch; those that begin alike share their entries.
class INFINIGEN_API Engine {
 public:
  // Plans, calibrates where the model was never calibrated, allocates, starts.
  Engine(const Model& model, const Options& options, const Callbacks& callbacks = {});
  // Cancels what runs and waits for it.
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Plan& plan() const;
  // Error where the request can never run: an empty prompt, one longer than the context, a full queue.
  Stream Submit(const Request& request);
  EngineStatistics statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace infinigen::v1
