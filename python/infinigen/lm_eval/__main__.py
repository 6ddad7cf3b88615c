"""The harness's own command line, with the model ``infinigen`` registered and the local tasks known."""

from __future__ import annotations

import pathlib
import sys


def main() -> None:
    """Run ``lm_eval`` with this process's arguments."""
    from lm_eval.__main__ import cli_evaluate

    from . import model  # noqa: F401  registers the model

    arguments = sys.argv[1:]
    if arguments[:1] not in (["run"], ["ls"], ["validate"]):
        arguments = ["run", *arguments]
    if "--include_path" not in arguments:
        arguments += ["--include_path", str(pathlib.Path(__file__).parent / "tasks")]
    sys.argv = [sys.argv[0], *arguments]
    cli_evaluate()


if __name__ == "__main__":
    main()
