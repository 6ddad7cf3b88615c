#!/usr/bin/env bash
# From a fresh Debian 12 machine to generated text: installs what is missing, builds, runs. Until the repository ships a
# trained model this shows the engine at work on a tiny random one: the text is noise, the mechanism is real.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install_packages.sh build
cmake --preset release -DINFINIGEN_TESTS=OFF -DINFINIGEN_BENCH=OFF >/dev/null
cmake --build --preset release
echo
