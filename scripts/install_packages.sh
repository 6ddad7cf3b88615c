#!/usr/bin/env bash
# Installs the Debian 12 packages that building and testing need; asks for nothing that is already there.
# usage: scripts/install_packages.sh [build|test|browser|python DIRECTORY]   (build: what scripts/demo.sh needs; test: what
#        tests cannot do without; browser: what tests of the web page are skipped without; python: what the Python package and
#        its tests need, from Python's registry, into a directory for PYTHONPATH unless Python finds them already)
set -euo pipefail

BUILD=(g++ cmake ninja-build pkg-config libhwy-dev libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libutf8proc-dev
       libedit-dev libxxhash-dev libboost1.81-dev libssl-dev ca-certificates)
TEST=(libgtest-dev libgmock-dev libopenblas-dev clang lld libclang-rt-14-dev clang-format clang-tidy ccache python3 python3-pip python3-dev)
PYTHON=(nanobind numpy pytest mypy ruff)

if [ "${1:-}" = python ]; then
  missing=()
  for package in "${PYTHON[@]}"; do
    PYTHONPATH="$2${PYTHONPATH:+:$PYTHONPATH}" python3 -c "import $package" 2>/dev/null || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && exit 0
  # Together, because pip does not add to a directory of programs that is there.
  exec python3 -m pip install -q --upgrade --target "$2" "${missing[@]}"
fi

wanted=("${BUILD[@]}")
[ "${1:-test}" = test ] && wanted+=("${TEST[@]}")
[ "${1:-test}" = browser ] && wanted=(chromium fonts-dejavu-core)

missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install_packages: missing ${missing[*]}; run as root or install sudo" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"
