#include "cli/interrupt.h"

#include <csignal>

namespace infinigen {
namespace {

// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t interrupted = 0;
volatile std::sig_atomic_t terminated = 0;

void Remember(int signal) {
  if (signal == SIGTERM) terminated = 1;
  interrupted = 1;
}

void Install(int signal, bool once) {
  struct sigaction action {};
  action.sa_handler = Remember;
  // Not SA_RESTART: a wait for standard input must end. SA_RESETHAND: the second signal kills.
  action.sa_flags = once ? static_cast<int>(SA_RESETHAND) : 0;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void InstallInterrupt() {
  Install(SIGINT, /*once=*/true);
  Install(SIGTERM, /*once=*/true);
}

void InstallRepeatedInterrupt() {
  Install(SIGINT, /*once=*/false);
  Install(SIGTERM, /*once=*/true);
}

bool Interrupted() { return interrupted != 0; }

bool TakeInterrupt() {
  const bool was = interrupted != 0;
  interrupted = 0;
  return was;
}

bool Terminated() { return terminated != 0; }

}  // namespace infinigen
