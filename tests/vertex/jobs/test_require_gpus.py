"""A command on a machine with GPUs runs if TensorFlow sees one, and fails at once if it sees none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.vertex import REHEARSAL_VARIABLE
from pipeline.vertex.jobs import require_gpus

COMMAND = [sys.executable, "-c", "import os; print('training, process', os.getpid())"]
HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1", "LD_LIBRARY_PATH": "/nowhere"}


def run(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *require_gpus.PREFIX[1:], *COMMAND],
        env={**os.environ, **HIDDEN, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def tensorflow_with(gpus: int, folder: Path) -> str:
    """A package in place of TensorFlow on a machine with GPUs, as none is here; its folder for PYTHONPATH."""
    listed = "\n".join(["class config:", f"    list_physical_devices = staticmethod(lambda kind: [kind] * {gpus})"])
    (folder / "tensorflow.py").write_text(listed)
    return str(folder)


@pytest.mark.slow
def test_without_a_gpu_nothing_runs_and_the_message_says_why():
    ended = run()
    assert ended.returncode == 1
    assert ended.stdout == ""
    message = ended.stderr.splitlines()[-1]
    assert message.startswith("this machine has GPUs by the table of machines, and TensorFlow sees none: ")
    # The packages of this machine, like those of the image that is not for GPUs.
    assert message.endswith("This image has no CUDA: build and name the one for GPUs, with make image VARIANT=gpu")


def test_with_cuda_and_without_the_driver_the_message_names_the_folder_it_is_looked_for_in(tmp_path):
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia/__init__.py").touch()
    ended = run(PYTHONPATH=tensorflow_with(0, tmp_path))
    assert ended.returncode == 1
    assert "NVIDIA's driver cannot be loaded (libcuda.so.1: " in ended.stderr
    assert "expected in LD_LIBRARY_PATH, which is '/nowhere'" in ended.stderr


def test_with_a_gpu_the_command_takes_the_place_of_the_check_so_that_signals_reach_it(tmp_path):
    process = subprocess.Popen(
        [sys.executable, *require_gpus.PREFIX[1:], *COMMAND],
        env={**os.environ, "PYTHONPATH": tensorflow_with(1, tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.communicate()[0] == f"training, process {process.pid}\n"
    assert process.returncode == 0


def test_a_tensorflow_that_does_not_load_ends_the_task(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('libfoo.so: cannot open shared object file')")
    ended = run(PYTHONPATH=str(tmp_path))
    assert ended.returncode == 1
    assert "libfoo.so" in ended.stderr
    assert ended.stdout == ""


def test_a_rehearsal_needs_no_gpu(tmp_path):
    ended = run(PYTHONPATH=tensorflow_with(0, tmp_path), **{REHEARSAL_VARIABLE: str(tmp_path)})
    assert ended.returncode == 0
    assert ended.stdout.startswith("training")
