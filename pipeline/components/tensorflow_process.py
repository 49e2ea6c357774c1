"""A process that can import TensorFlow only, as a model server can: it asks a model for ``model_check``.

    python -I tensorflow_process.py DESCRIPTOR

It loads TensorFlow, takes one request for ``ModelProbe`` from a socket, and answers it with the report. To load takes
half of the time of a check, so a run starts the process ahead, while its own TensorFlow and TFX are loaded.

Run by its path, this file imports nothing of this repository, of Keras, of TFX or of TensorFlow Transform.
"""

import contextlib
import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.machinery import PathFinder
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any

# Packages that a model server does not have: those of this repository, and Keras, which TensorFlow requires.
NOT_SERVED = ("configs", "models", "pipeline", "keras")
# Of prctl(2).
PR_SET_PDEATHSIG = 1


class TensorflowProcess:
    """The process, as seen by the one that starts it or by a fork of that."""

    def __init__(self, output: IO[bytes] | None = None):
        """Start it.

        Args:
            output: File for what it prints; None: it prints where this process does.
        """
        self._connection, theirs = Pipe()  # its sockets block, whatever default timeout Beam has set
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Return the report of ``ModelProbe`` with its "cpu_seconds"; for one request only.

        Args:
            request: See there; "probe" is the file with the class.
            timeout: Seconds that it may take.

        Raises:
            TimeoutError: it has not answered by then, and is ended.
            EOFError, ConnectionError: it has ended without an answer.
        """
        self._connection.send_bytes(json.dumps(request).encode())
        if not self._connection.poll(timeout):
            self._kill()
            raise TimeoutError
        report: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return report

    def exit_code(self) -> int:
        """Wait until it has ended, for the process that has started it."""
        return self._process.wait()

    def close(self) -> None:
        """End it, for the process that has started it."""
        self._kill()
        self._process.wait()
        self._connection.close()

    def _kill(self) -> None:
        # Popen.kill() would ask first whether it has ended, which only the process that has started it can.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)


@contextlib.contextmanager
def started_ahead(wanted: bool = True) -> Iterator[None]:
    """Have a process for the first request until the end of the block, here and in forks of this process.

    With a single core it would take from the others what it saves.

    Args:
        wanted: Whether to start it; False: a request starts one.
    """
    global _ahead
    if not wanted or sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        yield
        return
    process = _ahead = TensorflowProcess()
    try:
        yield
    finally:
        _ahead = None
        process.close()


def take_ahead() -> TensorflowProcess | None:
    """Return the process that was started ahead, once; None if no process was."""
    global _ahead
    process, _ahead = _ahead, None
    return process


_ahead: TensorflowProcess | None = None


class RefusingFinder:
    """Find modules on Python's path, but none of the packages that a model server does not have."""

    def __init__(self, refused: list[str]):
        self.refused = set(refused)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module, None if its package is refused."""
        return None if name.partition(".")[0] in self.refused else PathFinder.find_spec(name, path, target)


def packages_beside_tensorflow() -> list[str]:
    """Return the import names of installed packages that TensorFlow does not require."""
    brought: set[str] = set()
    pending = ["tensorflow"]
    while pending:
        name = _normal(pending.pop())
        if name in brought:
            continue
        brought.add(name)
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        pending += [re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line]
    installed = importlib.metadata.packages_distributions()
    return sorted(name for name, owners in installed.items() if not brought & {_normal(owner) for owner in owners})


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def main(descriptor: int) -> None:
    """Load TensorFlow, and answer one request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # typed for the one that has started this, which ends it then
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a model may compute for ever
    gc.disable()  # collecting garbage among TensorFlow's objects takes a sixth of these few seconds
    sys.meta_path[sys.meta_path.index(PathFinder)] = RefusingFinder([*NOT_SERVED, *packages_beside_tensorflow()])
    importlib.import_module("tensorflow")
    with Connection(descriptor) as connection:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return  # the other end has closed
        started = time.process_time()
        probe = runpy.run_path(request["probe"])["ModelProbe"]
        report = probe(request).run()
        connection.send_bytes(json.dumps({**report, "cpu_seconds": time.process_time() - started}).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # to take a model apart takes most of a second, of cores that the next step has by now


if __name__ == "__main__":
    main(int(sys.argv[1]))
