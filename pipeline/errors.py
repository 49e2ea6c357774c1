"""One exception whose message is meant for the person at the terminal."""

import traceback


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
