#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU. Last line: "N passed, N failed, N skipped".
# usage: scripts/test.sh [--quick | --lint]
#   --quick  the release build's tests only
#   --lint   clang-tidy too, which adds four minutes on two cores
set -uo pipefail
cd "$(dirname "$0")/.."

quick=false lint=false
case "${1:-}" in
  --quick) quick=true ;;
  --lint) lint=true ;;
  "") ;;
  *) echo "usage: scripts/test.sh [--quick | --lint]" >&2 && exit 2 ;;
esac

scripts/install_packages.sh test || exit 1

passed=0 failed=0 skipped=0
failures=()

# check NAME COMMAND…: one pass or failure; output is shown only when it fails. Exit status 77 means skipped.
check() {
  local name=$1 log
  shift
  log=$(mktemp)
  "$@" >"$log" 2>&1
  local status=$?
  if [ $status -eq 0 ]; then
    passed=$((passed + 1)) && echo "ok       $name"
  elif [ $status -eq 77 ]; then
    skipped=$((skipped + 1)) && echo "skipped  $name: $(tail -n 1 "$log")"
  else
    failed=$((failed + 1)) && failures+=("$name") && echo "FAILED   $name" && tail -n 60 "$log"
  fi
  rm -f "$log"
  return $status
}

# run_ctest PRESET ARGS…: every test of a build counts by itself.
run_ctest() {
  local preset=$1 log
  shift
  log=$(mktemp)
  ctest --test-dir "build/$preset" --output-on-failure -j 3 "$@" >"$log" 2>&1
  local status=$? total bad skip
  grep -E '\*\*\*(Failed|Skipped|Timeout|Exception|Not Run)' "$log" | sed "s/^/$preset: /"
  # "100% tests passed, 0 tests failed out of 123"
  read -r bad total < <(sed -n 's/.*, \([0-9]*\) tests\{0,1\} failed out of \([0-9]*\).*/\1 \2/p' "$log" | tail -n 1)
  skip=$(grep -cE '\*\*\*Skipped' "$log")
  if [ -z "${total:-}" ] || [ "$total" -eq 0 ]; then
    echo "FAILED   ctest $preset ran no test" && tail -n 40 "$log"
    failed=$((failed + 1)) && failures+=("ctest $preset")
  else
    passed=$((passed + total - bad - skip)) failed=$((failed + bad)) skipped=$((skipped + skip))
    [ "$bad" -gt 0 ] && failures+=("ctest $preset") && sed -n '/The following tests FAILED/,$p' "$log" && grep -E -B2 -A40 '\*\*\*(Failed|Timeout|Exception|Not Run)' "$log" | head -n 200
    echo "$([ "$bad" -eq 0 ] && echo 'ok      ' || echo 'FAILED  ') ctest $preset: $((total - bad - skip)) passed, $bad failed, $skip skipped"
  fi
  rm -f "$log"
  return $status
}

build() { cmake --preset "$1" && cmake --build --preset "$1"; }

# What some tests are skipped without, visibly: the reference tokenizers and the official client of the API that `serve` speaks, from
# Python's registry, and a browser for the web page. They come while the build runs.
export PYTHONPATH="$PWD/build/python${PYTHONPATH:+:$PYTHONPATH}"
(
  for package in tokenizers sentencepiece openai; do
    python3 -c "import $package" 2>/dev/null || python3 -m pip install -q --target build/python $package >/dev/null 2>&1 ||
      echo "note: the Python package $package could not be installed"
  done
  scripts/install_packages.sh browser >/dev/null 2>&1 || echo "note: Chromium could not be installed"
) &

check "include directions" python3 tools/check_layers.py
check "no marks of a merge" bash -c "! git grep -nE '^(<<<<<<<|>>>>>>>) '"
check "formatting" bash -c "git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror"
# Tests that need a GPU count where there is one.
gpu=(-LE gpu)
if nvidia-smi -L >/dev/null 2>&1; then gpu=(); fi
if check "build release" build release; then
  wait
  run_ctest release "${gpu[@]}"
  [ ${#gpu[@]} -eq 0 ] || check "tests that need a GPU" bash -c 'echo "this machine has none"; exit 77'
fi
if $lint; then
  check "lint" scripts/lint.sh
fi
if ! $quick; then
  if check "build asan" build asan; then
    # The unit tests, and every parser briefly under libFuzzer. Without what runs the shipped model: minutes under a
    # sanitizer, and the same code on the tiny models. And without what spends its time in a test's own oracle.
    run_ctest asan -LE slow -E 'embedded_cpu|Golden.*_reference|Shipped|AgreesWithTransformers|EqualsAnIndependentForwardPass|EveryMistakeOfTheGuessIsSeen'
  fi
fi

[ ${#failures[@]} -gt 0 ] && printf 'failed: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
