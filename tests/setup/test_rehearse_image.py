"""The rehearsal in the image, as far as it goes without building one: make rehearse-image does the rest."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import base_images, image_checks, rehearse_image

ROOT = Path(__file__).resolve().parents[2]
TOOL = [sys.executable, "tools/rehearse_image.py"]
MAY_NOT_MOUNT = rehearse_image.may_not_mount()
IMAGE = {"User": "1000", "Env": ["PATH=/usr/bin:/bin", "GREETING=a b"], "WorkingDir": "/home/pipeline"}


def run(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(TOOL, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


def test_a_machine_without_the_programs_is_told_what_to_install():
    refused = run(PATH="/nowhere")
    assert refused.returncode == 1
    assert refused.stderr == (
        "make rehearse-image: buildah, debootstrap, unshare, chroot not found. On Debian and Ubuntu: "
        "apt install buildah debootstrap util-linux\n"
    )


def test_who_may_not_mount_is_told_so(tmp_path):
    for program in rehearse_image.PROGRAMS:
        (tmp_path / program).write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2; exit 1\n")
        (tmp_path / program).chmod(0o755)
    refused = run(PATH=str(tmp_path))
    assert refused.returncode == 1
    assert re.search(r"only root may\. Run it as root|this root may not mount \(unshare failed: Op", refused.stderr)


def test_the_stand_ins_are_those_that_the_dockerfile_asks_for():
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"ARG PYTHON_IMAGE=python:${{PYTHON}}-slim-{rehearse_image.DEBIAN}\n" in dockerfile
    assert "ARG BEAM_IMAGE=apache/beam_python${PYTHON}_sdk:${BEAM}\n" in dockerfile
    names = base_images.names(rehearse_image.PYTHON)
    assert names["PYTHON_IMAGE"] == "python:3.13-slim-trixie"
    assert rehearse_image.copied(dockerfile) == [
        *("requirements.lock", "requirements-image.lock", "requirements-gpu.lock", "setup.py", "pyproject.toml"),
        "pipeline",
    ]


def test_every_module_and_class_in_a_jobs_containers_is_imported_the_drivers_too():
    container = {
        "command": ["python", "-m", "pipeline.vertex.jobs.require_gpus", "python", "-m", "tfx.run"],
        "args": ["--executor_class_path", "pipeline.a.Executor", "--json_serialized_invocation_args", "-m"],
        "lifecycle": {"preCacheCheck": {"command": ["python", "-m", "tfx.driver"]}},
    }
    executors = {"a": {"container": container}, "b": {"importer": {}}}
    assert rehearse_image.names_in({"pipelineSpec": {"deploymentSpec": {"executors": executors}}}) == {
        *("pipeline.vertex.jobs.require_gpus", "tfx.run", "pipeline.a.Executor", "tfx.driver"),
    }


def test_what_cannot_be_imported_is_named_with_its_error(tmp_path, monkeypatch):
    package = tmp_path / "pipeline"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "broken.py").write_text("import no_such_package")
    (package / "good.py").write_text("class Executor: ...")
    (package / "__main__.py").write_text("raise SystemExit('it ran')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pipeline"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    assert image_checks.failed_imports(["pipeline.good.Executor", "pipeline.good.Missing"]) == [
        "pipeline.broken: ModuleNotFoundError: No module named 'no_such_package'",
        "pipeline.good.Missing: AttributeError: module 'pipeline.good' has no attribute 'Missing'",
    ]


@pytest.fixture
def bundle(tmp_path) -> Path:
    """An image whose files are this machine's programs and an empty home."""
    root = tmp_path / "bundle/rootfs"
    for folder in ("usr", "etc", "home/pipeline"):
        (root / folder).mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\npipeline:x:1000:1000::/home/pipeline:/bin/sh\n")
    for name in ("bin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    bucket = tmp_path / "bucket"
    bucket.mkdir(mode=0o777)
    bucket.chmod(0o777)
    rehearse_image.write_config(tmp_path / "bundle", IMAGE, shared=[Path("/usr"), bucket])
    return tmp_path / "bundle"


@pytest.mark.skipif(MAY_NOT_MOUNT is not None, reason=str(MAY_NOT_MOUNT))
def test_a_container_has_the_images_user_variables_and_files_and_what_the_service_adds(bundle, tmp_path):
    script = """
        id -u; pwd; echo "$GREETING, $HOME, $AIP_X, ${SECRET_OF_THIS_SHELL-}"
        for folder in / /home/pipeline /usr /var/hypertune /var/opt/google /tmp BUCKET; do
            touch $folder/file 2>/dev/null && echo "wrote to $folder"
        done
    """.replace("BUCKET", str(tmp_path / "bucket"))
    tool = [*rehearse_image.in_image(bundle), "sh", "-c", script]
    ended = subprocess.run(tool, env={"AIP_X": "1"}, capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines() == [
        *("1000", "/home/pipeline", "a b, /home/pipeline, 1, "),
        *("wrote to /tmp", f"wrote to {tmp_path / 'bucket'}"),
    ], ended.stderr
    assert (tmp_path / "bucket/file").stat().st_uid == 1000


@pytest.mark.skipif(MAY_NOT_MOUNT is not None, reason=str(MAY_NOT_MOUNT))
def test_root_writes_to_the_services_folders_and_to_no_file_of_the_image(bundle):
    rehearse_image.write_config(bundle, IMAGE, user="0", shared=[Path("/usr")])
    script = "for folder in / /usr /var/hypertune /var/opt/google; do touch $folder/file && echo $folder; done"
    tool = [*rehearse_image.in_image(bundle), "sh", "-c", script]
    ended = subprocess.run(tool, env={}, capture_output=True, text=True, check=False)
    assert "/var/hypertune\n/var/opt/google\n" in ended.stdout
    assert not ended.stdout.startswith("/\n")
    assert not (bundle / "rootfs/file").exists()


def test_the_folder_that_a_container_may_write_to_is_the_last(bundle):
    mounts = {mount["destination"]: mount for mount in json.loads((bundle / "config.json").read_text())["mounts"]}
    assert mounts["/usr"]["options"] == ["ro"]
    assert "options" not in mounts[str(bundle.parent / "bucket")]
    assert mounts["/var/hypertune"]["options"] == ["mode=755", "uid=0", "gid=0"]
    assert os.environ.get("GREETING") is None
