"""Look up the digests of the images that the Dockerfile builds on, and write them to base-images.lock.

    python tools/base_images.py

make image does it for an image that the lock does not name yet; make lock UPGRADE=1 does it for all. A tag is a name
that its owner moves: with the digest, two builds from one commit start from the same bytes.
"""

import importlib.metadata
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

LOCK = ROOT / "base-images.lock"
# The registry that docker means by a name without one.
REGISTRY = "registry-1.docker.io"


def main() -> int:
    """Look up every image of the lock again, and those of this Python."""
    print("\n".join(look_up({*read(), *names().values()})))
    return 0


def names(python: str | None = None) -> dict[str, str]:
    """Return the base images by the argument of the Dockerfile that names them: Python as here, Beam as locked."""
    python = python or python_here()
    beam = importlib.metadata.version("apache-beam")
    return {
        "PYTHON_IMAGE": f"python:{python}-slim-trixie",
        "BEAM_IMAGE": f"apache/beam_python{python}_sdk:{beam}",
    }


def python_here() -> str:
    """Return the version of Python, such as "3.11": what is tested here is what runs there."""
    return ".".join(platform.python_version_tuple()[:2])


def read() -> dict[str, str]:
    """Return the locked images, name → name with digest."""
    lines = LOCK.read_text(encoding="utf-8").split() if LOCK.exists() else []
    return {line.partition("@")[0]: line for line in lines}


def look_up(images: Iterable[str], registry: str = REGISTRY) -> list[str]:
    """Ask the registry for the digests of images, write them to the lock, and return its lines.

    Raises:
        GoogleAPICallError: it does not answer, or has no such image.
    """
    # Only here: a lock that names all images needs no network and none of these libraries.
    from google.auth.credentials import AnonymousCredentials

    from pipeline.vertex.cloud import Cloud
    from pipeline.vertex.pipelines.preflight import read_image

    nobody = Cloud("none", "none", AnonymousCredentials(), {})
    locked = read()
    for image in images:
        # Docker Hub keeps the images without an owner below "library".
        path = image if "/" in image else f"library/{image}"
        digest = read_image(f"{registry}/{path}", nobody).pinned.partition("@")[2]
        locked[image] = f"{image}@{digest}"
    lines = [locked[name] for name in sorted(locked)]
    LOCK.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return lines


if __name__ == "__main__":
    sys.exit(main())
