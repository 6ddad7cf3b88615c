// Ctrl-C and SIGTERM as a question instead of a death. The first signal after InstallInterrupt() is remembered; the
// second one finds the system's default action and ends the process.
#pragma once

namespace infinigen {

// Called once, by the command, before it loads anything. Blocking reads return EINTR when a signal arrives.
void InstallInterrupt();

bool Interrupted();

}  // namespace infinigen
