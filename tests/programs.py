"""Programs of the system that some tests need."""

import os
import shutil
import subprocess
import tempfile

import pytest


def require(package: str, *names: str) -> str:
    """Returns the path of a program by its names, installed from a package of Debian's or Ubuntu's where it is missing.

    Without the right to install it the test is skipped; an installation that fails is an error.
    """
    found = _found(names)
    if not found:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.skip(f"there is no {names[0]}, and only root on Debian or Ubuntu may install it: {package}")
        # One after the other, where several test processes need it.
        lock, install = f"{tempfile.gettempdir()}/install-{package}", f"apt-get install --yes -q {package}"
        script = f"command -v {names[0]} || {{ apt-get update -q && {install} --no-install-recommends; }}"
        subprocess.run(["flock", lock, "sh", "-c", script], check=True, timeout=600)
        found = _found(names)
    assert found, f"{package} is installed and has none of {', '.join(names)}"
    return found


def _found(names: tuple[str, ...]) -> str | None:
    return next(filter(None, map(shutil.which, names)), None)
