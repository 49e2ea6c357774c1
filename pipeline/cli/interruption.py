"""Told to end, by Ctrl-C, by a closed terminal or by whoever stops the machine: it ends with a sentence."""

import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_told: list[signal.Signals] = []


class Interrupted(KeyboardInterrupt):
    """Told to end."""

    def __init__(self, by: signal.Signals):
        super().__init__(f"interrupted ({by.name})")
        self.exit_code = 128 + by


def end_quietly() -> None:
    """Let Ctrl-C end this process without a traceback, as suits its imports: there is nothing to report or to keep."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def catch_signals() -> None:
    """Let each of the signals raise Interrupted, wherever this process is.

    One that is ignored stays so: nohup ignores SIGHUP, and a shell without job control SIGINT of what it starts with &.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)


def catch_ctrl_c() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, unless it is ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def check() -> None:
    """Raise Interrupted if this process was told to end and a library took the exception for one of its own."""
    if _told:
        raise Interrupted(_told[0])


def _raise(number: int, _: FrameType | None) -> None:
    _told.append(signal.Signals(number))
    check()
