"""How busy the machine is while something trains: real loads, and a stand-in for nvidia-smi."""

import math
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipeline.training.accelerators import Accelerators
from pipeline.training.utilisation import Utilisation

pytestmark = pytest.mark.slow

# Prints what `nvidia-smi --help-query-gpu` documents for these options, and refuses others, as the program does.
NVIDIA_SMI = """#!/bin/sh
case "$*" in
  "--query-gpu=utilization.gpu,memory.used,memory.total --format=csv,noheader,nounits --loop-ms=1000"*) ;;
  *) echo "ERROR: Option not recognized: $*"; exit 6 ;;
esac
echo "$*" > "$0.asked"
while true; do
  echo "80, 4096, 16384"
  echo "[N/A], 1638, 16384"
  sleep 0.2
done
"""


def pause() -> None:
    time.sleep(0.1)


def sampled(work: Callable[[], object] = pause, samples: int = 1) -> dict[str, float]:
    with Utilisation() as utilisation:
        return columns_of(utilisation, work, samples)


def columns_of(utilisation: Utilisation, work: Callable[[], object] = pause, samples: int = 1) -> dict[str, float]:
    """Work until there are some samples."""
    while len(utilisation._samples) < samples:
        work()
    return utilisation.take()


def test_a_busy_process_is_told_from_an_idle_one():
    busy = sampled(lambda: sum(math.sqrt(number) for number in range(100_000)), samples=3)
    idle = sampled()
    assert 0 < busy["cpu_used"] <= busy["cpu_used_peak"] <= 1
    assert busy["cpu_used_peak"] > 5 * idle["cpu_used"]
    assert busy["machine_cpu_used"] >= 0.8 * busy["cpu_used"]
    assert 50e6 < busy["memory_bytes"] < 1e12
    assert busy["memory_bytes_free"] > 0


def test_memory_that_a_process_takes_is_seen_until_the_columns_are_taken():
    with Utilisation() as utilisation:
        before = columns_of(utilisation)["memory_bytes"]
        held = bytearray(os.urandom(1 << 20) * 300)
        columns_of(utilisation)  # of a sample that may have begun before
        assert columns_of(utilisation)["memory_bytes"] > before + 0.9 * len(held)
        while not utilisation._samples:
            pause()
    assert utilisation.take()
    assert utilisation.take() == {}


def test_without_nvidia_smi_there_are_no_columns_of_accelerators(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    columns = sampled()
    assert not [name for name in columns if name.startswith("accelerator")]


@pytest.fixture
def program(tmp_path: Path, monkeypatch) -> Path:
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return program


def test_accelerators_are_asked_by_nvidia_smi_and_what_they_do_not_count_is_left_out(program):
    with Utilisation() as utilisation:
        while "accelerator_used" not in (columns := utilisation.take()):
            pause()
    assert columns["accelerator_used"] == columns["accelerator_used_peak"] == pytest.approx(0.8)
    assert columns["accelerator_memory_used"] == pytest.approx((0.25 + 0.1) / 2, abs=0.01)


@pytest.mark.parametrize(("visible", "asked"), [("0,2", "--id=0,2"), ("-1", None), ("", None)])
def test_only_the_gpus_of_this_process_are_asked(program, monkeypatch, visible, asked):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    accelerators = Accelerators()
    file = Path(f"{program}.asked")
    if asked is None:
        assert not [child for child in psutil.Process().children() if str(program) in child.cmdline()]
    else:
        while not file.exists() or not (arguments := file.read_text().split()):
            pause()
        assert arguments[-1] == asked
    accelerators.close()
