"""A container of a rehearsal: the library, its lock, what Vertex AI sets, and nothing else of this machine."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from pipeline.packaging import fingerprints
from pipeline.settings.repository import REPOSITORY
from pipeline.vertex import REHEARSAL_VARIABLE, RUN_IN_IMAGE
from pipeline.vertex.rehearsal.local_containers import LocalContainers

IMAGE = "europe-docker.pkg.dev/demo/p/i:1"
FINDS = """
import json
from pipeline.packaging import fingerprints
from pipeline.settings.repository import REPOSITORY
found = {"library": fingerprints.library_fingerprint(), "beside": sorted(path.name for path in REPOSITORY.iterdir())}
print(json.dumps(found))
"""
SHOWS = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


@pytest.fixture
def containers(tmp_path) -> LocalContainers:
    for folder in ("scratch", "logs"):
        (tmp_path / folder).mkdir()
    return LocalContainers(tmp_path / "scratch", tmp_path / "logs", Path("models/flights.py"))


def log_of(name: str, tmp_path: Path) -> str:
    return (tmp_path / f"logs/{name}.log").read_text()


def test_a_container_has_the_library_and_its_lock_and_nothing_else_of_the_repository(containers, tmp_path):
    containers.run("Report", {"image": IMAGE, "command": ["python", "-c", FINDS]}, {})
    found = json.loads(log_of("Report", tmp_path))
    assert found["library"] == fingerprints.library_fingerprint()
    assert set(found["beside"]) - {"__pycache__"} == {"pipeline", "requirements-image.lock", "sitecustomize.py"}
    assert {"models", "requirements.lock", "tests"} <= {path.name for path in REPOSITORY.iterdir()}


def test_a_container_that_runs_in_the_image_gets_what_the_service_sets_and_no_variable_of_here(
    containers, tmp_path, monkeypatch
):
    monkeypatch.setenv("OF_THIS_SHELL", "1")
    monkeypatch.setenv(RUN_IN_IMAGE, shlex.join([sys.executable, "-c", SHOWS, "a bundle"]))
    container = {"image": IMAGE, "command": ["python", "-m", "x"], "args": ["{{$}}"]}
    containers.run("Trainer", {**container, "env": [{"name": "TPU_NAME", "value": "local"}]}, {"inputs": {}})
    words, variables = json.loads(log_of("Trainer", tmp_path))
    assert words == ["a bundle", "python", "-m", "x", '{"inputs": {}}']
    variables.pop("LC_CTYPE", None)  # of Python itself, where the locale is C
    assert variables == {"TPU_NAME": "local", REHEARSAL_VARIABLE: str(tmp_path / "logs")}
