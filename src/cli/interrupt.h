// Ctrl-C and SIGTERM as a question instead of a death.
#pragma once

namespace infinigen {

// Each command calls one of the two once, before it loads anything. Blocking reads return EINTR when a signal arrives.
//
// The first signal is remembered; the second one finds the system's default action and ends the process.
void InstallInterrupt();
// For a command that goes on after Ctrl-C: every SIGINT is remembered until it is taken. SIGTERM as above.
void InstallRepeatedInterrupt();

bool Interrupted();
// The same, and forgets it: the next signal counts anew.
bool TakeInterrupt();
// Whether SIGTERM came; never forgotten.
bool Terminated();

}  // namespace infinigen
