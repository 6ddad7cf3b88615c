// The commands of the program. Each parses its flags, runs, and returns the exit code. They do not throw.
#pragma once

#include <span>
#include <string>

namespace infinigen {

using Arguments = std::span<const std::string>;  // the arguments after the command's name

int RunGenerate(Arguments arguments);
int RunChat(Arguments arguments);
int RunServe(Arguments arguments);
int RunBench(Arguments arguments);
int RunEval(Arguments arguments);
int RunCalibrate(Arguments arguments);
int RunQuantize(Arguments arguments);
int RunInspect(Arguments arguments);
int RunTokenize(Arguments arguments);
int RunModels(Arguments arguments);

}  // namespace infinigen
