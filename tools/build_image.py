"""Builds and pushes the images of the Vertex tasks, with docker or, where there is none, with Cloud Build.

    python tools/build_image.py --image europe-west4-docker.pkg.dev/my-project/pipelines/tfx-pipeline:TAG

Without --image the name is the one that vertex_runner.py looks for. A second one, with -root after its tag, is the same
with root as its user. The images that both are built on are those of base-images.lock, by their digests.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pipeline.packaging import fingerprints  # noqa: E402 the repository is not installed
from pipeline.settings.target import as_root  # noqa: E402
from tools import base_images  # noqa: E402

VARIANTS = ("cpu", "gpu")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make image", description=__doc__.splitlines()[0])
    parser.add_argument("--image", default=os.environ.get("IMAGE") or os.environ.get("VERTEX_IMAGE"), help="its name")
    parser.add_argument("--variant", default=os.environ.get("VARIANT") or "cpu", help="cpu or gpu (%(default)s)")
    parser.add_argument("--with", dest="builder", choices=("docker", "gcloud"), help="default: docker if it runs")
    parser.add_argument("--dry-run", action="store_true", help="only print the commands")
    arguments = parser.parse_args()
    if arguments.variant not in VARIANTS:
        return _refused(f"VARIANT must be cpu or gpu, got {arguments.variant!r}")
    image = arguments.image or default_image(arguments.variant)
    if not image:
        return _refused(
            "which registry? Set GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_REGION, or name the image: make image IMAGE=..."
        )
    builder = arguments.builder or found_builder()
    if not builder:
        return _refused(
            "neither docker nor gcloud is here. Install one: https://docs.docker.com/engine/install or "
            "https://cloud.google.com/sdk/docs/install"
        )
    try:
        bases = base_images_by_digest(arguments.dry_run)
    except Exception as error:  # of the network, of the registry, of the disk
        return _refused(
            f"the digests of the base images could not be looked up ({error}). Reach {base_images.REGISTRY}, or write "
            f"lines NAME@sha256:DIGEST to {base_images.LOCK.name} for {' and '.join(base_images.names().values())}"
        )
    for command in commands(builder, image, arguments.variant, bases):
        print("+", " ".join(command), flush=True)
        if not arguments.dry_run and subprocess.run(command, cwd=ROOT, check=False).returncode:
            return _refused(f"{command[0]} failed; its message stands above{_hint(image)}")
    return 0


def default_image(variant: str) -> str | None:
    """The image that vertex_runner.py looks for in the project and region of the environment."""
    project = os.environ.get("GOOGLE_CLOUD_PROJECT")
    region = os.environ.get("GOOGLE_CLOUD_REGION") or os.environ.get("GOOGLE_CLOUD_LOCATION")
    if not project or not region:
        return None
    return f"{region}-docker.pkg.dev/{project.replace(':', '/')}/{fingerprints.image_name(variant)}"


def found_builder() -> str | None:
    """Return the program that can build here; None where there is none."""
    if shutil.which("docker") and not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return "docker"
    return "gcloud" if shutil.which("gcloud") else None


def base_images_by_digest(dry_run: bool) -> dict[str, str]:
    """The base images by the argument that names them; one that the lock does not name yet is looked up and added."""
    names = base_images.names()
    missing = sorted(set(names.values()) - set(base_images.read()))
    if missing and not dry_run:
        base_images.look_up(missing)
        print(f"+ wrote {', '.join(missing)} to {base_images.LOCK.name}: commit it", flush=True)
    locked = base_images.read()
    return {argument: locked.get(name, name) for argument, name in names.items()}


def build_arguments(python: str, variant: str, bases: dict[str, str]) -> dict[str, str]:
    """The arguments that the Dockerfile takes."""
    return {
        "PYTHON": python,
        "VARIANT": variant,
        "FINGERPRINT": fingerprints.library_fingerprint(),
        "LOCK": fingerprints.lock_digest(),
        **bases,
    }


def commands(builder: str, image: str, variant: str, bases: dict[str, str]) -> list[list[str]]:
    """Return the commands that build and push the images: the one with root as its user, and that on top of it."""
    values = build_arguments(base_images.python_here(), variant, bases)
    images = {"root": as_root(image), "tasks": image}
    if builder == "docker":
        arguments = [f"--build-arg={name}={value}" for name, value in values.items()]
        # Vertex AI runs x86-64, whatever this machine is.
        build = ["docker", "build", "--platform=linux/amd64", *arguments]
        return [
            *([*build, f"--target={target}", f"--tag={name}", "."] for target, name in images.items()),
            *(["docker", "push", name] for name in images.values()),
        ]
    values |= {"IMAGE": image, "ROOT_IMAGE": images["root"]}
    substitutions = ",".join(f"_{name}={value}" for name, value in values.items())
    command = ["gcloud", "builds", "submit", "--config=cloudbuild.yaml", f"--substitutions={substitutions}"]
    host, _, rest = image.partition("-docker.pkg.dev/")
    return [[*command, f"--project={rest.split('/')[0]}", f"--region={host}", "."] if rest else [*command, "."]]


def _hint(image: str) -> str:
    host, _, rest = image.partition("-docker.pkg.dev/")
    if not rest:
        return ""
    project, repository = rest.split("/")[:2]
    return (
        f". If the repository is missing: gcloud artifacts repositories create {repository} --location={host} "
        f"--repository-format=docker --project={project}. If docker may not push: gcloud auth configure-docker "
        f"{host}-docker.pkg.dev"
    )


def _refused(message: str) -> int:
    print(f"make image: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
