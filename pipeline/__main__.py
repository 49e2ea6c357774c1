"""Run one of the commands: python -m pipeline COMMAND --help."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # during the imports below there is nothing to say or to keep

import difflib
import importlib
import sys

from pipeline.cli.command_line import FAILED, INTERRUPTED, WRONG_ARGUMENTS, until_enough_read
from pipeline.cli.interruption import catch_ctrl_c
from pipeline.cli.printing import say
from pipeline.errors import UserError

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
    catch_ctrl_c()
    name, *rest = argv or ["--help"]
    return until_enough_read(lambda: _run(name, rest))


def _run(name: str, rest: list[str]) -> int:
    if name in ("-h", "--help"):
        say(_help())
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        say(f"pipeline: no command {name!r}{hint}\n\n{_help()}", error=True)
        return WRONG_ARGUMENTS
    try:
        return int(importlib.import_module(f"pipeline.cli.{name}").main(rest))
    except UserError as error:
        say(f"pipeline {name}: {error}", error=True)
        return FAILED
    except KeyboardInterrupt:
        say(f"pipeline {name}: interrupted", error=True)
        return INTERRUPTED


def _help() -> str:
    commands = "\n".join(f"  {name:<9} {text}" for name, text in COMMANDS.items())
    return (
        f"usage: python -m pipeline COMMAND [--pipeline NAME] ...\n\n{commands}\n\n"
        "python -m pipeline COMMAND --help shows its flags. To run a pipeline: python local_runner.py --help, "
        "python vertex_runner.py --help"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
