// InfiniGen as a C++ library: open a model, plan its memory, start an engine, submit prompts, stream text.
//
//   infinigen::v1::Model model = infinigen::v1::Model::Open("path/to/model");
//   infinigen::v1::Engine engine(model, infinigen::v1::Options().Set("kv-limit", "8GiB"));
//   infinigen::v1::Stream stream = engine.Submit({.prompt = "Once upon a time", .max_tokens = 64});
//   while (std::optional<std::string> text = stream.Next()) std::cout << *text;
//
// Handles (Model, Engine, Stream) are cheap to move. A Model may also be copied; it stays open while an engine uses it.
// Functions that fail throw Error, whose message says what is wrong, where, and what to do. All functions may be called
// from any thread, but only one thread at a time may use a Stream (Cancel is always allowed).
//
// infinigen_c.h offers the same as a C ABI, but for what an outcome keeps on request. docs/library.md explains both.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#define INFINIGEN_API __attribute__((visibility("default")))

namespace infinigen::v1 {

// "0.1.0".
INFINIGEN_API const char* Version();

enum class ErrorKind : uint8_t {
  kInvalid,      // the input is malformed or contradicts itself
  kUnsupported,  // the input is valid, but this build cannot do it
  kIo,           // an operating-system call failed
  kExhausted,    // a memory, pool or queue limit is reached
};

class INFINIGEN_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ~Error() override;
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Called while an engine starts or a model is downloaded, on the caller's thread. Each may be empty. They must not call
// back into the library.
struct Callbacks {
  std::function<void(std::string_view message)> on_warning;  // one sentence
  std::function<void(std::string_view message)> on_notice;   // before long work: "calibrating …", "downloading …"
  std::function<void(int64_t done, int64_t total)> on_progress;
  std::function<bool()> cancelled;  // asked during long work; returning true makes the start fail with an Error
};

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct ModelInfo {
  std::string name;
  std::string architecture;  // "llama"
  std::string type;          // type of most weights: "bf16"
  int64_t parameters = 0;
  int64_t layers = 0;
  int64_t vocabulary = 0;
  int64_t context = 0;              // tokens that the model was trained for
  std::optional<int32_t> bos = {};  // the tokenizer's token that begins a text
  std::vector<int32_t> eos = {};    // tokens that end an answer
};

class INFINIGEN_API Model {
 public:
  // Opens a GGUF file or a model directory in Hugging Face layout. Empty path: the small model that comes with
  // InfiniGen. "hf:ORG/NAME[:FILE or quantisation]": a model of a hub, downloaded if no cache has it (docs/hub.md);
  // `callbacks` report and cancel the download, in bytes.
  static Model Open(const std::string& path = {});
  static Model Open(const std::string& path, const Callbacks& callbacks);
  ~Model();
  Model(const Model&);
  Model& operator=(const Model&);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  ModelInfo info() const;

  // Convert between text and tokens; Error if the model has no tokenizer or a token is outside the vocabulary.
  // `add_special` adds the tokenizer's special tokens (BOS and the like).
  bool has_tokenizer() const;
  std::vector<int32_t> Encode(std::string_view text, bool add_special = true) const;
  std::string Decode(std::span<const int32_t> tokens) const;
  // The same without special tokens (BOS, EOS, marks of a chat).
  std::string DecodePlain(std::span<const int32_t> tokens) const;
  // The tokens that Encode puts before every text: BOS, or none.
  std::vector<int32_t> Opening() const;

  // The prompt of a conversation, made with the model's chat template; Error if it has none.
  bool can_chat() const;
  std::vector<int32_t> EncodeChat(const std::vector<ChatMessage>& messages) const;

 private:
  friend class Engine;
  friend struct PlanAccess;
  struct Impl;
  explicit Model(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

// Options of an engine, named like the command line's flags: "device" (cpu, cuda), "threads", "device-memory",
// "weights-on-device", "weights-in" (memory, file), "ctx" (tokens of a prompt and its answer), "batch" (sequences to
// run at once), "queue" (requests that may wait), "kv" (infinigen, full, int8, …) and every --kv-… flag. Unset options
// have the defaults of `infinigen serve`, except "queue" (1024).
class INFINIGEN_API Options {
 public:
  Options();
  ~Options();
  Options(const Options&);
  Options& operator=(const Options&);
  Options(Options&&) noexcept;
  Options& operator=(Options&&) noexcept;

  // Error if the option does not exist or the value is malformed. What depends on the model or the machine (a device
  // that is absent, a size in bytes or percent) is checked by MakePlan and Engine.
  Options& Set(std::string_view name, std::string_view value);

  struct Description {
    std::string name, value, help;
  };
  // All options, for help texts.
  static std::vector<Description> Describe();

 private:
  friend class Engine;
  friend struct PlanAccess;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The memory that an engine will allocate, computed before anything is allocated.
struct Plan {
  bool fits = false;
  std::string refusal;  // why it does not fit
  std::string text;     // several lines for people
  int64_t context = 0;
  int64_t batch = 0;
  int64_t largest_context = 0;  // that fits at this batch; 0: none
  uint64_t weights_bytes = 0;
  uint64_t pool_bytes = 0;  // KV entries
  uint64_t sketch_bytes = 0;
  uint64_t hot_bytes = 0;  // the hot set: fetched entries that stay on the GPU
  uint64_t workspace_bytes = 0;
  uint64_t prefill_bytes = 0;
  uint64_t total_bytes = 0;
  uint64_t host_bytes = 0, device_bytes = 0;
  uint64_t available_bytes = 0;  // free host memory
  uint64_t prefix_bytes = 0;     // KV entries that only the prefix cache holds, beside pool_bytes
};
// If memory is short, the plan has a refusal. Options that more memory would not help are an Error.
INFINIGEN_API Plan MakePlan(const Model& model, const Options& options);

struct Sampling {
  float temperature = 0.8f;  // 0: always the most likely token
  int32_t top_k = 40;        // 0: no limit
  float top_p = 0.95f;
  float min_p = 0.05f;
  float repeat_penalty = 1.0f;
  int32_t repeat_window = 64;
  float presence_penalty = 0, frequency_penalty = 0;
  std::optional<uint64_t> seed;  // unset: random
};

struct Request {
  std::string prompt;           // text; ignored if `tokens` is set
  std::vector<int32_t> tokens;  // the prompt as token ids
  int64_t max_tokens = 256;
  Sampling sampling = {};
  std::vector<std::string> stop = {};  // the answer ends before the first of these
  bool ignore_eos = false;
  // Override the engine's selection for this request; the engine must run a selecting method.
  bool kv_full = false;  // attend to everything
  std::optional<float> kv_alpha = {};
  std::optional<double> kv_cap = {};
  std::optional<double> kv_mass = {};
  std::optional<bool> kv_tail = {};
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // (token, number added to its logit)
  // At least 0: Outcome::logprobs has the log probability of each token and of this many alternatives.
  int32_t top_logprobs = -1;
  bool keep_logits = false;  // fill Outcome::logits
  bool keep_kv_map = false;  // fill Outcome::kv_map, which makes steps slower
  // Fill Outcome::scores with the log probabilities of the prompt's tokens from this one on, at least the second (1);
  // alternatives as in top_logprobs. With max_tokens 0 nothing is generated. Such a request reuses no cached entries.
  std::optional<int64_t> score_from = {};
  // The tokens that predict scored ones run as decode steps, so that the engine's KV method is what is scored. Without
  // it they are read as the rest of a prompt, in which every token attends to everything.
  bool score_steps = false;
};

// What decode steps attended to and fetched; docs/heart.md defines the ratios.
struct KvStatistics {
  int64_t steps = 0;
  double selected_ratio = 0, extra_ratio = 0, attended_ratio = 0;
  uint64_t read_bytes = 0;          // bytes of entries that attention read
  uint64_t fetched_bytes = 0;       // bytes of entries copied from the pool to the compute device
  std::optional<double> hit_ratio;  // hits of the hot set; unset if nothing is fetched
  uint64_t evicted = 0;             // number of entries
};

// Natural logarithm of a probability, before bias, penalties and temperature.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // most likely first
};

// Which tokens of the context the decode steps of a request attended to, layer by layer.
struct KvMap {
  int64_t layers = 0;
  int64_t rows = 0;   // tokens that the last step could attend to, its own included
  int64_t steps = 0;  // decode steps that are added up
  // [layers][rows]: of the (step, KV head) pairs that could attend to the row, the share that did. 1 in layers that
  // attend to everything.
  std::vector<float> share;
};

struct Outcome {
  std::string text;             // the whole answer
  std::vector<int32_t> tokens;  // generated tokens
  std::string finish_reason;    // "stop", "length" or "cancelled"
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // prompt tokens whose entries were already cached
  double queue_s = 0, prefill_s = 0, decode_s = 0;
  KvStatistics kv;
  std::vector<TokenLogprobs> logprobs;  // one for each of `tokens`, if Request::top_logprobs is set
  std::vector<float> logits;            // [tokens][vocabulary], if Request::keep_logits is set
  std::vector<TokenLogprobs> scores;    // of prompt tokens from Request::score_from on
  KvMap kv_map;                         // empty unless Request::keep_kv_map is set and there was a decode step
};

// A submitted request. Destroying the stream cancels it.
class INFINIGEN_API Stream {
 public:
  ~Stream();
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Waits for more text; nullopt when the request has ended. Error if it failed.
  std::optional<std::string> Next();
  // Wait at most so long until Next, or Wait, returns at once; false: it would still block. For callers that must look
  // at something else now and then, such as signals.
  bool AwaitText(std::chrono::milliseconds timeout);
  bool AwaitEnd(std::chrono::milliseconds timeout);
  // Ends the request at the next step, with the finish reason "cancelled". Any thread.
  void Cancel();
  // Waits until the request has ended. Error if it failed.
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
  int64_t decode_tokens = 0;  // without the first token of each answer, which its prefill produces
  int64_t preemptions = 0;
  uint64_t pool_bytes = 0, pool_peak_bytes = 0;
  uint64_t prefix_bytes = 0;  // size of the prefix cache
  KvStatistics kv;
};

// A running model with its own thread. Requests run together in batches; prompts with a common prefix share its
// entries. A model, options, engine or stream that was moved from may only be destroyed or assigned to.
class INFINIGEN_API Engine {
 public:
  // Plans the memory, calibrates the model if that was never done, allocates, and starts the thread.
  Engine(const Model& model, const Options& options, const Callbacks& callbacks = {});
  // Cancels all requests and waits for them to end.
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Plan& plan() const;
  // Error if the request is refused: an empty prompt, a prompt longer than the context, a full queue.
  Stream Submit(const Request& request);
  // Many requests at once, which start together. If one is refused, none runs.
  std::vector<Stream> SubmitAll(const std::vector<Request>& requests);
  EngineStatistics statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace infinigen::v1
