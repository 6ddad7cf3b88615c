// What a grammar costs: compiling schemas, and a step's mask and accepted token, with a model's vocabulary.
// usage: bench_grammar MODEL.gguf|DIRECTORY SCHEMAS.jsonl   (a schema a line, as tools/schema_show.py --print writes
// them)
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "runtime/model.h"

using namespace infinigen;
using Clock = std::chrono::steady_clock;

namespace {

double Since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void Print(const char* name, std::vector<double> us) {
  std::sort(us.begin(), us.end());
  double sum = 0;
  for (const double each : us) sum += each;
  fmt::print("{:8} n {:6}  mean {:9.1f} us  p50 {:9.1f}  p99 {:9.1f}  max {:9.1f}\n", name, us.size(),
             sum / static_cast<double>(us.size()), us[us.size() / 2], us[us.size() * 99 / 100], us.back());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  Result<std::unique_ptr<Tokenizer>> tokenizer = OpenTokenizer(argv[1]);
  if (!tokenizer.ok()) return fmt::print(stderr, "{}\n", tokenizer.error().message), 1;
  const int64_t vocab = (*tokenizer)->vocab_size();
  const std::vector<int64_t> eos = {(*tokenizer)->eos().value_or(0)};
  const Clock::time_point start = Clock::now();
  auto compiler = GrammarCompiler::Make(**tokenizer, vocab, eos);
  if (!compiler.ok()) return fmt::print(stderr, "{}\n", compiler.error().message), 1;
  fmt::print("vocabulary of {}: read in {:.0f} ms\n", vocab, Since(start) / 1e3);
  std::vector<double> compiles, fills, accepts;
  std::vector<uint32_t> mask(TokenConstraint::MaskWords(vocab));
  std::mt19937 random(1);
  std::ifstream schemas(argv[2]);
  for (std::string line; std::getline(schemas, line);) {
    const Clock::time_point compile = Clock::now();
    auto grammar = (*compiler)->Compile({GrammarSource::Kind::kJsonSchema, line});
    compiles.push_back(Since(compile));
    if (!grammar.ok()) return fmt::print(stderr, "{}\n", grammar.error().message), 1;
    const std::unique_ptr<TokenConstraint> constraint = (*grammar)->Start();
    for (int i = 0; i < 512; ++i) {
      const Clock::time_point fill = Clock::now();
      if (!constraint->Fill(mask)) return 1;
      fills.push_back(Since(fill));
      std::vector<int32_t> allowed;
      for (int32_t token = 0; token < vocab; ++token)
        if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0) allowed.push_back(token);
      const int32_t token = allowed[random() % allowed.size()];
      if (token == eos[0]) break;
      const Clock::time_point accept = Clock::now();
      if (!constraint->Accept(token)) return 1;
      accepts.push_back(Since(accept));
    }
  }
  Print("compile", compiles);
  Print("mask", fills);
  Print("accept", accepts);
}
