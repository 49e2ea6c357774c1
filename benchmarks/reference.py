"""Measure imports, the unit of targets about time, and judge a target.

A ratio to something that the same run measures gives the same verdict on a fast and on a slow machine.
"""

import subprocess
import sys
import time


def import_seconds(module: str = "tfx.v1") -> float:
    """Return the seconds that a new process takes to import a module."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=True)
    return time.monotonic() - started


def judge(target: str, measured: str, met: bool) -> bool:
    """Print a target, what was measured and the verdict; return the verdict."""
    print(f"target: {target}; measured: {measured}: {'met' if met else 'missed'}")
    return met
