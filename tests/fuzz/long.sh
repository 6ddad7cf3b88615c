#!/usr/bin/env bash
# Fuzzes all targets side by side for MINUTES each and prints a table: runs, inputs kept, edges, new edges in the last quarter of the
# time, findings. Exit 1 if there is a finding. Needs no compiler: the targets of the preset `fuzz`, here or packed (see --pack).
# usage: tests/fuzz/long.sh MINUTES [--bin DIR] [--jobs N] [--out DIR] [NAME…]
#        tests/fuzz/long.sh --pack FILE.tar.xz [--bin DIR]     the targets with the shared libraries that they need, in one file
#   --bin   directory of the targets (build/fuzz); --jobs  at once (all cores); --out  logs, inputs and findings (build/fuzz-out)
#   NAME@2  a second process of target NAME, with inputs of its own
# A later run with the same --out goes on from the inputs that the earlier one kept.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=$root/build/fuzz out=$root/build/fuzz-out jobs=$(nproc) minutes="" pack="" names=()
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2 && shift ;;
    --jobs) jobs=$2 && shift ;;
    --out) out=$2 && shift ;;
    --pack) pack=$2 && shift ;;
    -*) sed -n '2,8p' "$0" >&2; exit 2 ;;
    *) if [ -z "$minutes" ] && [ -z "$pack" ]; then minutes=$1; else names+=("$1"); fi ;;
  esac
  shift
done

if [ -n "$pack" ]; then
  stage=$(mktemp -d)
  trap 'rm -rf "$stage"' EXIT
  mkdir -p "$stage/fuzz/lib"
  for target in "$bin"/fuzz_*; do
    [ -x "$target" ] || continue
    strip --strip-debug -o "$stage/fuzz/$(basename "$target")" "$target"
    # libc and its parts must be the machine's own; the others travel.
    ldd "$target" | awk '/=> \//{print $3}' | grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv|ld-linux[^/]*)\.so' |
      xargs -r cp -nLt "$stage/fuzz/lib"
  done
  tar -C "$stage" -cJf "$pack" fuzz && ls -l "$pack"
  exit
fi
[ -n "$minutes" ] || { sed -n '2,8p' "$0" >&2; exit 2; }

export INFINIGEN_TEST_DATA=$root/tests LD_LIBRARY_PATH=$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [ ${#names[@]} -eq 0 ]; then
  for target in "$bin"/fuzz_*; do
    [ -x "$target" ] && [ ! -d "$target" ] && names+=("$(basename "$target" | sed 's/^fuzz_//')")
  done
fi
seconds=$(awk -v m="$minutes" 'BEGIN{printf "%d", m * 60}')
mkdir -p "$out"

# one NAME: fuzzes it. New inputs and findings stay in OUT/NAME. Every ten seconds the number of edges goes into the log's samples.
one() {
  local name=$1 target=${1%@*} log=$out/$1.log
  mkdir -p "$out/$name"
  (cd "$out/$name" && exec "$bin/fuzz_$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -malloc_limit_mb=65 -max_len=65536 \
    -artifact_prefix="$out/$name-" -print_final_stats=1 "$out/$name" "$here/seeds/$target") >"$log" 2>&1 &
  local fuzzer=$! began=$SECONDS last=0
  : >"$log.samples"
  while kill -0 $fuzzer 2>/dev/null; do
    sleep 1
    if [ $((SECONDS - last)) -ge 10 ] || [ "$seconds" -le 60 ]; then
      last=$SECONDS
      echo "$((SECONDS - began)) $(grep -oE 'cov: [0-9]+' "$log" | tail -n 1 | cut -c6-)" >>"$log.samples"
    fi
  done
  wait $fuzzer
  echo $? >"$log.status"
}

for name in "${names[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do sleep 0.5; done
  one "$name" &
done
wait

printf '%-26s %12s %8s %8s %10s  %s\n' target runs inputs edges 'new edges' result
failed=0
for name in "${names[@]}"; do
  log=$out/$name.log status=$(cat "$out/$name.log.status")
  runs=$(grep -oE 'number_of_executed_units: [0-9]+' "$log" | awk '{print $2}')
  edges=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1 | cut -c6-)
  before=$(awk -v t="$((seconds * 3 / 4))" '$1 <= t && $2 != ""{e = $2} END{print e + 0}' "$log.samples")
  result=ok
  [ "$status" -eq 0 ] || { result="FINDING, see $log"; failed=1; }
  printf '%-26s %12s %8s %8s %10s  %s\n' "$name" "${runs:-?}" "$(find "$out/$name" -type f | wc -l)" "${edges:-?}" "$((${edges:-0} - before))" "$result"
done
exit $failed
