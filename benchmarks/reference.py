"""Measure the import of TFX, the unit of targets about time, and judge a target.

A ratio to something that the same run measures gives the same verdict on a fast and on a slow machine.
"""

import subprocess
import sys
import time


def import_seconds() -> float:
    """Return the seconds that a new process takes for `import tfx.v1`."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import tfx.v1"], capture_output=True, check=True)
    return time.monotonic() - started


def judge(target: str, measured: str, met: bool) -> bool:
    """Print a target, what was measured and the verdict; return the verdict."""
    print(f"target: {target}; measured: {measured}: {'met' if met else 'missed'}")
    return met
