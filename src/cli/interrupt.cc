#include "cli/interrupt.h"

#include <csignal>

namespace infinigen {
namespace {

// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t interrupted = 0;

void Remember(int) { interrupted = 1; }

}  // namespace

void InstallInterrupt() {
  struct sigaction action {};
  action.sa_handler = Remember;
  // Not SA_RESTART: a wait for standard input must end. SA_RESETHAND: the second signal kills.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool Interrupted() { return interrupted != 0; }

}  // namespace infinigen
