r"""InfiniGen as a model of lm-evaluation-harness, and tasks from local files.

Importing this package registers the model ``infinigen``:

    python -m infinigen.lm_eval --model infinigen --model_args pretrained=FILE,kv=infinigen,score=steps \
        --tasks openbookqa_local,copa_local --limit 200

``docs/python-lm-eval.md`` explains it.
"""

from .model import InfiniGenLM

__all__ = ["InfiniGenLM"]
