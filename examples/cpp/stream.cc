// Streams an answer, cancels a second one half-way, and prints KV cache statistics of both.
// usage: stream [MODEL_DIRECTORY]      (default: the small model that comes with InfiniGen)
#include <infinigen/infinigen.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

namespace ig = infinigen::v1;

namespace {

void PrintStatistics(const ig::Outcome& outcome) {
  std::printf("\n[%s: %lld prompt tokens, %zu generated, attended to %.1f %% of the cache in %lld steps]\n",
              outcome.finish_reason.c_str(), static_cast<long long>(outcome.prompt_tokens), outcome.tokens.size(),
              100 * outcome.kv.attended_ratio, static_cast<long long>(outcome.kv.steps));
}

// A text so long that a step attends only to a part of it.
std::string LongPrompt() {
  std::string text;
  for (int day = 1; day <= 150; ++day)
    text += "On day " + std::to_string(day) + " the keeper of the lighthouse wrote down the wind and the tide. ";
  return text + "On the last day";
}

int Run(const std::string& path) {
  const ig::Model model = ig::Model::Open(path);
  const ig::ModelInfo info = model.info();
  std::printf("%s: %s, %.1f M parameters in %s\n", info.name.c_str(), info.architecture.c_str(),
              static_cast<double>(info.parameters) * 1e-6, info.type.c_str());

  ig::Options options;
  options.Set("ctx", "4096").Set("batch", "2").Set("kv", "infinigen");
  const ig::Plan plan = ig::MakePlan(model, options);
  std::printf("%s", plan.text.c_str());
  if (!plan.fits) return std::fprintf(stderr, "%s\n", plan.refusal.c_str()), 1;

  ig::Callbacks callbacks;
  callbacks.on_notice = [](std::string_view text) { std::cerr << text << "\n"; };
  ig::Engine engine(model, options, callbacks);

  ig::Stream story = engine.Submit({.prompt = LongPrompt(), .max_tokens = 48, .sampling = {.temperature = 0}});
  while (const std::optional<std::string> text = story.Next()) std::cout << *text << std::flush;
  PrintStatistics(story.Wait());

  ig::Stream cut = engine.Submit({.prompt = "Once upon a time", .max_tokens = 1000, .ignore_eos = true});
  for (int pieces = 0; pieces < 8; ++pieces)
    if (const std::optional<std::string> text = cut.Next()) std::cout << *text << std::flush;
  cut.Cancel();
  PrintStatistics(cut.Wait());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stream: %s\n", error.what());
    return 1;
  }
}
