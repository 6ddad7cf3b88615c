#!/usr/bin/env bash
# clang-tidy over the library sources, two files at a time. Needs build/release/compile_commands.json.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files 'src/*.cc' | xargs -P 2 -n 1 clang-tidy -p build/release --quiet
