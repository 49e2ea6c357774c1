"""Build the Dockerfile on stand-ins of its base images, look into the image, and run a rehearsal in it.

    make rehearse-image ARGS="--tuning=off"

For a machine without a registry, without docker and without Google Cloud. Debian's debootstrap makes the stand-ins: a
trixie with its own Python in place of python:...-slim-trixie, and a program that asks for what Beam's asks for in place
of Beam's. Debian's buildah builds the project's Dockerfile from them. Then every shared object is looked at with ldd,
all that the tasks import is imported, and vertex_runner.py rehearse runs every container in the image: its user, its
variables, its files, which are read-only, and folders of the service that belong to root. Needs root and 20 GB.
"""

import argparse
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pipeline.vertex import RUN_IN_IMAGE  # noqa: E402 the repository is not installed
from tools import base_images, build_image  # noqa: E402

PROGRAMS = ("buildah", "debootstrap", "unshare", "chroot")
# Python of trixie, the Debian that the Dockerfile asks for.
PYTHON = "3.13"
DEBIAN = "trixie"
DEBIAN_PACKAGES = "ca-certificates,netbase,tzdata,python3,python3-venv"
# Where a trial of Vertex AI Vizier reports, and the folder that Dataflow names to Beam's start-up: of root's.
METRIC_FILE = "/var/hypertune/output.metrics"
DATAFLOW_FOLDER = "/var/opt/google"
# Beam's own reads its flags, makes the folder for what is staged and starts Python (sdks/python/container/boot.go).
BOOT = """\
#!/bin/sh -eu
# A stand-in for Beam's start-up.
for flag in "$@"; do
    case $flag in --semi_persist_dir=*) folder=${flag#*=} ;; esac
done
mkdir -p "${folder:-/tmp}/staged"
exec python -c 'import apache_beam.runners.worker.sdk_worker_main; print("a worker starts")'
"""
# What is as it should be all the same: a part of the finding, and why.
EXPECTED = {
    "pip check": {
        "pyfarmhash": "the override of pyproject.toml: TFDV's own range has no wheels (docs/decisions/0004)",
    },
    "ldd": {
        "libcuda.so.1": "NVIDIA's driver, which the service mounts",
        "h5py.libs/": "loaded by h5py's own modules, whose RPATH names their folder; these find everything",
    },
}
LARGEST = 15
LOG = "log"
# The job in every form whose containers run other modules.
FORMS = (
    (),
    ("--training-workers=2", "--tuner-workers=2", "--dataflow=on"),
    ("--tuner-workers=2", "--search-with=vizier", "--endpoint=configs/endpoint.py"),
)


class NotClean(Exception):
    """Something is not as it should be; the message says what."""


def main() -> int:
    """Run all steps; return 1 if one of them finds something."""
    parser = argparse.ArgumentParser(prog="make rehearse-image", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "image-rehearsal",
        help="for the stand-ins, which stay, and the image, which does not (%(default)s)",
    )
    parser.add_argument("--keep", action="store_true", help="leave the image there, unpacked")
    parser.add_argument("--data", type=Path, help="of the rehearsal, in place of the config's")
    parser.add_argument("--variant", choices=build_image.VARIANTS, default="cpu", help="(%(default)s)")
    arguments, rehearsal = parser.parse_known_args()
    if problem := why_not_here():
        print(f"make rehearse-image: {problem}", file=sys.stderr)
        return 1
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LOG).unlink(missing_ok=True)
    print(f"log {folder / LOG}")
    try:
        bases = stand_ins(folder)
        bundle = build(folder, arguments.variant, bases)
        problems = [*look_into(bundle, folder), *service_folders(bundle)]
        for problem in problems:
            print(f"  wrong: {problem}", flush=True)
        rehearse(bundle, folder, rehearsal, arguments.data)
    except NotClean as error:
        print(f"make rehearse-image: {error}", file=sys.stderr)
        return 1
    finally:
        if not arguments.keep:
            for name in ("image", "context", "output"):
                shutil.rmtree(folder / name, ignore_errors=True)
    print("the image is clean" if not problems else f"{len(problems)} findings in the image, see above")
    return 1 if problems else 0


def why_not_here() -> str | None:
    """Return why this machine cannot do it, and what to do; None if it can."""
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        return f"{', '.join(missing)} not found. On Debian and Ubuntu: apt install buildah debootstrap util-linux"
    return may_not_mount()


def may_not_mount() -> str | None:
    """Return why this process may not run a command in an image, and what to do; None if it may."""
    if os.geteuid() != 0:
        return "it mounts and changes roots, which only root may. Run it as root, in a container or a virtual machine"
    command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"this root may not mount ({tried.stderr.strip()}). A container needs --privileged for it"
    return None


def stand_ins(folder: Path) -> dict[str, str]:
    """Make the stand-ins of the base images, unless they are there; return them by argument of the Dockerfile."""
    names = {argument: f"localhost/{name}" for argument, name in base_images.names(PYTHON).items()}
    print("stand-ins of the base images", flush=True)
    if buildah(folder, "inspect", "--type=image", names["PYTHON_IMAGE"], fails=True) is None:
        root = folder / "debian"
        shutil.rmtree(root, ignore_errors=True)
        run(folder, "debootstrap", "--variant=minbase", f"--include={DEBIAN_PACKAGES}", DEBIAN, root)
        # Python in /usr/local, as the image has it that it stands for.
        run(folder, "chroot", root, "python3", "-m", "venv", "/usr/local")
        version = run(folder, "chroot", root, "/usr/local/bin/python", "--version").strip()
        if not version.startswith(f"Python {PYTHON}."):
            raise NotClean(f"Debian {DEBIAN} has {version}, expected {PYTHON}; correct PYTHON in {Path(__file__).name}")
        programs = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        commit(folder, root, names["PYTHON_IMAGE"], "--env", programs)
        shutil.rmtree(root)
    root = folder / "beam"
    boot = root / "opt/apache/beam/boot"
    boot.parent.mkdir(parents=True, exist_ok=True)
    boot.write_text(BOOT)
    boot.chmod(0o755)
    commit(folder, root, names["BEAM_IMAGE"])
    return names


def build(folder: Path, variant: str, bases: dict[str, str]) -> Path:
    """Build the Dockerfile and unpack the image; return its bundle, as ``tools/run_in_image.py`` takes it."""
    print("the image", flush=True)
    context, bundle = folder / "context", folder / "image"
    for path in (context, bundle):
        shutil.rmtree(path, ignore_errors=True)
    # A copy, so that the library does not change while it is built.
    for name in ("Dockerfile", ".dockerignore", *copied((ROOT / "Dockerfile").read_text())):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            context.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, context / name)
    values = build_image.build_arguments(PYTHON, variant, bases)
    for argument, word in (("FINGERPRINT", "fingerprint"), ("LOCK", "lock")):
        printed = [sys.executable, "-m", "pipeline.packaging.fingerprints", word]
        values[argument] = run(folder, *printed, cwd=context).strip()
    arguments = [f"--build-arg={name}={value}" for name, value in values.items()]
    name = "localhost/tfx-pipeline"
    # Of a build that failed.
    buildah(folder, "rm", "--all")
    buildah(folder, "rmi", "--prune")
    buildah(folder, "build", "--pull-never", *index(folder), *arguments, "--target=tasks", f"--tag={name}", context)
    config = json.loads(buildah(folder, "inspect", "--type=image", name) or "")["OCIv1"]["config"]
    container = (buildah(folder, "from", "--pull-never", name) or "").strip()
    mounted = (buildah(folder, "mount", container) or "").strip()
    bundle.mkdir()
    run(folder, "cp", "--archive", "--reflink=auto", mounted, bundle / "rootfs")
    # The unpacked files are enough.
    buildah(folder, "rm", container)
    buildah(folder, "rmi", "--force", name)
    write_config(bundle, config)
    return bundle


def copied(dockerfile: str) -> list[str]:
    """Return what a Dockerfile copies from its folder."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
    return [name for line in lines for name in line.split()]


def index(folder: Path) -> list[str]:
    """Return what shows buildah the package index, proxy and certificates that pip and uv use here; no layer has them.

    docs.astral.sh/uv/reference/settings, pip.pypa.io/en/stable/topics/configuration: the files of the whole machine.
    """
    # global.index-url='https://...', and below it :env:.index-url='https://...', which counts.
    listed = run(folder, sys.executable, "-m", "pip", "config", "list")
    settings = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    pip = [f"{name} = {value}" for name, value in settings.items()]
    (folder / "pip.conf").write_text("\n".join(["[global]", *pip, ""]))
    uv = ["native-tls = true"]
    for variable, setting in (("UV_DEFAULT_INDEX", "index-url"), ("UV_INDEX_URL", "index-url")):
        if value := os.environ.get(variable):
            uv.append(f"{setting} = {json.dumps(value)}")
            break
    (folder / "uv").mkdir(exist_ok=True)
    (folder / "uv/uv.toml").write_text("\n".join([*uv, ""]))
    shown = {folder / "pip.conf": "/etc/pip.conf", folder / "uv": "/etc/uv", Path("/etc/ssl/certs"): "/etc/ssl/certs"}
    return [f"--volume={here}:{there}:ro" for here, there in shown.items() if here.exists()]


def write_config(bundle: Path, image: dict[str, Any], user: str | None = None, shared: Sequence[Path] = ()) -> None:
    """Write how a container of the image is run.

    Args:
        bundle: With the image's files.
        image: The image's own config.
        user: In place of the image's.
        shared: Folders of this machine that it sees, in place of buckets; it may write to the last.
    """
    folders = [METRIC_FILE.rpartition("/")[0], DATAFLOW_FOLDER]
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc"},
        {"destination": "/dev", "type": "bind", "source": "/dev"},
        {"destination": "/tmp", "type": "tmpfs", "options": ["mode=1777"]},
        *({"destination": name, "type": "tmpfs", "options": ["mode=755", "uid=0", "gid=0"]} for name in folders),
        *({"destination": str(path), "type": "bind", "source": str(path), "options": ["ro"]} for path in shared[:-1]),
        *({"destination": str(path), "type": "bind", "source": str(path)} for path in shared[-1:]),
    ]
    uid = int(user or image.get("User") or 0)
    # Docker's HOME is that of the user in the image's /etc/passwd.
    users = (line.split(":") for line in (bundle / "rootfs/etc/passwd").read_text().splitlines())
    home = next((entry[5] for entry in users if int(entry[2]) == uid), "/")
    process = {"user": {"uid": uid}, "env": [*image["Env"], f"HOME={home}"], "cwd": image.get("WorkingDir") or "/"}
    content = {"process": process, "mounts": mounts, "entrypoint": image.get("Entrypoint"), "image": image}
    (bundle / "config.json").write_text(json.dumps(content, indent=2))


def look_into(bundle: Path, folder: Path) -> Iterator[str]:
    """Print the sizes and yield what is wrong with the image's files."""
    print(sizes(bundle / "rootfs"), flush=True)
    print("what the tasks import, ldd and pip check", flush=True)
    command = [*in_image(bundle), "python", "-", *sorted(needed_names(folder))]
    checks = Path(__file__).with_name("image_checks.py").read_text()
    # On a machine without root nothing but the image's variables.
    process = subprocess.run(command, input=checks, capture_output=True, text=True, env={})
    with (folder / LOG).open("a") as log:
        log.write(process.stdout + process.stderr)
    if process.returncode:
        raise NotClean(f"the checks did not run in the image; see {folder / LOG}")
    for check, findings in json.loads(process.stdout.splitlines()[-1]).items():
        print(f"  {check}: {'clean' if not findings else f'{len(findings)} findings'}", flush=True)
        for finding in findings:
            reasons = [why for part, why in EXPECTED.get(check, {}).items() if part in finding]
            if reasons:
                print(f"    expected: {finding}: {reasons[0]}", flush=True)
            else:
                yield f"{check}: {finding}"


def needed_names(folder: Path) -> set[str]:
    """Return the modules and executor classes that the compiled job's containers run, in all its forms."""
    names: set[str] = set()
    for number, form in enumerate(FORMS):
        out = folder / "output" / f"compiled-{number}"
        settings = ("--project=demo", "--region=us-central1", "--bucket=demo-bucket")
        run(folder, sys.executable, "vertex_runner.py", "compile", out, *settings, *form, cwd=ROOT)
        names |= names_in(json.loads((out / "pipeline_job.json").read_text()))
    return names


def names_in(job: dict[str, Any]) -> set[str]:
    """Return the modules and classes in the commands of a job's containers."""
    names: set[str] = set()
    for executor in job["pipelineSpec"]["deploymentSpec"]["executors"].values():
        container = executor.get("container", {})
        for part in (container, container.get("lifecycle", {}).get("preCacheCheck", {})):
            words = [*part.get("command", ()), *part.get("args", ())]
            flags = itertools.pairwise(words)
            names |= {value for flag, value in flags if flag in ("-m", "--executor_class_path")}
    return names


def service_folders(bundle: Path) -> Iterator[str]:
    """Yield what a Vizier trial and a Dataflow worker cannot do in their image, and what the other one can."""
    config = json.loads((bundle / "config.json").read_text())
    report = "import hypertune; hypertune.HyperTune().report_hyperparameter_tuning_metric('auc', 0.7)"
    commands = {
        "a Vizier trial reports": (["python", "-c", report], {"CLOUD_ML_HP_METRIC_FILE": METRIC_FILE}),
        "a Dataflow worker starts": ([*config["entrypoint"], f"--semi_persist_dir={DATAFLOW_FOLDER}", "--id=1"], {}),
    }
    for user, expected in (("0", 0), (config["process"]["user"]["uid"], 1)):
        write_config(bundle, config["image"], str(user))
        for what, (command, variables) in commands.items():
            ended = subprocess.run([*in_image(bundle), *command], capture_output=True, text=True, env=variables)
            worked = not ended.returncode
            print(f"  {what} as user {user}: {'yes' if worked else 'no'}", flush=True)
            if worked == bool(expected):
                last = (ended.stderr.splitlines() or [""])[-1]
                yield f"{what} as user {user}: {worked}, expected {not expected}. {last}"


def rehearse(bundle: Path, folder: Path, arguments: Sequence[str], data: Path | None) -> None:
    """Run the rehearsal with every container in the image.

    Raises:
        NotClean: it failed.
    """
    output = folder / "output"
    output.mkdir(exist_ok=True)
    config = json.loads((bundle / "config.json").read_text())
    named = [data.absolute()] if data else []
    write_config(bundle, config["image"], shared=[ROOT / "data", *named, output])
    command = [sys.executable, "vertex_runner.py", "rehearse", f"--output={output}", *arguments]
    command += [f"--data={path}" for path in named]
    print(f"+ {shlex.join(command)}", flush=True)
    # A bucket knows no owners: what one container writes, the next may read and delete.
    variables = {**os.environ, RUN_IN_IMAGE: shlex.join(in_image(bundle))}
    code = subprocess.run(command, cwd=ROOT, env=variables, umask=0).returncode
    # The report's task ends well on Vertex AI, whatever becomes of it.
    if code or not list(output.glob("rehearsal/artifacts/0/*/Report_*/report.html")):
        logs = folder / "logs"
        shutil.rmtree(logs, ignore_errors=True)
        if (output / "rehearsal/logs").exists():
            shutil.copytree(output / "rehearsal/logs", logs)
        raise NotClean(f"the rehearsal in the image ended with {code} or without a report; its logs are in {logs}")


def in_image(bundle: Path) -> list[str]:
    """Return the command that runs another one in the image."""
    return [sys.executable, str(Path(__file__).with_name("run_in_image.py")), str(bundle)]


def sizes(root: Path) -> str:
    """Return a table of what takes up space: the largest packages, and all."""
    packages = next(root.glob("usr/local/lib/python*/site-packages"))
    measured = {path.name: _size(path) for path in packages.iterdir()}
    rows = sorted(measured.items(), key=lambda row: -row[1])[:LARGEST]
    others = sum(measured.values()) - sum(size for _, size in rows)
    rows += [("other packages", others), ("all packages", sum(measured.values())), ("the image", _size(root))]
    return "\n".join(f"  {name:32} {size / 1e6:8.0f} MB" for name, size in rows)


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(_size(child) for child in path.iterdir())


def commit(folder: Path, root: Path, name: str, *config: str) -> None:
    """Make an image of a folder."""
    container = (buildah(folder, "from", "scratch") or "").strip()
    buildah(folder, "add", "--quiet", container, root, "/")
    if config:
        buildah(folder, "config", *config, container)
    buildah(folder, "commit", "--quiet", "--rm", container, name)


def buildah(folder: Path, *arguments: str | Path, fails: bool = False) -> str | None:
    """Run buildah with its images in the folder; ``fails``: return None in place of raising."""
    storage: list[str | Path] = ["--root", folder / "storage", "--runroot", folder / "run"]
    try:
        return run(folder, "buildah", *storage, *arguments)
    except NotClean:
        if fails:
            return None
        raise


def run(folder: Path, *command: str | Path, cwd: Path | None = None) -> str:
    """Run a command with its output in the folder's log; return what it prints.

    Raises:
        NotClean: it failed.
    """
    # Neither an overlay nor namespaces: both are missing within most containers.
    variables = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
    process = subprocess.run(
        list(map(str, command)), cwd=cwd or folder, env=variables, capture_output=True, text=True, check=False
    )
    with (folder / LOG).open("a") as log:
        log.write(f"$ {shlex.join(map(str, command))}\n{process.stdout}{process.stderr}")
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [""]
        raise NotClean(f"{command[0]} failed: {lines[-1]} (all of it: {folder / LOG})")
    return process.stdout


if __name__ == "__main__":
    sys.exit(main())
