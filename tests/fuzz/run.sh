#!/usr/bin/env bash
# Runs one fuzz target on its seeds, then for SECONDS on generated inputs. New inputs are discarded. A crash fails the run; libFuzzer
# saves its input in the current directory.
# usage: tests/fuzz/run.sh PATH/TO/fuzz_NAME SECONDS
set -euo pipefail
target=$1
seconds=$2
here=$(cd "$(dirname "$0")" && pwd)
name=$(basename "$target")
seeds="$here/seeds/${name#fuzz_}"
[ -d "$seeds" ] || { echo "$0: the seed directory $seeds does not exist" >&2; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Inputs have at most 64 KiB, so a single allocation of 65 MiB would break the promise that loading takes at most file size + 64 MiB.
# The limit for the process is looser, because the sanitizer keeps freed memory.
"$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=65 -max_len=65536 \
  -artifact_prefix=./ -print_final_stats=0 "$scratch" "$seeds"
