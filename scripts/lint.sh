#!/usr/bin/env bash
# clang-tidy over the library sources, two files at a time, each alone: the preset `dev` compiles them so.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset dev >/dev/null
git ls-files 'src/*.cc' | xargs -P 2 -n 1 clang-tidy -p build/dev --quiet
