// `infinigen serve`: the OpenAI-compatible server. Opens the port, loads the model, serves until a signal, then drains.
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/size.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "cli/options.h"
#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/plan.h"
#include "runtime/report.h"
#include "server/access.h"
#include "server/api.h"

namespace infinigen {
namespace {

// Without -c, the context may shrink to this if memory is short.
constexpr int64_t kLeastServedContext = 256;

// Blocks of this size and more are mapped, so that they go back to the system when they are freed. By default the
// allocator raises this size with the blocks that it sees, and keeps what a large request has freed.
constexpr int kMappedBytes = 1 << 20;

struct ServeFlags {
  std::string host = "127.0.0.1";
  int64_t port = 8080;
  std::vector<std::string> keys;
  std::string key_file;
  bool key_file_given = false;
  std::vector<std::string> cors_origins;
  std::string tls_cert, tls_key;
  int64_t queue = 128;
  int64_t drain_s = 30;
  int64_t heartbeat_s = 10;
  int64_t stall_s = 30;
  std::vector<std::string> trusted_proxies;
  int64_t client_share = 50;
  std::vector<AddressRange> proxy_ranges;  // parsed from trusted_proxies
  bool share_prefixes = false;
  bool score_steps = false;
  bool quiet = false;
  std::string model;
  DeviceRequest device;
  KvFlags kv;
  SamplingFlags sampling;
  int64_t context = 0;  // 0: not given
  int64_t batch = 0;    // 0: not given
  bool dry_run = false;
};

void AddFlags(Flags& flags, ServeFlags* values) {
  flags.Group("Network");
  flags.Text("--host", &values->host, "ADDRESS",
             "address to listen on; 0.0.0.0 accepts connections from other machines, so set an API key as well "
             "(default 127.0.0.1)");
  flags.Integer("--port", &values->port, 0, 65535,
                "port to listen on; 0: any free port, which is printed (default 8080)");
  flags.TextList(
      "--api-key", &values->keys, "KEY",
      "require this key from clients, as Authorization: Bearer KEY; repeatable. Other users of this machine can see "
      "the command line, so prefer --api-key-file");
  flags.Text("--api-key-file", &values->key_file, "FILE", "read API keys from a file, one per line");
  flags.TextList("--cors-origin", &values->cors_origins, "ORIGIN",
                 "allow web pages of this origin to use the server, for example https://example.org; *: all; "
                 "repeatable");
  flags.Text("--tls-cert", &values->tls_cert, "FILE", "certificate chain (PEM), for https; needs --tls-key");
  flags.Text("--tls-key", &values->tls_key, "FILE", "private key of the certificate (PEM, not encrypted)");
  flags.Integer("--queue", &values->queue, 0, 1 << 20,
                "sequences that may wait while others run; more are refused with status 429 (default 128)");
  flags.Integer("--drain", &values->drain_s, 0, 86400,
                "seconds that running requests have to finish after SIGTERM (default 30)");
  flags.Integer("--heartbeat", &values->heartbeat_s, 0, 86400,
                "send a comment to a stream after this many seconds without output, so that proxies keep it open; 0: "
                "never (default 10)");
  flags.Integer(
      "--stall", &values->stall_s, 1, 86400,
      "seconds that a step of the engine may always take; one that takes longer, and five times as long as the "
      "longest before, makes /health fail, and 10 s later the process ends. Raise it where weights are read "
      "from a slow disk (default 30)");
  flags.Integer("--client-share", &values->client_share, 1, 100,
                "percent of the connections, of the queue and of the memory for requests that one client (an API key, "
                "else an address) may hold; 100: no limit (default 50)");
  flags.TextList("--trusted-proxy", &values->trusted_proxies, "CIDR",
                 "believe the X-Forwarded-For of proxies with these addresses, for example 10.0.0.0/8; repeatable");
  flags.Switch("--share-prefixes", &values->share_prefixes,
               "let all API keys share cached prefixes; their clients can then learn what others have sent");
  flags.Switch("--score-steps", &values->score_steps,
               "run the tokens of prompts that are echoed with logprobs as decode steps, unless a request says "
               "otherwise (kv.score): programs that score texts then measure the --kv method");
  flags.Switch("--quiet", &values->quiet, "do not log requests on stderr");
  flags.Group("Model and machine");
  AddModelFlag(flags, &values->model);
  AddDeviceFlags(flags, &values->device);
  flags.Integer("-c,--ctx", &values->context, 1, kMaxContext,
                "context: tokens of a prompt and its answer together (default: the model's context, or less if memory "
                "is short)");
  flags.Integer("--batch", &values->batch, 1, 4096,
                "sequences to run at once (default 32, or fewer if memory is short)");
  flags.Switch("--dry-run", &values->dry_run, "print the memory plan and exit");
  AddKvFlags(flags, &values->kv, /*list=*/false);
  AddSamplingFlags(flags, &values->sampling);
}

// The parts of a loaded model, in the order of construction.
struct Loaded {
  std::unique_ptr<Model> model;
  std::optional<ChatPrompt> chat;
  std::string chat_refusal;
  std::unique_ptr<Executor> executor;
  uint64_t prefix_bytes = 0;  // limit of the prefix cache
};

Result<RunPlan> Plan(const ServeFlags& flags, const Model& model, const DeviceChoice& device, const KvRequest& kv) {
  ASSIGN_OR_RETURN(const int64_t context, ChooseContext(model.config, flags.context));
  if (context > model.config.max_positions)
    Warn(fmt::format("--ctx {} exceeds the {} tokens that {} was trained for", context, model.config.max_positions,
                     model.config.name));
  return PlanServer(model, {.device = device,
                            .kv = kv,
                            .max_tokens = context,
                            .least_tokens = flags.context > 0 ? 0 : kLeastServedContext,
                            .batch = flags.batch});
}

Result<Loaded> Load(const ServeFlags& flags, const std::string& directory, const DeviceChoice& device,
                    const KvRequest& kv) {
  Loaded loaded;
  ASSIGN_OR_RETURN(loaded.model, OpenModel(directory));
  const Model& model = *loaded.model;
  ASSIGN_OR_RETURN(const RunPlan plan, Plan(flags, model, device, kv));
  if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  if (model.tokenizer == nullptr) {
    loaded.chat_refusal = "this model has no tokenizer; use /v1/completions with token ids";
  } else if (Result<ChatPrompt> chat = ChatPrompt::Make(*model.tokenizer); chat.ok()) {
    loaded.chat = std::move(*chat);
  } else {
    loaded.chat_refusal = fmt::format("this model cannot chat: {}", chat.error().message);
  }
  loaded.prefix_bytes = plan.prefix_bytes;
  Terminal terminal;
  ASSIGN_OR_RETURN(loaded.executor, Launch(model, plan, terminal.callbacks()));
  return loaded;
}

ServedModel Serving(const ServeFlags& flags, const Loaded& loaded) {
  const Model& model = *loaded.model;
  const nlohmann::ordered_json details = {{"model", ModelJson(model)},
                                          {"device", DeviceJson(*loaded.executor)},
                                          {"kv", KvJson(loaded.executor->options())}};
  return {.name = model.config.name,
          .executor = loaded.executor.get(),
          .tokenizer = model.tokenizer.get(),
          .chat = loaded.chat ? &*loaded.chat : nullptr,
          .chat_refusal = loaded.chat_refusal,
          .sampling = ResolveSampling(flags.sampling),
          .random_seeds = flags.sampling.seed < 0,
          .score_steps = flags.score_steps,
          .details_json = Dump(details),
          .max_waiting = flags.queue,
          .heartbeat_s = static_cast<int>(flags.heartbeat_s),
          .prefix_limit_bytes = loaded.prefix_bytes};
}

// Every connection needs a file descriptor, and the usual soft limit is only 1,024.
void RaiseFileLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

bool IsBlank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

// An empty variable means that a secret was not filled in. The server must not start without a key then.
Status CheckKeysArrived(const ServeFlags& flags) {
  const auto empty = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && IsBlank(value);
  };
  const bool only_blank = std::ranges::all_of(flags.keys, IsBlank);  // true without keys
  if (only_blank && empty("INFINIGEN_API_KEY")) return Invalid("INFINIGEN_API_KEY: a key must not be empty");
  if (flags.key_file.empty() && (flags.key_file_given || empty("INFINIGEN_API_KEY_FILE")))
    return Invalid("--api-key-file: the file name must not be empty");
  return Ok();
}

// Errors of the command line, which end with kExitUsage.
Status CheckUsage(ServeFlags* flags) {
  RETURN_IF_ERROR(CheckKeysArrived(*flags));
  if (std::ranges::any_of(flags->keys, IsBlank)) return Invalid("--api-key: a key must not be empty");
  for (const std::string& key : flags->keys)
    if (const Status fits = CheckKey(key); !fits.ok()) return Invalid("--api-key: {}", fits.error().message);
  for (const std::string& origin : flags->cors_origins)
    if (origin != "*" && !IsOrigin(origin))
      return Invalid("--cors-origin {}: an origin is a scheme and a host, for example https://example.org", origin);
  if (flags->tls_cert.empty() != flags->tls_key.empty())
    return Invalid("--tls-cert and --tls-key must be given together");
  for (const std::string& text : flags->trusted_proxies) {
    Result<AddressRange> range = AddressRange::Parse(text);
    if (!range.ok()) return Invalid("--trusted-proxy {}", range.error().message);
    flags->proxy_ranges.push_back(*range);
  }
  return Ok();
}

Result<AccessOptions> ResolveAccess(const ServeFlags& flags) {
  AccessOptions access{.keys = flags.keys, .cors_origins = flags.cors_origins, .host = flags.host};
  if (!flags.key_file.empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> more, ReadKeyFile(flags.key_file));
    access.keys.insert(access.keys.end(), more.begin(), more.end());
  }
  const bool local = flags.host == "127.0.0.1" || flags.host == "localhost" || flags.host == "::1";
  if (!local && access.keys.empty())
    Warn(fmt::format("--host {} without --api-key: anyone who reaches this machine can use the model", flags.host));
  return access;
}

Result<int> DryRun(const ServeFlags& flags, const std::string& directory, const DeviceChoice& device,
                   const KvRequest& kv) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(directory));
  ASSIGN_OR_RETURN(const RunPlan plan, Plan(flags, *model, device, kv));
  return PrintPlans(*model, {&plan, 1}, /*json=*/false);
}

// Requests are served by now: where memory is short, the line is dropped.
void LogReady(LogRing& log, const Loaded& loaded) {
  try {
    const ExecutorOptions& options = loaded.executor->options();
    log.Write(fmt::format("infinigen: {} is ready: context {} tokens, batch {}, {}, prefix cache {}, {} thread{}",
                          loaded.model->config.name, options.max_tokens, options.max_batch, KvWords(options),
                          FormatSize(loaded.prefix_bytes), options.threads, options.threads == 1 ? "" : "s"));
  } catch (const std::exception&) {
    log.CountDropped();
  }
}

Result<int> Serve(const ServeFlags& flags) {
  ASSIGN_OR_RETURN(AccessOptions access, ResolveAccess(flags));
  ASSIGN_OR_RETURN(const DeviceChoice device, ChooseDevice(flags.device));
  ASSIGN_OR_RETURN(const KvRequest kv, OneKvRequest(flags.kv));
  ASSIGN_OR_RETURN(const std::string directory, FindModelHere(flags.model));
  if (flags.dry_run) return DryRun(flags, directory, device, kv);

  RaiseFileLimit();
  ::mallopt(M_MMAP_THRESHOLD, kMappedBytes);
  // Declared first and so destroyed last, because everything below uses it.
  Loaded loaded;
  Api api(std::move(access), {.log_requests = !flags.quiet,
                              .share_prefixes = flags.share_prefixes,
                              .watchdog = {.least_bound = std::chrono::seconds(flags.stall_s)}});
  HttpOptions http{.host = flags.host,
                   .port = static_cast<uint16_t>(flags.port),
                   .tls_cert = flags.tls_cert,
                   .tls_key = flags.tls_key,
                   .trusted_proxies = flags.proxy_ranges};
  http.limits.drain_s = static_cast<int>(flags.drain_s);
  http.limits.client_share = static_cast<double>(flags.client_share) / 100;
  std::atomic<bool> loading{true};
  HttpHandler handler = api.handler();
  handler.drain = [&loading, then = handler.drain] {
    // While the model loads, no request runs and loading cannot be interrupted, so the process ends at once.
    if (loading.exchange(false)) std::_Exit(kExitOk);
    then();
  };
  ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> server, HttpServer::Bind(http, std::move(handler)));
  api.set_http(server.get());
  server->DrainOnSignals();
  server->Start();
  const bool bracket = flags.host.find(':') != std::string::npos;
  Output output;
  output.Write(fmt::format("listening on {}://{}{}{}:{}\n", flags.tls_cert.empty() ? "http" : "https",
                           bracket ? "[" : "", flags.host, bracket ? "]" : "", server->port()));
  RETURN_IF_ERROR(output.status());  // the port may be known from here alone

  ASSIGN_OR_RETURN(loaded, Load(flags, directory, device, kv));
  api.Serve(Serving(flags, loaded));
  while (!loading.exchange(false)) ::pause();  // a signal arrived first, and its handler is ending the process
  LogReady(api.log(), loaded);
  server->Wait();
  server->Stop();  // before the parts that its handlers use are destroyed
  api.Stop();
  return kExitOk;
}

}  // namespace

int RunServe(Arguments arguments) {
  ServeFlags values;
  Flags flags("serve",
              "Run an OpenAI-compatible HTTP server. Its web page offers a chat and a live picture of the KV cache.");
  AddFlags(flags, &values);
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  values.key_file_given = flags.Given("api-key-file");
  if (const Status usage = CheckUsage(&values); !usage.ok()) return FailUsage("serve", usage.error().message);
  return Finish(Serve(values));
}

}  // namespace infinigen
