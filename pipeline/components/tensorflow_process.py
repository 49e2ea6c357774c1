"""A process that can import only TensorFlow, like a model server: it checks a model for ``model_check``.

    python -I tensorflow_process.py DESCRIPTOR

It answers one request for ``ModelProbe`` on a socket. A run starts it early, because loading TensorFlow takes half of
the time of a check. This file must import only the standard library.
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
    """The process, for the one that starts it or a fork of that; it prints to ``output``, or where this one does."""

    def __init__(self, output: IO[bytes] | None = None):
        """Start it."""
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

        After ``timeout`` seconds the process is killed: TimeoutError. EOFError, ConnectionError: it exited without an
        answer.
        """
        self._connection.send_bytes(json.dumps(request).encode())
        if not self._connection.poll(timeout):
            self._kill()
            raise TimeoutError
        report: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return report

    def exit_code(self) -> int:
        """Wait for its exit, in the process that started it."""
        return self._process.wait()

    def close(self) -> None:
        """Kill it, in the process that started it."""
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
    """Start a process for the first request, here and in forks, until the block ends.

    On a single core it would only delay others.
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
    """Return the process that was started early, once, if there is one."""
    global _ahead
    process, _ahead = _ahead, None
    return process


_ahead: TensorflowProcess | None = None


class RefusingFinder:
    """Find modules on Python's path, except packages that a model server does not have."""

    def __init__(self, refused: list[str]):
        self.refused = set(refused)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module, None for an excluded package."""
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
