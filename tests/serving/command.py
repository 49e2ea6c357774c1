"""The command python -m pipeline serve, in a process of its own, and a question to it."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "pipeline", "serve"]


def serve(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def ask(address: str, body: object) -> dict:
    with urllib.request.urlopen(address, json.dumps(body).encode(), timeout=300) as answer:
        return json.load(answer)
