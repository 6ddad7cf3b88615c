// The backends that the op tests run over, each a factory with the arithmetic that its error bounds derive from. A new
// backend needs a factory and an entry in TestedBackends; operands are created in its own memory (operands.h). The GPU
// tests are the same sources, built a second time (INFINIGEN_TEST_GPU).
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "backend/reference/reference_backend.h"
#ifdef INFINIGEN_TEST_GPU
#include "backend/gpu_backends.h"
#else
#include "backend/cpu_backends.h"
#endif

namespace infinigen {

// Fixture of the op tests: holds the backend under test and the oracle.
template <class Factory>
class OpTest : public ::testing::Test {
 protected:
  using B = typename Factory::B;
  void SetUp() override {
    backend_ = Factory::Make();
    if constexpr (requires { Factory::kMissing; })
      if (backend_ == nullptr) GTEST_SKIP() << Factory::kMissing;
  }
  void TearDown() override { Factory::TearDown(); }

  B& backend() { return *backend_; }
  ReferenceBackend& reference() { return reference_; }

 private:
  std::unique_ptr<B> backend_;
  ReferenceBackend reference_;
};

}  // namespace infinigen
