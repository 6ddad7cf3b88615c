#!/usr/bin/env bash
# Fuzzes targets side by side for MINUTES and prints a table: processes, runs, inputs kept, edges, the second in which the last new edge
# was found, findings. Exit 1 if there is a finding. Needs no compiler: the targets of the preset `fuzz`, here or packed (--pack).
# usage: tests/fuzz/long.sh MINUTES [--bin DIR] [--jobs N] [--out DIR] [NAME[=PROCESSES]…]
#        tests/fuzz/long.sh --pack FILE.tar.xz [--bin DIR]     the targets with the shared libraries that they need, in one file
#        tests/fuzz/long.sh --keep [--bin DIR] [--out DIR] [NAME…]   adds kept inputs to seeds/ that reach edges no seed reaches
#   NAME=3  three processes of target NAME, which share their inputs. Without names: all targets, one process each
#   --bin   directory of the targets (build/fuzz); --jobs  processes at once (all cores, or as many as were asked for by =);
#   --out   logs, inputs and findings (build/fuzz-out)
# A later run with the same --out goes on from the inputs that the earlier one kept.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=$root/build/fuzz out=$root/build/fuzz-out jobs="" minutes="" mode=run pack="" names=()
usage() { sed -n '2,11p' "$0" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2 && shift ;;
    --jobs) jobs=$2 && shift ;;
    --out) out=$2 && shift ;;
    --pack) mode=pack pack=$2 && shift ;;
    --keep) mode=keep ;;
    -*) usage ;;
    *) if [ -z "$minutes" ] && [ $mode = run ]; then minutes=$1; else names+=("$1"); fi ;;
  esac
  shift
done

if [ $mode = pack ]; then
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

export INFINIGEN_TEST_DATA=$root/tests LD_LIBRARY_PATH=$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
mkdir -p "$out" && out=$(cd "$out" && pwd) && bin=$(cd "$bin" && pwd) || exit 2
if [ ${#names[@]} -eq 0 ]; then
  for target in "$bin"/fuzz_*; do
    [ -x "$target" ] && [ ! -d "$target" ] && names+=("$(basename "$target" | sed 's/^fuzz_//')")
  done
fi
for name in "${names[@]}"; do
  [ -x "$bin/fuzz_${name%=*}" ] || { echo "$0: $bin has no target fuzz_${name%=*}" >&2; exit 2; }
  [[ $name != *=* || ${name#*=} =~ ^[1-9][0-9]*$ ]] || usage
done

if [ $mode = keep ]; then
  for name in "${names[@]}"; do
    [ -d "$out/$name" ] || continue
    before=$(find "$here/seeds/$name" -type f | wc -l)
    # Edges, not how often each was passed: an input for each of those would be thousands.
    "$bin/fuzz_$name" -merge=1 -use_counters=0 -timeout=20 -max_len=4096 "$here/seeds/$name" "$out/$name" >"$out/$name.keep.log" 2>&1 ||
      { echo "$name: cannot be merged, see $out/$name.keep.log" >&2; exit 1; }
    echo "$name: $before seeds, $(($(find "$here/seeds/$name" -type f | wc -l) - before)) more"
  done
  exit
fi
[ -n "$minutes" ] || usage
seconds=$(awk -v m="$minutes" 'BEGIN{printf "%d", m * 60}')

# one NAME INDEX: a process of the target. New inputs stay in OUT/NAME, which the target's processes share, findings beside it. Lines
# that it prints are in OUT/NAME.INDEX.log, each after the second in which it came.
one() {
  local name=$1 log=$out/$1.$2.log began=$SECONDS line longest=65536
  [ "$name" = http_framing ] && longest=2502  # it reads no more of an input
  {
    (cd "$out/$name" && exec "$bin/fuzz_$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -malloc_limit_mb=65 -max_len="$longest" \
      -artifact_prefix="$out/$name-" -print_final_stats=1 "$out/$name" "$here/seeds/$name") 2>&1
    echo "exit status $?"
  } | while IFS= read -r line; do printf '%d %s\n' $((SECONDS - began)) "$line"; done >"$log"
}

total=0
for name in "${names[@]}"; do total=$((total + $([[ $name == *=* ]] && echo "${name#*=}" || echo 1))); done
[ -n "$jobs" ] || { [[ "${names[*]}" == *=* ]] && jobs=$total || jobs=$(nproc); }
for name in "${names[@]}"; do
  rm -f "$out/${name%=*}".*.log
  mkdir -p "$out/${name%=*}"
  count=1
  [[ $name == *=* ]] && count=${name#*=}
  for ((i = 1; i <= count; i++)); do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do sleep 0.5; done
    one "${name%=*}" $i &
  done
done
wait

# A new edge: an input that a process made itself (NEW, REDUCE) raised its count. Those that it took over from another one do not count.
printf '%-24s %4s %12s %9s %8s %8s %9s  %s\n' target proc runs 'runs/s' inputs edges 'last new' result
failed=0
for name in "${names[@]}"; do
  name=${name%=*}
  logs=("$out/$name".*.log)
  read -r runs edges last < <(cat "${logs[@]}" | awk '
    /[ \t]INITED / { edges = 0 }
    /[ \t](INITED|NEW|REDUCE|RELOAD|pulse|DONE) / {
      for (i = 1; i < NF; ++i) if ($i == "cov:") now = $(i + 1)
      if (now > edges) { if (edges > 0 && /[ \t](NEW|REDUCE) / && $1 > last) last = $1; edges = now }
      if (now > most) most = now
    }
    /number_of_executed_units:/ { runs += $NF }
    END { print runs + 0, most + 0, last + 0 }')
  result=ok
  bad=$(grep -LE '^[0-9]+ exit status 0$' "${logs[@]}" | head -n 1)
  [ -z "$bad" ] || { result="FINDING, see $bad"; failed=1; }
  printf '%-24s %4d %12d %9d %8d %8d %7d s  %s\n' "$name" ${#logs[@]} "$runs" $((runs / (seconds > 0 ? seconds : 1))) \
    "$(find "$out/$name" -type f | wc -l)" "$edges" "$last" "$result"
done
echo "of $seconds s each"
exit $failed
