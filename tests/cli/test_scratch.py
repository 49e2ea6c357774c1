"""Temporary files of a run, which go with it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pipeline.cli.scratch import PREFIX, scratch_folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_what_this_process_and_its_children_leave_goes(temporary):
    child = [sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())"]
    with scratch_folder() as folder:
        tempfile.mkdtemp()
        left = subprocess.run(child, check=True, capture_output=True, text=True).stdout.strip()
        assert Path(left).parent == folder
        assert folder.parent == temporary
    assert list(temporary.iterdir()) == []
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(temporary)


def test_it_goes_after_an_error_too(temporary):
    with pytest.raises(ValueError, match="wrong"), scratch_folder():
        raise ValueError("wrong")
    assert list(temporary.iterdir()) == []
    assert tempfile.gettempdir() == str(temporary)


def test_folders_of_killed_runs_go_and_all_others_stay(temporary):
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    others = [f"{PREFIX}{os.getppid()}-abc", f"{PREFIX}notes", "elsewhere"]
    for name in (f"{PREFIX}{killed.pid}-x_1", *others):
        (temporary / name).mkdir()
        (temporary / name / "file").touch()
    (temporary / f"{PREFIX}{killed.pid}-link").symlink_to(temporary / "elsewhere")
    with scratch_folder():
        pass
    assert sorted(path.name for path in temporary.iterdir()) == sorted([*others, f"{PREFIX}{killed.pid}-link"])
    assert (temporary / "elsewhere/file").exists()


def test_without_a_home_matplotlib_leaves_nothing_and_prints_no_traceback(temporary):
    script = """
from pipeline.cli.scratch import scratch_folder

with scratch_folder():
    import matplotlib
    matplotlib.get_cachedir()
"""
    environment = {**os.environ, "HOME": "/dev/null/none"}
    environment.pop("MPLCONFIGDIR", None)
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert list(temporary.iterdir()) == []
