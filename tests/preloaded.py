"""Run a script in a process that has already imported TensorFlow and TFX; their import is half the time of a short run.

The fork server of multiprocessing imports them once. Each forked process has a separate session and runs the script
from its first line: with its own imports of the repository, signals, output and exit code. It must not start another
such process.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from pipeline.cli.startup import with_allocation

# Of the packages, never of the repository: what runs is the code in the folder of the script.
IMPORTED = (
    *("tensorflow", "keras", "keras_tuner", "tensorflow_transform", "tensorflow_data_validation"),
    *("tensorflow_model_analysis", "tfx.v1", "tfx.components", "tfx.orchestration.local.local_dag_runner"),
    *("apache_beam", "ml_metadata", "sklearn.ensemble", "matplotlib"),
)
_server = multiprocessing.get_context("forkserver")


class Preloaded:
    """A script that runs, with what its callers need of ``subprocess.Popen``.

    Attributes:
        pid: Of the process, and of its group.
        sentinel: Descriptor that is ready when the process has ended.
        stdout: What it prints, errors too.
        returncode: Exit code, negative of a signal; None while it runs.

    Args:
        script: Path below ``folder``, or the name of a module in it.
        arguments: Of its command line.
        folder: Where it runs, and imports from.
        environment: All of its variables; those that Python itself reads when it starts have no effect.
        log: File that gets what it prints, instead of ``stdout``.
        work: Working folder; None: ``folder``.
    """

    def __init__(
        self,
        script: str,
        arguments: list[str],
        folder: Path,
        environment: dict[str, str],
        log: Path | None = None,
        work: Path | None = None,
    ):
        _server.set_forkserver_preload(list(IMPORTED))
        reading, writing = multiprocessing.Pipe(duplex=False)
        settings = (script, arguments, str(folder), environment, log, work or folder)
        self._process = _server.Process(target=_run, args=(writing, *settings))
        self._process.start()
        writing.close()
        self.stdout = os.fdopen(os.dup(reading.fileno()), encoding="utf-8")
        reading.close()
        assert self._process.pid
        self.sentinel: int = self._process.sentinel
        self.pid: int = self._process.pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return the exit code.

        Raises:
            TimeoutError: it runs after that many seconds, and runs on.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"it has not ended after {timeout} s")
        self.returncode = self._process.exitcode
        return self.returncode


def _run(
    output: Connection,
    script: str,
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    log: Path | None,
    work: Path,
) -> None:
    """Run the script in this process, as if Python had begun with it."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if log else output.fileno()
    for stream in (1, 2):
        os.dup2(to, stream)
    output.close()
    os.environ.clear()
    os.environ.update(with_allocation(environment))  # or the runner would start again, with nothing imported
    os.chdir(work)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pipeline"]:
        del sys.modules[name]  # of the program that started it
    ours = str(Path(__file__).resolve().parents[1])
    # "__editable__" finds what is installed in place: this repository.
    others = [path for path in sys.path if path not in ("", ours) and not path.startswith("__editable__")]
    sys.path[:] = [folder, *others]
    sys.meta_path[:] = [
        each for each in sys.meta_path if not getattr(each, "__module__", "").startswith("__editable__")
    ]
    sys.argv = [script, *arguments]
    try:
        if script.endswith(".py"):
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out
        sys.stdout.flush()
