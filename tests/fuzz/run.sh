#!/usr/bin/env bash
# Runs one fuzz target on its seeds, then for SECONDS on inputs of its own. New inputs are thrown away; a crash is kept in the
# current directory by libFuzzer and fails.
# usage: tests/fuzz/run.sh PATH/TO/fuzz_NAME SECONDS
set -euo pipefail
target=$1
seconds=$2
here=$(cd "$(dirname "$0")" && pwd)
name=$(basename "$target")
seeds="$here/seeds/${name#fuzz_}"
[ -d "$seeds" ] || { echo "no seeds in $seeds"; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Inputs are at most 64 KiB, so no single allocation may reach 65 MiB: what is promised to users, file size + 64 MiB. The limit on the
# whole process is loose, because the sanitizer keeps freed memory.
"$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=65 -max_len=65536 \
  -artifact_prefix=./ -print_final_stats=0 "$scratch" "$seeds"
