"""Run the tasks of a rehearsal in processes that have imported TensorFlow and TFX already, see ``preloaded``.

A rehearsal starts each container's command as a new program, which spends most of its time on imports. It can put
another command before that one, as `make rehearse-image` does; here this file, which hands the task to the tests:

    python -I preloaded_tasks.py SOCKET COMMAND ARGUMENT...
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path


@contextlib.contextmanager
def preloaded_tasks(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the variables of a rehearsal whose tasks run so, until the end of the block.

    Args:
        folder: For a copy of what the image of the tasks has.
    """
    import shlex
    import shutil

    from pipeline.settings.repository import REPOSITORY
    from pipeline.vertex import RUN_IN_IMAGE

    image, socket = folder / "image", str(folder / "socket")
    shutil.copytree(REPOSITORY / "pipeline", image / "pipeline")
    shutil.copy(REPOSITORY / "requirements-image.lock", image)
    with Listener(socket) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):  # it is closed
                while True:
                    threading.Thread(target=_run, args=[listener.accept(), image], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield {RUN_IN_IMAGE: shlex.join([sys.executable, "-I", __file__, socket])}


def _run(connection: Connection, image: Path) -> None:
    """Run a task, and send its exit code; end it if the one who waits for it is gone."""
    from tests.preloaded import Preloaded

    with connection:
        command, variables, work, log = connection.recv()
        assert command[:2] == ["python", "-m"]
        folders = {"HOME": str(Path(work).parent / "home"), "TMPDIR": str(Path(work).parent / "tmp")}
        paths = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(image), "LANG": "C.UTF-8"}
        process = Preloaded(command[2], command[3:], image, {**paths, **folders, **variables}, log=log, work=work)
        if connection in wait([connection, process.sentinel]):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        with contextlib.suppress(OSError):
            connection.send(code)


def main() -> int:
    """Hand over the command; return its exit code."""
    with Client(sys.argv[1]) as connection:
        variables = {name: value for name, value in os.environ.items() if name != "LC_CTYPE"}  # which Python sets
        connection.send((sys.argv[2:], variables, os.getcwd(), os.readlink("/proc/self/fd/1")))
        code = connection.recv()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
