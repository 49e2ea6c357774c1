"""Start and end the process of a runner or a command."""

import gc
import os
import signal
import sys
from collections.abc import Callable

from pipeline.cli.command_line import FAILED, INTERRUPTED, WRONG_ARGUMENTS
from pipeline.cli.printing import say
from pipeline.errors import UserError, WrongArgument
from pipeline.processes import GARBAGE

ENOUGH_READ = 128 + signal.SIGPIPE  # the exit code of Unix tools


def run(name: str, main: Callable[[], int], after_interruption: str = "") -> int:
    """Run a program; show what ends it early as one line on stderr; return the exit code.

    The objects of TensorFlow and TFX, hundreds of thousands, are never garbage. To look for garbage among them while
    they are imported and when Python ends takes two of seven seconds.
    """
    gc.set_threshold(GARBAGE)
    try:
        try:
            return _run(name, main, after_interruption)
        finally:
            gc.freeze()
            sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output, such as head, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ENOUGH_READ


def _run(name: str, main: Callable[[], int], after_interruption: str) -> int:
    try:
        return main()
    except WrongArgument as error:
        for line in str(error).splitlines():
            say(f"{name}: {line}", error=True)
        return WRONG_ARGUMENTS
    except UserError as error:
        say(f"{name}: {error}", error=True)
    except BrokenPipeError:
        raise
    except (OSError, MemoryError) as error:  # a full disk, for example, where no log can record it
        from pipeline.cli.terminal import message_of

        say(f"{name}: {message_of(error)}", error=True)
    except KeyboardInterrupt as error:
        say(f"{name}: {str(error) or 'interrupted'}{after_interruption}", error=True)
        return getattr(error, "exit_code", INTERRUPTED)
    return FAILED
