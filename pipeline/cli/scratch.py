"""A temporary folder of a run's own: TFX, Beam and TensorFlow leave a dozen files of a run in the system's."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

PREFIX = "pipeline-run-"
MATPLOTLIB = "MPLCONFIGDIR"  # environment variable


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Let this process and those that it starts make their temporary files in a folder that is removed at the end.

    Those of runs that were killed are removed first.
    """
    before = tempfile.gettempdir()
    for leftover in Path(before).glob(f"{PREFIX}*"):
        if _is_abandoned(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as afterwards,
    ):
        variable = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = tempfile.tempdir = folder

        if MATPLOTLIB not in os.environ and not os.access(os.path.expanduser("~"), os.W_OK):
            # Without a home Matplotlib makes a temporary folder, and deletes it after this one has been deleted.
            os.environ[MATPLOTLIB] = folder
            afterwards.callback(os.environ.pop, MATPLOTLIB)

        @afterwards.callback
        def put_back() -> None:
            tempfile.tempdir = before
            os.environ.pop("TMPDIR")
            if variable is not None:
                os.environ["TMPDIR"] = variable

        yield Path(folder)


def _is_abandoned(folder: Path) -> bool:
    """Return whether a folder is one of ours, of a process that is no more."""
    process = re.fullmatch(rf"{PREFIX}(\d{{1,9}})-\w+", folder.name)
    try:
        ours = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    except OSError:
        return False
    return process is not None and ours and not psutil.pid_exists(int(process[1]))
