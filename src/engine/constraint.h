// TokenConstraint: which tokens may come next in a request's text, for example those of a JSON schema. Each request has
// its own; it is called on the engine's thread. Its state depends on the accepted tokens alone, and stays with the
// request while it is preempted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace infinigen {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Sets bit i % 32 of word i / 32 where token i may come next, and clears it where it may not. EOS may come where the
  // text is complete. False: the constraint cannot go on, and the request ends with an error.
  virtual bool Fill(std::span<uint32_t> mask) = 0;
  // Adds a token to the text. Precondition: the latest mask allows it, and it is not EOS. False: as above.
  virtual bool Accept(int32_t token) = 0;

  static size_t MaskWords(int64_t vocab) { return static_cast<size_t>((vocab + 31) / 32); }
};

}  // namespace infinigen
