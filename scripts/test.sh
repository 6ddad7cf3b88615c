#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU. Last line: "N passed, N failed, N skipped".
# usage: scripts/test.sh [--quick | --lint | --long]
#   --quick  the release build's tests only
#   --lint   clang-tidy too, which adds four minutes on two cores
#   --long   every test under every sanitizer, each parser fuzzed for a minute, a soak of 5 minutes and one under the thread sanitizer,
#            the benchmarks built: over an hour on two cores
# Which test runs in which build: docs/testing.md.
set -uo pipefail
cd "$(dirname "$0")/.."

quick=false lint=false long=false
case "${1:-}" in
  --quick) quick=true ;;
  --lint) lint=true ;;
  --long) long=true ;;
  "") ;;
  *) echo "usage: scripts/test.sh [--quick | --lint | --long]" >&2 && exit 2 ;;
esac

scripts/install_packages.sh test || exit 1

# The model of the tests with a real GGUF file. Without a network they are skipped, visibly.
if [ -z "${INFINIGEN_SMOLLM2:-}" ] && smollm2=$(scripts/get_model.sh smollm2 2>/dev/null); then
  export INFINIGEN_SMOLLM2=$smollm2
fi
# Sources from which grammars of answers are built. Without a network the build has none, and their tests are skipped, visibly.
scripts/get_xgrammar.sh >/dev/null 2>&1 || echo "note: xgrammar could not be downloaded"

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

# run_ctest PRESET ARGS…: every case of every test counts by itself.
run_ctest() {
  local preset=$1 log junit=$PWD/build/$1/test_results.xml results=$PWD/build/$1/test_results good=0 bad=0 skip=0
  shift
  log=$(mktemp)
  rm -rf "$junit" "$results"
  ctest --test-dir "build/$preset" --output-on-failure --output-junit "$junit" -j 3 "$@" >"$log" 2>&1
  if scripts/count_tests.py "$junit" "$results" >"$log.counts" 2>&1; then
    read -r good bad skip < <(tail -n 1 "$log.counts")
    head -n -1 "$log.counts" | sed "s/^/$preset: /"
  fi
  if [ $((good + bad)) -eq 0 ]; then
    echo "FAILED   ctest $preset ran no test" && tail -n 40 "$log" "$log.counts"
    failed=$((failed + 1)) && failures+=("ctest $preset")
  else
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + skip))
    [ "$bad" -gt 0 ] && failures+=("ctest $preset") && grep -E -A120 '\*\*\*(Failed|Timeout|Exception|Not Run)|\[  FAILED  \]|ERROR: .*Sanitizer|WARNING: ThreadSanitizer' "$log" | head -n 400
    echo "$([ "$bad" -eq 0 ] && echo 'ok      ' || echo 'FAILED  ') ctest $preset: $good passed, $bad failed, $skip skipped"
  fi
  rm -f "$log" "$log.counts"
}

# start FILE COMMAND…: runs beside what follows; `check NAME finish FILE` waits for it and counts it.
start() {
  local file=build/log/$1
  shift
  mkdir -p build/log && rm -f "$file.status"
  {
    "$@" >"$file" 2>&1
    echo $? >"$file.status"
  } &
}
finish() {
  while [ ! -s "build/log/$1.status" ]; do sleep 0.2; done
  cat "build/log/$1"
  return "$(cat "build/log/$1.status")"
}

# build PRESET "CMAKE OPTIONS" TARGETS…
build() {
  local preset=$1 options=$2
  shift 2
  # shellcheck disable=SC2086
  cmake --preset "$preset" -DINFINIGEN_TEST_PROCESSES=BINARY $options && cmake --build --preset "$preset" --target "$@"
}
build_after() {  # ANOTHER'S FILE, then as build
  renice -n 10 $BASHPID
  while [ ! -s "build/log/$1.status" ]; do sleep 0.2; done
  shift
  build "$@"
}

# What some tests are skipped without, visibly: the reference tokenizers and the official client of the API that `serve` speaks, from
# Python's registry, and a browser for the web page. They come while the build runs.
export PYTHONPATH="$PWD/build/python${PYTHONPATH:+:$PYTHONPATH}"
# These come first, because nanobind is part of the build.
scripts/install_packages.sh python build/python >/dev/null 2>&1 || echo "note: the Python packages of the package's tests could not be installed"
(
  for package in tokenizers sentencepiece openai; do
    python3 -c "import $package" 2>/dev/null || python3 -m pip install -q --target build/python $package >/dev/null 2>&1 ||
      echo "note: the Python package $package could not be installed"
  done
  scripts/install_packages.sh browser >/dev/null 2>&1 || echo "note: Chromium could not be installed"
) &
downloads=$!

# Tests that need a GPU count where there is one. Where there is none, GPU code is compiled and linked to see that it can be.
release_options="-DPython_EXECUTABLE=$(python3 -c 'import sys; print(sys.executable)')" release_targets=(all) gpu=(-LE gpu)
if nvidia-smi -L >/dev/null 2>&1; then
  release_options+=" -DINFINIGEN_CUDA_CHECK=OFF" gpu=()
fi
# Address sanitizer: what reads foreign bytes or computes addresses (label bytes), and the fuzz targets. Thread sanitizer: what runs on
# several threads. Both without the shipped model, tests that spend their time in an oracle of their own, and bounds of time and memory:
# the release build has those.
asan_options="-DINFINIGEN_FUZZ_SECONDS=1" asan_targets=(tests_bytes tests_fuzz) asan_tests=(-L '^(bytes|fuzz)$' -LE 'gpu|slow')
asan_filter='-*Shipped*:*AgreesWithTransformers*:*StayWithin*:ChatPromptWork.*:JinjaLimits.*'
tsan_targets=(tests_threads) tsan_tests=(-L '^threads$') tsan_filter='-*Shipped*:JinjaLimits.*'
if $quick; then
  release_options+=" -DINFINIGEN_TEST_ONCE=OFF"
fi
if $long; then
  release_options+=" -DINFINIGEN_BENCH=ON -DINFINIGEN_TEST_ONCE=OFF" release_targets=(all bench)
  export INFINIGEN_NOISE_ROUNDS=2500 INFINIGEN_MANY_MINUTES=5 INFINIGEN_KV_STRESS=300
  asan_options="-DINFINIGEN_FUZZ_SECONDS=60" asan_targets=(all) asan_tests=(-LE gpu) asan_filter='*'
  tsan_targets=(all) tsan_tests=(-LE 'gpu|slow') tsan_filter='*'
fi

start format bash -c "git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format --dry-run -Werror"
check "include directions" python3 tools/check_layers.py
check "documentation" python3 tools/check_docs.py
check "no marks of a merge" bash -c "! git grep -nE '^(<<<<<<<|>>>>>>>) '"
start release build ci "$release_options" "${release_targets[@]}"
# The other builds run beside the tests of this one, which do not keep two cores busy, and give way to them.
if ! $quick; then
  start asan build_after release asan "$asan_options" "${asan_targets[@]}"
  start tsan build_after asan tsan "" "${tsan_targets[@]}"
fi
check "formatting" finish format
if check "build release" finish release; then
  wait $downloads
  run_ctest ci "${gpu[@]}"
  [ ${#gpu[@]} -eq 0 ] || check "tests that need a GPU" bash -c 'echo "this machine has none"; exit 77'
fi
if $long; then
  check "pip install" tests/python/install.sh
  check "soak of 5 minutes" scripts/soak.sh 5 --binary build/ci/infinigen
fi
if $lint; then
  check "lint" scripts/lint.sh
fi
if ! $quick; then
  check "build asan" finish asan && GTEST_FILTER=$asan_filter run_ctest asan "${asan_tests[@]}"
  check "build tsan" finish tsan && GTEST_FILTER=$tsan_filter run_ctest tsan "${tsan_tests[@]}"
fi
if $long && [ -x build/tsan/infinigen ]; then
  check "soak under the thread sanitizer" scripts/soak.sh 2 --tsan
fi

if $long; then
  check "simulation, ten minutes" build/ci/simulation_test --seconds 600 --seed "$(date +%Y%m%d)00000"
fi

[ ${#failures[@]} -gt 0 ] && printf 'failed: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
