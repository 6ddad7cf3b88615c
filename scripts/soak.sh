#!/usr/bin/env bash
# Soak: `infinigen serve` in a memory cgroup under mixed clients, every answer compared with that of a quiet run.
# usage: scripts/soak.sh MINUTES [--device cuda] [--binary PATH] [--tsan] [--no-cgroup] [-- FLAGS of serve]
#   --binary  the program; otherwise that of the preset `ci` or `release`, or with --tsan of `tsan`
#   --tsan    the program has the thread sanitizer: races fail the run, memory and time are not judged
# What is checked: docs/reliability.md. Exit 1: a limit was passed. Needs Python 3 and nothing else.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
binary="" tsan=false
for ((i = 1; i <= $#; i++)); do
  [ "${!i}" = --tsan ] && tsan=true
  [ "${!i}" = --binary ] && binary=given
  [ "${!i}" = -- ] && break
done
if [ -z "$binary" ]; then
  candidates=("$root/build/ci/infinigen" "$root/build/release/infinigen")
  $tsan && candidates=("$root/build/tsan/infinigen")
  for candidate in "${candidates[@]}"; do
    [ -x "$candidate" ] && binary=$candidate && break
  done
  [ -n "$binary" ] || { echo "$0: no program in ${candidates[*]}; build it, or give --binary PATH" >&2; exit 2; }
  set -- --binary "$binary" "$@"
fi
exec python3 "$root/tests/soak/soak.py" "$@"
