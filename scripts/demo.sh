#!/usr/bin/env bash
# From a fresh Debian 12 machine to a first look: installs what is missing, builds, plants facts in a long text and asks
# for one of them, shows what was read of the cache, then tells a story. Ends with status 0 when the model found the fact.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

# Names are said, the rest only when it goes wrong.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    echo "demo: '$*' failed" >&2
    exit 1
  fi
  rm -f "$log"
}

echo "== Build"
echo "packages ..."
quietly scripts/install_packages.sh build
# The tests' packages are not needed here; scripts/test.sh configures the same directory with tests again.
quietly cmake --preset release -DINFINIGEN_TESTS=OFF -DINFINIGEN_BENCH=OFF
if [ -t 1 ] && [ "${TERM:-dumb}" != dumb ]; then
  NINJA_STATUS="compiling %f of %t  " cmake --build --preset release # one line that counts
else
  echo "compiling ..."
  quietly cmake --build --preset release
fi
infinigen=build/release/infinigen

echo
echo "== A long text with eight facts in it, and a question about one of them (--kv infinigen)"
echo
shown=$(mktemp)
trap 'rm -f "$shown"' EXIT
"$infinigen" eval needle --lengths 8000 --facts 8 --n 1 --seed 2 --show | tee "$shown"
if ! grep -q '^ *Answer: [0-9]*  *<- right' "$shown"; then
  echo "demo: the model did not find the code" >&2
  exit 1
fi

echo
echo "== A story"
echo
start="Once upon a time there was a little fox who"
printf '%s' "$start"
"$infinigen" generate -p "$start" -n 120 --temp 0.7 --top-p 0.9 --repeat-penalty 1.1 --seed 3

echo
echo "== Next"
echo "talk with it:           $infinigen chat"
echo "a model of your own:    $infinigen chat -m path/to/a/Hugging-Face/directory   (Llama, Qwen, Mistral, Gemma, Phi, SmolLM3, OPT)"
echo "what a run would take:  $infinigen generate -f long.txt --dry-run"
