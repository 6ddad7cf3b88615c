/* InfiniGen as a C ABI: the C++ API (infinigen.h) behind opaque handles, for C and for the foreign-function interfaces
 * of other languages. It throws no exceptions.
 *
 * Every function that can fail returns an infinigen_status. infinigen_last_error() then returns the reason of the
 * calling thread's latest failure, valid until that thread's next call. Strings are UTF-8. Every handle has a _free
 * function, which accepts NULL. A model may be freed while engines use it, and an engine while streams are open (they
 * end as cancelled).
 *
 * Structs begin with their size, which the caller sets (`.size = sizeof(s)`). A later version of the library adds
 * members at the end, and reads and fills only those that the caller's version has. Functions are never removed or
 * changed without a new INFINIGEN_ABI_VERSION.
 *
 * Output buffers: `room` is the size of the buffer. The function writes at most that much and sets *length to the full
 * length; too little room is not an error. Call with NULL and 0 to ask for the length.
 */
#ifndef INFINIGEN_INFINIGEN_C_H
#define INFINIGEN_INFINIGEN_C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INFINIGEN_ABI_VERSION 1
#define INFINIGEN_C_API __attribute__((visibility("default")))

typedef enum infinigen_status {
  INFINIGEN_OK = 0,
  INFINIGEN_INVALID = 1,     /* the input is malformed or contradicts itself */
  INFINIGEN_UNSUPPORTED = 2, /* the input is valid, but this build cannot do it */
  INFINIGEN_IO = 3,          /* an operating-system call failed */
  INFINIGEN_EXHAUSTED = 4,   /* a memory, pool or queue limit is reached */
  INFINIGEN_INTERNAL = 5     /* a failure of the library or of the machine */
} infinigen_status;

typedef struct infinigen_model infinigen_model;
typedef struct infinigen_options infinigen_options;
typedef struct infinigen_engine infinigen_engine;
typedef struct infinigen_request infinigen_request;
typedef struct infinigen_stream infinigen_stream;

INFINIGEN_C_API int infinigen_abi_version(void);
INFINIGEN_C_API const char* infinigen_version(void); /* "0.1.0" */
INFINIGEN_C_API const char* infinigen_last_error(void);

/* ---- models ---- */

/* Called on the thread that starts an engine or downloads a model, with this `context`. Each function may be NULL. */
typedef struct infinigen_callbacks {
  size_t size;
  void* context;
  void (*on_warning)(void* context, const char* message);
  void (*on_notice)(void* context, const char* message);
  void (*on_progress)(void* context, int64_t done, int64_t total);
  bool (*cancelled)(void* context);
} infinigen_callbacks;

/* A GGUF file or a model directory in Hugging Face layout. path NULL or "": the small model that comes with InfiniGen.
 * "hf:ORG/NAME[:FILE or quantisation]": a model of a hub, downloaded if no cache has it; callbacks (may be NULL) report
 * and cancel the download, in bytes. */
INFINIGEN_C_API infinigen_status infinigen_model_open(const char* path, infinigen_model** model);
INFINIGEN_C_API infinigen_status infinigen_model_open_with_callbacks(const char* path,
                                                                     const infinigen_callbacks* callbacks,
                                                                     infinigen_model** model);
INFINIGEN_C_API void infinigen_model_free(infinigen_model* model);

typedef struct infinigen_model_info {
  size_t size;
  int64_t parameters, layers, vocabulary, context;
  bool has_tokenizer, can_chat;
  const char* name; /* the three strings are valid as long as the model */
  const char* architecture;
  const char* type;
} infinigen_model_info;
INFINIGEN_C_API infinigen_status infinigen_model_get_info(const infinigen_model* model, infinigen_model_info* info);

INFINIGEN_C_API infinigen_status infinigen_encode(const infinigen_model* model, const char* text, size_t bytes,
                                                  bool add_special, int32_t* tokens, size_t room, size_t* length);
INFINIGEN_C_API infinigen_status infinigen_decode(const infinigen_model* model, const int32_t* tokens, size_t count,
                                                  char* text, size_t room, size_t* length);

typedef struct infinigen_message {
  const char* role; /* "system", "user", "assistant" */
  const char* content;
} infinigen_message;
INFINIGEN_C_API infinigen_status infinigen_encode_chat(const infinigen_model* model, const infinigen_message* messages,
                                                       size_t count, int32_t* tokens, size_t room, size_t* length);

/* ---- options and plans ---- */

INFINIGEN_C_API infinigen_status infinigen_options_new(infinigen_options** options);
/* Names are the command line's flags without the leading dashes: "kv", "kv-limit", "device", "ctx", ... */
INFINIGEN_C_API infinigen_status infinigen_options_set(infinigen_options* options, const char* name, const char* value);
INFINIGEN_C_API void infinigen_options_free(infinigen_options* options);

typedef struct infinigen_option {
  size_t size;
  const char* name;  /* the three strings are valid for the life of the process */
  const char* value; /* what the option accepts, for help texts */
  const char* help;
} infinigen_option;
INFINIGEN_C_API size_t infinigen_option_count(void);
/* Options are numbered from 0. */
INFINIGEN_C_API infinigen_status infinigen_option_describe(size_t index, infinigen_option* option);

typedef struct infinigen_plan {
  size_t size;
  bool fits;
  int64_t context, batch, largest_context;
  uint64_t weights_bytes, pool_bytes, sketch_bytes, hot_bytes, workspace_bytes, prefill_bytes;
  uint64_t total_bytes, host_bytes, device_bytes, available_bytes;
  uint64_t prefix_bytes; /* KV entries that only the prefix cache holds, beside pool_bytes */
} infinigen_plan;
/* `text` receives the plan as several lines for people, with the reason if it does not fit. */
INFINIGEN_C_API infinigen_status infinigen_make_plan(const infinigen_model* model, const infinigen_options* options,
                                                     infinigen_plan* plan, char* text, size_t room, size_t* length);

/* ---- engines ---- */

/* options and callbacks may be NULL. */
INFINIGEN_C_API infinigen_status infinigen_engine_start(const infinigen_model* model, const infinigen_options* options,
                                                        const infinigen_callbacks* callbacks,
                                                        infinigen_engine** engine);
INFINIGEN_C_API void infinigen_engine_free(infinigen_engine* engine);

typedef struct infinigen_kv_stats {
  size_t size;
  int64_t steps;
  double selected_ratio, extra_ratio, attended_ratio;
  double hit_ratio; /* negative if nothing is fetched */
  uint64_t read_bytes, fetched_bytes, evicted;
} infinigen_kv_stats;

typedef struct infinigen_engine_stats {
  size_t size;
  int64_t running, waiting, prompt_tokens, reused_tokens, decode_tokens, preemptions;
  uint64_t pool_bytes, pool_peak_bytes, prefix_bytes;
} infinigen_engine_stats;
/* `stats` and `kv` may be NULL. */
INFINIGEN_C_API infinigen_status infinigen_engine_get_stats(const infinigen_engine* engine,
                                                            infinigen_engine_stats* stats, infinigen_kv_stats* kv);

/* ---- requests ---- */

INFINIGEN_C_API infinigen_status infinigen_request_new(infinigen_request** request);
INFINIGEN_C_API infinigen_status infinigen_request_set_prompt(infinigen_request* request, const char* text,
                                                              size_t bytes);
INFINIGEN_C_API infinigen_status infinigen_request_set_tokens(infinigen_request* request, const int32_t* tokens,
                                                              size_t count);
/* Names: "max-tokens", "temp", "top-k", "top-p", "min-p", "repeat-penalty", "repeat-last-n", "presence-penalty",
 * "frequency-penalty", "seed", "stop" (repeatable), "ignore-eos", "kv-full", "kv-alpha", "kv-cap". */
INFINIGEN_C_API infinigen_status infinigen_request_set(infinigen_request* request, const char* name, const char* value);
INFINIGEN_C_API void infinigen_request_free(infinigen_request* request);

/* The request is copied. */
INFINIGEN_C_API infinigen_status infinigen_submit(infinigen_engine* engine, const infinigen_request* request,
                                                  infinigen_stream** stream);

/* Waits for more text; *text is valid until the next call with this stream, and NULL at the end. Only one thread at a
 * time may use a stream. */
INFINIGEN_C_API infinigen_status infinigen_stream_next(infinigen_stream* stream, const char** text, size_t* bytes);
/* May be called from any thread. */
INFINIGEN_C_API infinigen_status infinigen_stream_cancel(infinigen_stream* stream);

typedef struct infinigen_outcome {
  size_t size;
  int64_t prompt_tokens, cached_tokens;
  double queue_s, prefill_s, decode_s;
  const char* finish_reason; /* "stop", "length" or "cancelled"; all pointers are valid as long as the stream */
  const char* text;
  size_t text_bytes;
  const int32_t* tokens;
  size_t token_count;
} infinigen_outcome;
/* Waits until the request has ended. `outcome` and `kv` may be NULL. */
INFINIGEN_C_API infinigen_status infinigen_stream_wait(infinigen_stream* stream, infinigen_outcome* outcome,
                                                       infinigen_kv_stats* kv);
/* Cancels the request if it still runs. */
INFINIGEN_C_API void infinigen_stream_free(infinigen_stream* stream);

#ifdef __cplusplus
}
#endif

#endif
