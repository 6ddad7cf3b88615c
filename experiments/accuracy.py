"""What the experiments on accuracy share: both models, the two kinds of command, and tables with the models side by side.

The loss is measured after a prompt: the first half of each window is prefilled, the second half is decoded and scored, so
that every scored token has at least half of the context behind it. Standard errors are over windows, since tokens of one
window are not independent. Facts are asked for in the form that each model understands.
"""
import dataclasses

from common import SMOLLM2, WALDEN, Model, command, scored, table


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model that is measured."""
    file: Model | None  # None: the shipped model
    form: str           # of the questions for planted facts

    @property
    def flag(self):
        return " -m MODEL" if self.file else ""

    @property
    def files(self):
        return (self.file,) if self.file else ()


MODELS = {"infinigen-mini": Subject(None, "plain"), "SmolLM2": Subject(SMOLLM2, "chat")}

# A small window and minimum, so that the attended share is determined by the selection.
BARE = "--kv-window 64 --kv-min 64 --kv-sinks 4"
WINDOWS = "-c 4096 --from 2048 --windows 4"


def loss(model, flags, windows=WINDOWS, texts=(WALDEN,), **keys):
    """Perplexity, KL divergence and attended share against `full`."""
    subject = MODELS[model]
    return command(f"eval ppl{' -f TEXT' * len(texts)} {windows}{subject.flag} {flags}", *texts, *subject.files, model=model, **keys)


def facts(model, flags, n=8, **keys):
    """Texts of 4,096 tokens of Walden with one planted fact, which is asked for."""
    subject = MODELS[model]
    return command(f"eval needle -f TEXT --lengths 4096 --facts 1 --n {n} --form {subject.form}{subject.flag} {flags}",
                   WALDEN, *subject.files, model=model, **keys)


def read(output, keys):
    """The row of either command."""
    if "cells" in output:
        cell = output["cells"][0]
        return [keys | {"found": cell["found"], "cases": cell["n"], "needle_attended": output["kv_stats"]["attended_ratio"]}]
    return [scored(output, keys)]


def joined(rows, *keys):
    """Joins the rows of a model that agree in all of `keys`: its loss and its facts."""
    both = {}
    for row in rows:
        both.setdefault((row["model"], *(row.get(key) for key in keys)), {}).update(row)
    return list(both.values())


def of_model(rows, model):
    return [row for row in rows if row["model"] == model]


def measured(rows):
    """The models that have rows."""
    return [model for model in MODELS if of_model(rows, model)]


def beside(head, rows, label, heads, cells):
    """A table with a line for each label and, for each model, the columns `heads` with `cells(row)`."""
    models = measured(rows)
    labels = list(dict.fromkeys(label(row) for row in rows))
    found = {(row["model"], label(row)): cells(row) for row in rows}
    names = [f"{model}: {name}" if i == 0 else name for model in models for i, name in enumerate(heads)]
    return table([head, *names],
                 [[of, *(cell for model in models for cell in found.get((model, of), ["-"] * len(heads)))] for of in labels])


# ---- cells ----


def changed(row):
    """The change of perplexity against full with its standard error."""
    if "loss" not in row:
        return "-"
    return f"{row['loss']:+.2f}" + (f" ± {row['loss_stderr']:.2f} %" if "loss_stderr" in row else " %")


def diverged(row):
    """The KL divergence from full with its standard error."""
    if "kld" not in row:
        return "-"
    return f"{row['kld']:.4f}" + (f" ± {row['kld_stderr']:.4f}" if "kld_stderr" in row else "")


def share(row, key="attended"):
    return f"{100 * row[key]:.1f} %" if key in row else "-"


def counted(row):
    return f"{row['found']} of {row['cases']}" if "found" in row else "-"
