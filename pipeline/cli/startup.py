"""Start and end the process of a runner or a command: its memory, the signals that end it, and its exit code.

Nothing here imports what takes time: ``restart_with_allocation`` runs twice, and Ctrl-C during the imports is handled.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

TUNABLES = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb"
NO_POOL = "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENOUGH_READ = 128 + signal.SIGPIPE  # the exit code of Unix tools
_received: list[signal.Signals] = []


def with_allocation(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables of a process with large pages and without a pool of memory, unless they are set already.

    Pages of 2 MB make random access to a large table faster; glibc uses them if a variable says so at the start
    (https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html). With oneDNN, TensorFlow keeps
    memory in a pool and never returns it (docs/decisions/0027). The Dockerfile sets both variables too.
    """
    present = environment.get(TUNABLES, "")
    if HUGE_PAGES not in present:
        present = ":".join(filter(None, (present, f"{HUGE_PAGES}=1")))
    return {NO_POOL: "1", **environment, TUNABLES: present}


def restart_with_allocation() -> None:
    """Start this program again in this process if it lacks these variables: nothing may have begun yet."""
    environment = with_allocation(os.environ)
    if sys.platform == "linux" and environment != os.environ and not _is_debugged():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _is_debugged() -> bool:
    """Return whether a debugger follows this process, which would lose it."""
    # From Python 3.12 on debuggers have another way (PEP 669).
    monitoring = getattr(sys, "monitoring", None)
    tool = monitoring.get_tool(monitoring.DEBUGGER_ID) if monitoring else None
    return sys.gettrace() is not None or tool is not None


class Interrupted(KeyboardInterrupt):
    """A signal ends the process."""

    def __init__(self, by: signal.Signals):
        super().__init__(f"interrupted ({by.name})")
        self.exit_code = 128 + by


def end_quietly() -> None:
    """Let Ctrl-C end this process without a traceback, as suits its imports: there is nothing to report or to keep."""
    _handle(signal.SIG_DFL, signal.SIGINT)


def catch_signals() -> None:
    """Let each of the signals raise Interrupted, wherever this process is."""
    _handle(_interrupt, *SIGNALS)


def catch_ctrl_c() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    _handle(signal.default_int_handler, signal.SIGINT)


def _handle(handler: Any, *numbers: signal.Signals) -> None:
    """Set the handler of signals, except ignored ones: nohup ignores SIGHUP, and a shell SIGINT of what & starts."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def check_interruption() -> None:
    """Raise Interrupted if this process received a signal and a library suppressed the exception."""
    if _received:
        raise Interrupted(_received[0])


def _interrupt(number: int, _: FrameType | None) -> None:
    _received.append(signal.Signals(number))
    check_interruption()


def run(name: str, main: Callable[[], int], after_interruption: str = "") -> int:
    """Run a program; show what ends it early as one line on stderr, which begins with its name; return the exit code.

    The objects of TensorFlow and TFX, hundreds of thousands, are never garbage. To look for garbage among them while
    they are imported and when Python ends takes two of seven seconds.
    """
    from pipeline.processes import GARBAGE

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
    from pipeline.cli.command_line import FAILED, INTERRUPTED, WRONG_ARGUMENTS
    from pipeline.cli.printing import say
    from pipeline.errors import UserError, WrongArgument

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
        from pipeline.errors import message_of

        say(f"{name}: {message_of(error)}", error=True)
    except KeyboardInterrupt as error:
        say(f"{name}: {str(error) or 'interrupted'}{after_interruption}", error=True)
        return getattr(error, "exit_code", INTERRUPTED)
    return FAILED
