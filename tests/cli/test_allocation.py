"""A runner uses large pages and returns memory to the system; both settings must precede the process start."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.startup import with_allocation

ROOT = Path(__file__).resolve().parents[2]
MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LARGE = 8 << 20

# VmFlags of the mapping that contains the block: "hg" if large pages were requested.
SCRIPT = f"""
import ctypes, os, re, sys
from pipeline.cli.startup import restart_with_allocation

print("started", flush=True)
restart_with_allocation()
block = bytearray({LARGE})
address = ctypes.addressof(ctypes.c_char.from_buffer(block))
for line in open("/proc/self/smaps"):
    if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
        inside = int(found[1], 16) <= address < int(found[2], 16)
    elif inside and line.startswith("VmFlags:"):
        print("asked" if " hg" in line else "not asked")
print(sys.argv[1:], *(os.environ.get(name) for name in ("GLIBC_TUNABLES", "TF_ONEDNN_USE_SYSTEM_ALLOCATOR")))
"""

GIVES_BACK = """
import psutil
import tensorflow as tf

held = psutil.Process().memory_info
for _ in range(2):  # the first time TensorFlow itself takes some
    before = held().rss
    block = tf.ones((128, 1 << 18))
    most = held().rss
    del block
print(most - before, held().rss - before)
"""


# If the kernel uses large pages always or never, the allocator does not request them.
@pytest.mark.skipif(
    not MODE.exists() or "[madvise]" not in MODE.read_text(),
    reason="this kernel does not want to be asked for large pages",
)
@pytest.mark.parametrize(
    ("tunables", "last"),
    [
        ({}, ["started", "started", "asked", "['a b', '-c'] glibc.malloc.hugetlb=1 1"]),
        (
            {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"},
            ["started", "started", "asked", "['a b', '-c'] glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1 1"],
        ),
        (
            {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0", "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "0"},
            ["started", "not asked", "['a b', '-c'] glibc.malloc.hugetlb=0 0"],
        ),
    ],
    ids=["unset", "others", "refused"],
)
def test_a_program_starts_once_more_with_both_unless_the_user_says_otherwise(tmp_path, tunables, last):
    script = tmp_path / "a script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script.name, "a b", "-c"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), **tunables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == last, done.stderr


@pytest.mark.parametrize(
    "follow",
    [
        "sys.settrace(lambda *_: None)",
        pytest.param(
            "sys.monitoring.use_tool_id(sys.monitoring.DEBUGGER_ID, 'a debugger')",
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 669 came with Python 3.12"),
        ),
    ],
)
def test_a_program_that_a_debugger_follows_goes_on(tmp_path, follow):
    script = tmp_path / "script.py"
    script.write_text(f"import sys\n{follow}\n{SCRIPT}")
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["started", "not asked", "[] None None"], done.stderr


@pytest.mark.slow
def test_what_tensorflow_frees_goes_back_to_the_system(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(GIVES_BACK)
    environment = with_allocation({"TF_ENABLE_ONEDNN_OPTS": "1"})  # uses oneDNN on every processor
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    most, last = map(int, done.stdout.split())
    assert most > 120e6, done.stdout
    assert last < 20e6, done.stdout


def test_the_image_sets_both_too():
    text = (ROOT / "Dockerfile").read_text()
    there = dict(found.split("=", 1) for found in re.findall(r"(?:GLIBC|TF)_[A-Z_]+=\S+", text))
    assert there == with_allocation({})
