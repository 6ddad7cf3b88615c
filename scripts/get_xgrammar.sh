#!/usr/bin/env bash
# Unpacks the sources of xgrammar (Apache-2.0), from which the build makes the grammars of answers
# (docs/structured-output.md). pip downloads them, with the index it is set up for, and checks their hash; nothing is
# installed. Without them the server is built without grammars.
# usage: scripts/get_xgrammar.sh    (prints the directory)
set -euo pipefail

VERSION=0.2.8
HASH=sha256:8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
SOURCES="${XDG_CACHE_HOME:-$HOME/.cache}/infinigen/sources"
DIRECTORY="$SOURCES/xgrammar-$VERSION"

if [ ! -f "$DIRECTORY/include/xgrammar/xgrammar.h" ]; then
  mkdir -p "$SOURCES"
  work=$(mktemp -d "$SOURCES/.get.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  echo "xgrammar==$VERSION --hash=$HASH" > "$work/wanted"
  # pip unpacks the archive and then asks its build system for metadata, which is not needed and may not be there: the
  # unpacked sources are what counts.
  TMPDIR="$work" timeout 240 python3 -m pip download --quiet --no-clean --no-deps --no-build-isolation --no-binary :all: \
    --require-hashes --requirement "$work/wanted" --dest "$work/archive" > "$work/log" 2>&1 || true
  header=$(find "$work" -path '*/include/xgrammar/xgrammar.h' | head -n 1)
  [ -n "$header" ] || { echo "get_xgrammar: xgrammar $VERSION could not be downloaded:" >&2; tail -n 5 "$work/log" >&2; exit 1; }
  mv "${header%/include/xgrammar/xgrammar.h}" "$DIRECTORY"
fi
echo "$DIRECTORY"
