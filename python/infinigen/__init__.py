"""Long-context language models whose KV cache lives in host memory.

    from infinigen import LLM

    with LLM("path/or/file.gguf", kv="infinigen", kv_limit="8GiB") as llm:
        for piece in llm.generate("Once upon a time", max_tokens=64, stream=True):
            print(piece, end="", flush=True)

``docs/python.md`` is the reference.
"""

from ._core import EngineStatistics, KvStatistics, ModelInfo, Plan, TokenLogprob, TokenLogprobs
from ._core import version as _version
from ._errors import Error, ExhaustedError, InvalidError, IoError, UnsupportedError
from .kv_map import KvMap
from .llm import LLM, describe_options
from .output import LogLikelihood, Output, Usage
from .stream import AsyncTextStream, TextStream
from .tokenizer import Tokenizer

__version__ = _version()

__all__ = [
    "LLM",
    "AsyncTextStream",
    "EngineStatistics",
    "Error",
    "ExhaustedError",
    "InvalidError",
    "IoError",
    "KvMap",
    "KvStatistics",
    "LogLikelihood",
    "ModelInfo",
    "Output",
    "Plan",
    "TextStream",
    "TokenLogprob",
    "TokenLogprobs",
    "Tokenizer",
    "UnsupportedError",
    "Usage",
    "__version__",
    "describe_options",
]
