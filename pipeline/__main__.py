"""Run one of the commands: python -m pipeline COMMAND --help."""

from pipeline.cli import startup

if __name__ == "__main__":
    startup.end_quietly()

import difflib
import importlib
import sys

from pipeline.cli.command_line import WRONG_ARGUMENTS
from pipeline.cli.printing import say

# In the order in which a user needs them; each is a module of pipeline.cli with a function main(argv).
COMMANDS = {
    "new": "make a pipeline from your data: config, module file and schema",
    "schema": "compare the reviewed schema with the data, accept a change, or write one",
    "spin": "run one step on a sample of the rows of the last run, and show its output",
    "runs": "list, show, compare and clean up the runs of a pipeline",
    "predict": "write a pushed model's answers for files of raw rows",
    "serve": "answer REST requests from the newest pushed version, or take it back",
    "monitor": "compare the requests to a served model with its training data",
}


def main(argv: list[str]) -> int:
    """Run the command that ``argv`` names with the rest of it; return the exit code."""
    startup.catch_ctrl_c()
    name, *rest = argv or ["--help"]
    program = f"pipeline {name}" if name in COMMANDS else "pipeline"
    return startup.run(program, lambda: _run(name, rest))


def _run(name: str, rest: list[str]) -> int:
    if name in ("-h", "--help"):
        say(_help())
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        say(f"pipeline: no command {name!r}{hint}\n\n{_help()}", error=True)
        return WRONG_ARGUMENTS
    return int(importlib.import_module(f"pipeline.cli.{name}").main(rest))


def _help() -> str:
    commands = "\n".join(f"  {name:<9} {text}" for name, text in COMMANDS.items())
    return (
        f"usage: python -m pipeline COMMAND [--pipeline NAME] ...\n\n{commands}\n\n"
        "python -m pipeline COMMAND --help shows its flags. To run a pipeline: python local_runner.py --help, "
        "python vertex_runner.py --help"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
