// Test helper: encodes texts with the tokenizer of a directory, for comparison with other libraries.
//   tokenize_lines DIRECTORY [--no-special] [--decode] < texts
// Reads texts from stdin, each ended by a NUL byte, and prints one line of ids per text; with --decode also a line with
// the decoded bytes in hexadecimal. --time FILE encodes one file and prints the time instead.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "text/tokenizer.h"

namespace {

int Fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  return 1;
}

int TimeFile(const infinigen::Tokenizer& tokenizer, const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto start = std::chrono::steady_clock::now();
  const auto ids = tokenizer.Encode(text);
  const std::chrono::duration<double> encoding = std::chrono::steady_clock::now() - start;
  if (!ids.ok()) return Fail(ids.error().message);
  const auto middle = std::chrono::steady_clock::now();
  const std::string decoded = tokenizer.Decode(*ids, true);
  const std::chrono::duration<double> decoding = std::chrono::steady_clock::now() - middle;
  std::printf("%zu bytes, %zu tokens, encode %.3f s (%.1f MB/s), decode %.3f s, %s\n", text.size(), ids->size(),
              encoding.count(), static_cast<double>(text.size()) / 1e6 / encoding.count(), decoding.count(),
              decoded == text ? "identical" : "different");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return Fail("usage: tokenize_lines DIRECTORY [--no-special] [--decode] [--time FILE]");
  infinigen::EncodeOptions options;
  bool decode = false;
  const auto tokenizer = infinigen::Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) return Fail(tokenizer.error().message);
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--no-special") options.add_special = false;
    if (flag == "--decode") decode = true;
    if (flag == "--time" && i + 1 < argc) return TimeFile(**tokenizer, argv[i + 1]);
  }
  std::ios::sync_with_stdio(false);
  std::string text;
  while (std::getline(std::cin, text, '\0')) {
    const auto ids = (*tokenizer)->Encode(text, options);
    if (!ids.ok()) return Fail(ids.error().message);
    const char* separator = "";
    for (const infinigen::TokenId id : *ids) {
      std::cout << separator << id;
      separator = " ";
    }
    std::cout << '\n';
    if (!decode) continue;
    for (const char c : (*tokenizer)->Decode(*ids, true)) {
      constexpr const char* kHex = "0123456789abcdef";
      std::cout << kHex[static_cast<unsigned char>(c) >> 4] << kHex[static_cast<unsigned char>(c) & 15];
    }
    std::cout << '\n';
  }
  return 0;
}
