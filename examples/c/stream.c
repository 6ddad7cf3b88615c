/* The C++ example in C: streams an answer, cancels a second one half-way, and prints KV cache statistics of both.
 * usage: stream [MODEL_DIRECTORY]      (default: the small model that comes with InfiniGen) */
#include <infinigen/infinigen_c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(infinigen_status status, const char* what) {
  if (status == INFINIGEN_OK) return;
  fprintf(stderr, "stream: %s: %s\n", what, infinigen_last_error());
  exit(1);
}

static void notice(void* context, const char* message) {
  (void)context;
  fprintf(stderr, "%s\n", message);
}

/* Starts a request; the caller frees the stream. */
static infinigen_stream* submit(infinigen_engine* engine, const char* prompt, const char* max_tokens, const char* temp) {
  infinigen_request* request = NULL;
  infinigen_stream* stream = NULL;
  check(infinigen_request_new(&request), "request");
  check(infinigen_request_set_prompt(request, prompt, strlen(prompt)), "prompt");
  check(infinigen_request_set(request, "max-tokens", max_tokens), "max-tokens");
  check(infinigen_request_set(request, "temp", temp), "temp");
  check(infinigen_request_set(request, "ignore-eos", "1"), "ignore-eos");
  check(infinigen_submit(engine, request, &stream), "submit");
  infinigen_request_free(request);
  return stream;
}

/* Prints up to `most` pieces of text as they arrive; negative: all. */
static void print_text(infinigen_stream* stream, int most) {
  const char* text = NULL;
  size_t bytes = 0;
  for (int piece = 0; piece != most; ++piece) {
    check(infinigen_stream_next(stream, &text, &bytes), "next");
    if (text == NULL) return;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
  }
}

static void print_statistics(infinigen_stream* stream) {
  infinigen_outcome outcome = {.size = sizeof outcome};
  infinigen_kv_stats kv = {.size = sizeof kv};
  check(infinigen_stream_wait(stream, &outcome, &kv), "wait");
  printf("\n[%s: %lld prompt tokens, %zu generated, attended to %.1f %% of the cache in %lld steps]\n",
         outcome.finish_reason, (long long)outcome.prompt_tokens, outcome.token_count, 100 * kv.attended_ratio,
         (long long)kv.steps);
}

int main(int argc, char** argv) {
  if (infinigen_abi_version() != INFINIGEN_ABI_VERSION) return fprintf(stderr, "stream: libinfinigen has another ABI version than its header\n"), 1;
  infinigen_model* model = NULL;
  infinigen_options* options = NULL;
  infinigen_engine* engine = NULL;
  check(infinigen_model_open(argc > 1 ? argv[1] : NULL, &model), "model");
  infinigen_model_info info = {.size = sizeof info};
  check(infinigen_model_get_info(model, &info), "info");
  printf("%s: %s, %.1f M parameters in %s\n", info.name, info.architecture, (double)info.parameters * 1e-6, info.type);

  check(infinigen_options_new(&options), "options");
  check(infinigen_options_set(options, "ctx", "4096"), "ctx");
  check(infinigen_options_set(options, "batch", "2"), "batch");
  infinigen_plan plan = {.size = sizeof plan};
  char words[4096];
  size_t length = 0;
  check(infinigen_make_plan(model, options, &plan, words, sizeof words, &length), "plan");
  printf("%.*s", (int)(length < sizeof words ? length : sizeof words), words);
  if (!plan.fits) return 1;

  infinigen_callbacks callbacks = {.size = sizeof callbacks, .on_notice = notice};
  check(infinigen_engine_start(model, options, &callbacks, &engine), "engine");

  infinigen_stream* story = submit(engine, "The lighthouse stood on the last rock before the open sea, and", "48", "0");
  print_text(story, -1);
  print_statistics(story);
  infinigen_stream_free(story);

  infinigen_stream* cut = submit(engine, "Once upon a time", "1000", "0.8");
  print_text(cut, 8);
  check(infinigen_stream_cancel(cut), "cancel");
  print_statistics(cut);
  infinigen_stream_free(cut);

  infinigen_engine_free(engine);
  infinigen_options_free(options);
  infinigen_model_free(model);
  return 0;
}
