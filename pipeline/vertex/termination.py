"""Turn SIGTERM, which Vertex AI sends some seconds before it kills a task, into an exception."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SECONDS_BETWEEN_TRIES = 0.01


@contextlib.contextmanager
def raised(error: Exception) -> Iterator[None]:
    """Raise ``error`` in the main thread when this process gets SIGTERM, so that what it holds can be given back.

    Not within a call of gRPC, but when it, or one after it, has ended: gRPC runs signal handlers inside its C core,
    where an exception aborts the process.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if _in_grpc(frame):
            signal.setitimer(signal.ITIMER_REAL, SECONDS_BETWEEN_TRIES)
            return
        raise error

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_grpc(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").split(".")[0] == "grpc":
            return True
        frame = frame.f_back
    return False
