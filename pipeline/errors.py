"""One exception whose message is meant for the person at the terminal."""

import re
import traceback

LONGEST_MESSAGE = 600  # characters; the log has the rest
BEAMS_OWN = re.compile(r" \[while running '[^']*'\]$")  # what Beam adds to every error
# What errors of the system, of TensorFlow, SQLite and C++ say, and mean.
LACKING = {
    "No space left on device": "the disk is full; free some space",
    "disk is full": "the disk is full; free some space",
    "Cannot allocate memory": "there is not enough memory",
    "MemoryError": "there is not enough memory",
    "bad_alloc": "there is not enough memory",
    "Too many open files": "too many files are open; raise the limit with ulimit -n",
}


class UserError(Exception):
    """Something the user can put right.

    The message says what was found and where, what was expected, and what to do; runners print it as it is, without a
    traceback, and exit with a non-zero code.
    """


class WrongArgument(UserError):
    """An argument of the command line is wrong, which shows only once the command works; its exit code is 2."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; the name of its class where there is none."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def frames_of(error: BaseException) -> traceback.StackSummary:
    """Return where an error arose; of one from another process, where it did there."""
    found: traceback.StackSummary = getattr(error, "frames", None) or traceback.extract_tb(error.__traceback__)
    return found


def message_of(cause: BaseException | None) -> str:
    """Return the message of an error and of what caused it, in a line."""
    if cause is None:
        return "no cause was given"
    if isinstance(cause, UserError):
        return BEAMS_OWN.sub("", str(cause))
    # KerasTuner puts the cause at the end of a long message, Beam into the error that it raised its own from.
    root = cause
    while root.__cause__ is not None:
        root = root.__cause__
    lines = [line.strip() for error in (cause, root) for line in str(error).splitlines() if line.strip()]
    texts = [lines[0], lines[-1]] if lines else ["no message"]
    message = f"{type(cause).__name__}: " + " ... ".join(dict.fromkeys(texts))
    message = message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}…"
    for said, meant in LACKING.items():
        if any(said in f"{type(error).__name__} {error}" for error in (cause, root)):
            return f"{meant} ({message})"
    return message
