"""The image of the Vertex tasks, as far as it can be looked at without docker."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import py_compile
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from tfx.orchestration.kubeflow.v2 import kubeflow_v2_dag_runner, step_builder

from pipeline.packaging import fingerprints

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
BUILD = [sys.executable, "tools/build_image.py", "--dry-run"]


def locked(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / lock).read_text(), re.MULTILINE))


def copied() -> list[str]:
    """What the Dockerfile copies from this repository."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    return [name for line in lines for name in line.split()]


def is_ignored(name: str, ignore: str) -> bool:
    """Whether a file of patterns keeps docker or gcloud from seeing a name; the last pattern that matches counts."""
    ignored = False
    for line in (ROOT / ignore).read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and fnmatch(name, pattern):
            ignored = not line.startswith("!")
    return ignored


@pytest.mark.skipif(sys.platform != "linux", reason="hadolint comes as a Linux program")
def test_hadolint_finds_nothing():
    hadolint = Path(sys.executable).parent / "hadolint"
    found = subprocess.run(
        [hadolint, "--no-color", "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.stdout == ""
    assert found.returncode == 0


def test_everything_that_is_copied_exists_and_is_seen_by_docker_and_cloud_build():
    assert copied() == ["requirements.lock", "requirements-gpu.lock", "setup.py", "pyproject.toml", "pipeline"]
    for name in copied():
        assert (ROOT / name).exists(), name
        assert not is_ignored(name, ".dockerignore"), name
        assert not is_ignored(name, ".gcloudignore"), name
    assert not is_ignored("cloudbuild.yaml", ".gcloudignore")


@pytest.mark.parametrize("name", ["models", "data", "output", ".git", "tests", "configs", ".venv"])
def test_what_is_not_the_library_stays_out(name):
    assert is_ignored(name, ".dockerignore")
    assert is_ignored(name, ".gcloudignore")


def test_the_packages_are_those_of_the_lock_by_their_hashes():
    assert "--constraint requirements.lock" in DOCKERFILE
    assert "--require-hashes" in DOCKERFILE
    assert "--compile-bytecode" in DOCKERFILE
    (mode,) = re.findall(r"PYC_INVALIDATION_MODE=(\w+)", DOCKERFILE)
    assert mode in py_compile.PycInvalidationMode.__members__
    assert re.search(r"^uv==.*\n(?: .*\n)*?    # via", (ROOT / "requirements.lock").read_text(), re.MULTILINE)


def test_the_lock_for_gpus_names_no_index_and_has_a_hash_for_everything():
    lock = (ROOT / "requirements-gpu.lock").read_text()
    assert not re.search(r"://|^-|/home/|/root/|/work/|/tmp/", lock, re.MULTILINE)
    for entry in re.findall(r"^\S.*\n(?:[ ].*\n)*", lock, re.MULTILINE):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry


def test_the_packages_for_gpus_only_add_to_the_lock():
    everywhere, gpu = locked("requirements.lock"), locked("requirements-gpu.lock")
    assert any(name.startswith("nvidia-cudnn") for name in gpu)
    assert {name: gpu[name] for name in gpu if name in everywhere} == {
        name: everywhere[name] for name in gpu if name in everywhere
    }
    assert {name for name in gpu if name not in everywhere and not name.startswith("nvidia-")} == set()


def test_the_beam_of_the_workers_is_that_of_the_lock():
    assert f"ARG BEAM={importlib.metadata.version('apache-beam')}\n" in DOCKERFILE


def test_the_image_is_not_run_by_root():
    users = re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)
    assert users == ["1000"]


def test_the_commands_of_the_tasks_resolve_to_modules_of_the_image():
    for command in (kubeflow_v2_dag_runner.KUBEFLOW_TFX_CMD, step_builder._DRIVER_COMMANDS):
        assert command[:2] == ("python", "-m")
        assert importlib.util.find_spec(command[2]) is not None


def test_cloud_build_passes_every_argument_that_the_dockerfile_takes():
    arguments = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE)) - {"BEAM"}
    steps = yaml.safe_load((ROOT / "cloudbuild.yaml").read_text())["steps"]
    passed = {match[1] for one in steps[0]["args"] if (match := re.match(r"--build-arg=(\w+)=", one))}
    assert passed == arguments
    printed = subprocess.run([*BUILD, "--image", "r/i:1", "--with", "docker"], cwd=ROOT, capture_output=True, text=True)
    assert set(re.findall(r"--build-arg=(\w+)=", printed.stdout)) == arguments


def test_make_image_builds_what_the_runner_looks_for():
    environment = {"PATH": "/usr/bin:/bin", "GOOGLE_CLOUD_PROJECT": "demo", "GOOGLE_CLOUD_REGION": "europe-west4"}
    printed = subprocess.run(
        [*BUILD, "--with", "gcloud", "--variant", "gpu"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert f"_IMAGE=europe-west4-docker.pkg.dev/demo/{fingerprints.image_name('gpu')}," in printed.stdout
    assert "--project=demo --region=europe-west4" in printed.stdout


def test_make_image_without_a_registry_says_what_to_set():
    refused = subprocess.run(BUILD, cwd=ROOT, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "Set GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_REGION, or name the image" in refused.stderr


def test_the_fingerprint_is_of_the_library_and_the_lock_only(tmp_path, monkeypatch):
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline/a.py").write_text("A = 1\n")
    (tmp_path / "requirements.lock").write_text("x==1\n")
    monkeypatch.setattr(fingerprints, "REPOSITORY", tmp_path)
    first = fingerprints.library_fingerprint()
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mine.py").write_text("B = 1\n")
    assert fingerprints.library_fingerprint() == first
    (tmp_path / "requirements.lock").write_text("x==2\n")
    second = fingerprints.library_fingerprint()
    (tmp_path / "pipeline/a.py").write_text("A = 2\n")
    assert len({first, second, fingerprints.library_fingerprint()}) == 3
