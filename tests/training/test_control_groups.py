"""The limits of containers and control groups count, of both versions and of the groups above."""

import os
from pathlib import Path

import pytest

from pipeline.training import control_groups
from pipeline.training.control_groups import free_memory, usable_cores

# What /proc/self/cgroup has, and below /sys/fs/cgroup the group with the limit: of the machine itself, of a job, of a
# group above it, of version 1, and in a container, where the path is that outside it.
PLACES = [
    ("0::/\n", "", 2),
    ("0::/jobs/one\n", "jobs/one", 2),
    ("0::/jobs/one\n", "jobs", 2),
    ("9:pids:/a\n4:{}:/jobs/one\n0::/\n", "{}/jobs/one", 1),
    ("4:{}:/docker/0123\n", "{}", 1),
]


@pytest.fixture(params=PLACES, ids=lambda place: " ".join(place[0].split()))
def place(request, tmp_path: Path, monkeypatch):
    """Makes the group for a controller; returns its folder and the version."""
    groups, folder, version = request.param

    def place(controller: str) -> tuple[Path, int]:
        (tmp_path / "groups").write_text(groups.format(controller))
        monkeypatch.setattr(control_groups, "GROUPS_OF_PROCESS", tmp_path / "groups")
        monkeypatch.setattr(control_groups, "ROOT", tmp_path / "cgroup")
        made = tmp_path / "cgroup" / folder.format(controller)
        made.mkdir(parents=True)
        return made, version

    return place


def test_a_limit_counts_as_the_free_memory(place):
    folder, version = place("memory")
    limit, used, idle = (
        ("memory.max", "memory.current", "inactive_file")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    assert free_memory() > 100_000_000
    (folder / limit).write_text("3000000\n")
    (folder / used).write_text("1000000\n")
    (folder / "memory.stat").write_text(f"anon 600000\n{idle} 400000\n")
    assert free_memory() == 2_400_000
    (folder / used).write_text("4000000\n")
    assert free_memory() == 0
    (folder / limit).write_text("max\n" if version == 2 else f"{2**63 - 4096}\n")
    assert free_memory() > 100_000_000


def test_a_limit_counts_as_the_cores(place):
    folder, version = place("cpu,cpuacct")
    all_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

    def write(quota: int) -> None:
        if version == 2:
            (folder / "cpu.max").write_text(f"{'max' if quota < 0 else quota} 100000\n")
        else:
            (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
            (folder / "cpu.cfs_period_us").write_text("100000\n")

    assert usable_cores() == all_cores
    write(-1)
    assert usable_cores() == all_cores
    write(50_000)
    assert usable_cores() == 0.5


def test_a_machine_without_control_groups_has_no_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(control_groups, "GROUPS_OF_PROCESS", tmp_path / "none")
    assert free_memory() > 100_000_000
    assert usable_cores() >= 1
