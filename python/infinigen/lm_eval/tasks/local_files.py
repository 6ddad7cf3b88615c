"""Questions of published tasks from local files, without a hub; for the YAML files beside this one.

$INFINIGEN_DATA is the directory with copa, openbookqa, piqa and winogrande. The files are those that
``infinigen eval choice`` reads, in the splits that it asks.
"""

from __future__ import annotations

import csv
import json
import os
import pathlib
import re
from typing import Any

import datasets


def _file(task: str, pattern: str) -> pathlib.Path:
    root = os.environ.get("INFINIGEN_DATA")
    if not root:
        raise FileNotFoundError("set INFINIGEN_DATA to the directory with the files of the tasks")
    found = sorted((pathlib.Path(root) / task).glob(pattern))
    if len(found) != 1:
        raise FileNotFoundError(f"{root}/{task}: has {len(found)} files {pattern}, but one is needed")
    return found[0]


def _lines(path: pathlib.Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def _validation(rows: list[dict[str, Any]]) -> dict[str, datasets.Dataset]:
    return {"validation": datasets.Dataset.from_list(rows)}


def copa(**_: object) -> dict[str, datasets.Dataset]:
    """COPA, from SuperGLUE's validation split."""
    return _validation(_lines(_file("copa", "*val*.jsonl")))


def copa_text(doc: dict[str, Any]) -> str:
    """Return the premise without its full stop, and the connection."""
    connection = {"cause": "because", "effect": "therefore"}[doc["question"]]
    return f"{doc['premise'].strip()[:-1]} {connection}"


def copa_choices(doc: dict[str, Any]) -> list[str]:
    """Return the choices with a small first letter."""
    return [doc[name][0].lower() + doc[name][1:] for name in ("choice1", "choice2")]


def openbookqa(**_: object) -> dict[str, datasets.Dataset]:
    """OpenBookQA's test split."""
    rows = []
    with _file("openbookqa", "test.tsv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            parts = re.split(r"\(([A-D])\)", row["Choices"])
            choices = dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))
            answer = list(choices).index(row["Answer Key"].strip())
            rows.append({"stem": row["Question Stem"], "choices": list(choices.values()), "answer": answer})
    return {"test": datasets.Dataset.from_list(rows)}


def piqa(**_: object) -> dict[str, datasets.Dataset]:
    """PIQA's validation split."""
    rows = _lines(_file("piqa", "*val*.jsonl"))
    labels = _file("piqa", "*.lst").read_text().split()
    for row, label in zip(rows, labels, strict=True):
        row["label"] = int(label)
    return _validation(rows)


def winogrande(**_: object) -> dict[str, datasets.Dataset]:
    """WinoGrande's development split."""
    return _validation(_lines(_file("winogrande", "dev.jsonl")))


def winogrande_answer(doc: dict[str, Any]) -> int:
    """Return the index of the right option."""
    return int(doc["answer"]) - 1


def winogrande_contexts(doc: dict[str, Any]) -> list[str]:
    """Return the sentence up to the gap, filled with each option."""
    before = doc["sentence"][: doc["sentence"].index("_")]
    return [before + doc[name] for name in ("option1", "option2")]


def winogrande_ending(doc: dict[str, Any]) -> str:
    """Return what follows the gap, which is scored after each context."""
    sentence: str = doc["sentence"]
    return sentence[sentence.index("_") + 1 :].strip()
