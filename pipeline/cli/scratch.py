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
    before, environment = tempfile.gettempdir(), dict(os.environ)
    for leftover in Path(before).glob(f"{PREFIX}*"):
        if _is_abandoned(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        if MATPLOTLIB not in os.environ and not os.access(os.path.expanduser("~"), os.W_OK):
            # Without a home Matplotlib makes a temporary folder, and deletes it after this one has been deleted.
            os.environ[MATPLOTLIB] = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before
            for name in ("TMPDIR", MATPLOTLIB):
                os.environ.pop(name, None)
                os.environ.update({name: environment[name]} if name in environment else {})


def _is_abandoned(folder: Path) -> bool:
    process = re.fullmatch(rf"{PREFIX}(\d{{1,9}})-\w+", folder.name)
    try:
        ours = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    except OSError:
        return False
    return process is not None and ours and not psutil.pid_exists(int(process[1]))
