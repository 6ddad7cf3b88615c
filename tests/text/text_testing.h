// Helpers for the text tests: files, temporary directories, the corpus.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace infinigen {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;

inline fs::path DataDir() { return fs::path(INFINIGEN_TEST_DATA) / "text" / "data"; }

// Real tokenizers, in the corpus outside the repository.
inline std::optional<fs::path> CorpusTokenizers() {
  const char* data = std::getenv("INFINIGEN_DATA");
  const fs::path corpus =
      data != nullptr ? fs::path(data) : fs::path(INFINIGEN_TEST_DATA) / ".." / ".." / "shared" / "corpus";
  if (!fs::is_directory(corpus / "tokenizers")) return std::nullopt;
  return corpus / "tokenizers";
}

inline std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << path;
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

class TempDir {
 public:
  TempDir() {
    std::string name = (fs::temp_directory_path() / "infinigen_text_XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TempDir() { fs::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const fs::path& path() const { return path_; }
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::trunc) << content;
  }

 private:
  fs::path path_;
};

inline std::unique_ptr<Tokenizer> LoadOrFail(const fs::path& directory) {
  auto tokenizer = Tokenizer::Load(directory.string());
  if (!tokenizer.ok()) {
    ADD_FAILURE() << tokenizer.error().message;
    return nullptr;
  }
  return std::move(*tokenizer);
}

inline std::string LoadError(const fs::path& directory) {
  const auto tokenizer = Tokenizer::Load(directory.string());
  return tokenizer.ok() ? "loaded" : tokenizer.error().message;
}

// Random text of ASCII, multi-byte characters, and bytes that are not valid UTF-8.
inline std::string RandomBytes(std::mt19937_64& random, size_t length) {
  static const std::vector<std::string> kPieces = {
      "a",    "the ", " ", "\n",   "1",  "漢",           "é",        "😀",      "\xE6", "\xF0\x9F", "\xFF",
      "\x80", "<s>",  "▁", "\xC3", "'s", "\xED\xA0\x80", "\xF4\x90", "karato", "  "};
  std::string text;
  while (text.size() < length) {
    if (random() % 4 == 0)
      text += static_cast<char>(random() % 256);
    else
      text += kPieces[random() % kPieces.size()];
  }
  return text;
}

}  // namespace infinigen
