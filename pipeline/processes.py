"""Run work in separate processes, several at a time, that can be killed.

Loading TensorFlow and TFX takes ten seconds, and a process in which TensorFlow has computed must not fork. So this
process, once it has loaded them and before it computes, forks a template, which only forks: each piece of work starts
there within milliseconds, with the loaded modules in shared memory.
"""

import contextlib
import ctypes
import gc
import importlib
import logging
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from pipeline.errors import UserError

PR_SET_PDEATHSIG = 1  # of prctl(2)
GARBAGE = 50_000  # objects after which the garbage collector looks for cycles among them
UNUSUAL_THREADS = 97  # a number that no other code sets
LOGGER = "pipeline"
PROCESS, RECORD, QUESTION, CPU, RESULT, ERROR = "process", "record", "question", "cpu", "result", "error"


class Processes:
    """Processes that each do a piece of work and end; usable from several threads."""

    def __init__(self, template: int, requests: socket.socket):
        self.cpu_seconds: dict[str, float] = {}
        self._template, self._requests = template, requests
        self._running: dict[str, int] = {}
        self._ended: set[str] = set()
        self._lock = threading.Lock()

    def run(
        self, work: Callable[..., Any], *arguments: Any, name: str, answer: Callable[[Any], Any] | None = None
    ) -> Any:
        """Call a function in a new process; return its result, or raise its error.

        Its log records of "pipeline" are handled here; ``answer`` answers its questions (``ask``). UserError: it exited
        without a result.
        """
        connection, theirs = Pipe()
        with connection:
            with theirs, contextlib.suppress(OSError), self._lock:
                socket.send_fds(self._requests, [b"."], [theirs.fileno()])
            try:
                connection.send((work, arguments))
                while True:
                    kind, value = connection.recv()
                    if kind == PROCESS:
                        self._running[name] = value
                        if name in self._ended:
                            self.kill_all([name])
                    elif kind == RECORD:  # it is in the log already
                        for handler in logging.getLogger(LOGGER).handlers:
                            handler.handle(value)
                    elif kind == QUESTION:
                        assert answer
                        connection.send(answer(value))
                    elif kind == CPU:
                        self.cpu_seconds[name] = value
                        add_cpu_seconds(value)
                    elif kind == RESULT:
                        return value
                    else:
                        raise _unpacked(value)
            except (EOFError, ConnectionError):
                raise UserError(
                    "its process exited without an error message: it crashed, or the system killed it because memory "
                    "ran out; the log may have more"
                ) from None
            finally:
                self._running.pop(name, None)
                self._ended.discard(name)

    def kill_all(self, names: Iterable[str], how: signal.Signals = signal.SIGKILL) -> None:
        """Kill processes and their children, also those that are about to start."""
        for name in names:
            self._ended.add(name)
            if name in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._running[name], how)

    def close(self) -> None:
        """Kill all running processes."""
        self.kill_all(list(self._running))
        self._requests.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._template, signal.SIGKILL)  # and so one that has just been forked
        os.waitpid(self._template, 0)


@contextlib.contextmanager
def processes(*modules: str) -> Iterator[Processes | None]:
    """Yield processes for work until the block ends; None if the system cannot have them.

    TensorFlow must not have computed. Only Linux kills a process with its parent, and a single core gains nothing.
    ``modules`` are imported here once, instead of in every process.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1 or _has_computed():
        yield None
        return
    for module in modules:
        importlib.import_module(module)
    collect_rarely()
    sys.stdout.flush()
    sys.stderr.flush()
    mine, theirs = socket.socketpair()
    for one in (mine, theirs):
        one.settimeout(None)  # where Beam has signed in to Google Cloud, each new socket gives up after 60 s
    parent = os.getpid()
    template = _fork()
    if not template:
        try:
            mine.close()
            _be_template(theirs, parent)
        finally:
            os._exit(1)  # whatever happens, it does not go on as the program that it was forked from
    theirs.close()
    made = Processes(template, mine)
    try:
        yield made
    finally:
        made.close()


def collect_rarely() -> None:
    """Collect garbage among new objects only, and less often: after every 700 it took 7 % of a run's time."""
    gc.freeze()
    gc.set_threshold(GARBAGE)
    gc.enable()


def cpu_seconds() -> float:
    """Return the CPU time of this process, its finished children and its work in ``Processes``."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime + _cpu_of_work


def add_cpu_seconds(seconds: float) -> None:
    """Count CPU time of a process that works for this one but is not its child."""
    global _cpu_of_work
    with _cpu_lock:
        _cpu_of_work += seconds


def ask(question: Any) -> Any:
    """Return the answer of the process that requested this work; for one thread of the work."""
    assert _sender
    with _sender.lock:  # type: ignore[union-attr]
        _sender.connection.send((QUESTION, question))
    return _sender.connection.recv()


def _has_computed() -> bool:
    """Return whether TensorFlow has started its threads; reading their number would start CUDA, unusable in forks."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return False
    try:
        for number in (UNUSUAL_THREADS, 0):  # the current number is not rejected; 0 is the default
            tensorflow.config.threading.set_inter_op_parallelism_threads(number)
    except RuntimeError:
        return True
    return False


def _fork() -> int:
    with warnings.catch_warnings():
        # The threads are those of NumPy's and Arrow's libraries, which are prepared for it.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _be_template(requests: socket.socket, parent: int) -> NoReturn:
    _end_with(parent)
    template = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no exit code is read
    while True:
        asked, descriptors, *_ = socket.recv_fds(requests, 1, 1)
        if not asked:
            os._exit(0)
        if not _fork():
            try:
                requests.close()
                _work(Connection(descriptors[0]), template)
            finally:
                os._exit(0)
        os.close(descriptors[0])


def _work(connection: Connection, parent: int) -> None:
    _end_with(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.send((PROCESS, os.getpid()))
    global _sender, _cpu_of_work
    _sender, _cpu_of_work = _Sender(connection), 0.0
    logging.getLogger(LOGGER).handlers = [_sender]
    try:
        work, arguments = connection.recv()
        answer = pickle.dumps((RESULT, work(*arguments)))
    except BaseException as error:
        if not isinstance(error, UserError):
            traceback.print_exception(error)  # into the log
        answer = pickle.dumps((ERROR, _packed(error)))
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send((CPU, cpu_seconds()))
    connection.send_bytes(answer)


def _end_with(parent: int) -> None:
    """End this process when its parent ends, and ignore the parent's keyboard signals."""
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


class _Sender(logging.Handler):
    """Send log records to the process that requested the work."""

    def __init__(self, connection: Connection):
        super().__init__(logging.INFO)
        self.connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        """Send the visible part of a record."""
        with contextlib.suppress(ConnectionError):  # logging holds this handler's lock
            shown = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname}
            self.connection.send((RECORD, logging.makeLogRecord({**shown, "msg": record.getMessage()})))


_sender: _Sender | None = None  # in a process that does work
_cpu_of_work = 0.0
_cpu_lock = threading.Lock()


def _packed(error: BaseException | None) -> list[tuple[bool, str, str, traceback.StackSummary]]:
    """Describe an error and its causes: not every error can be pickled, and no traceback."""
    chain = []
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        chain.append((isinstance(error, UserError), type(error).__name__, str(error), frames))
        error = error.__cause__
    return chain


def _unpacked(chain: list[tuple[bool, str, str, traceback.StackSummary]]) -> Exception:
    """Return the described error: a UserError, or one that is shown as the original."""
    cause = None
    for for_user, name, text, frames in reversed(chain):
        error: Any = UserError(text) if for_user else type(name, (Exception,), {})(text)
        error.__cause__, error.frames = cause, frames
        cause = error
    return error
