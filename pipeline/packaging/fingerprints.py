"""Fingerprints of code: a step runs again when the code that it runs has changed, and an image is known by its library.

Comments, line breaks and a module's docstring do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from pathlib import Path

from pipeline.settings.repository import REPOSITORY

# A new version of one of these may train another model from the same code.
VERSIONS_THAT_COUNT = ("keras", "keras-tuner", "tensorflow", "tensorflow-transform", "tfx")
# Of the image of the Vertex tasks: repository of Artifact Registry, and the image in it.
IMAGE_REPOSITORY = "pipelines/tfx-pipeline"


def fingerprint_of(*modules: Path) -> str:
    """16 hexadecimal digits over the code of some modules of this repository and all they import from it."""
    digest = hashlib.sha256()
    for module in modules:
        source = module.read_text(encoding="utf-8")
        digest.update(normalised(source).encode())
        for imported in repository_modules(source):
            digest.update(normalised(imported.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:16]


def library_fingerprint() -> str:
    """16 hexadecimal digits over the library and the locked packages: two images with the same run the same code.

    Over the bytes of the files, because it must come out the same on every version of Python.
    """
    digest = hashlib.sha256(lock_digest().encode())
    for module in sorted((REPOSITORY / "pipeline").rglob("*.py")):
        digest.update(f"\n{module.relative_to(REPOSITORY).as_posix()}\n".encode())
        digest.update(module.read_bytes())
    return digest.hexdigest()[:16]


def lock_digest() -> str:
    """SHA-256 of the locked packages, hexadecimal."""
    return hashlib.sha256((REPOSITORY / "requirements.lock").read_bytes()).hexdigest()


def image_name(variant: str = "cpu") -> str:
    """Name and tag, below a project's registry, of the image that ``make image`` builds from this code."""
    return f"{IMAGE_REPOSITORY}:{library_fingerprint()}{'' if variant == 'cpu' else f'-{variant}'}"


# Several steps run the same modules; reading each once takes a third of the time.
@functools.cache
def normalised(source: str) -> str:
    """Return the syntax tree of a source as text, without its docstring, comments and line breaks."""
    tree = ast.parse(source)
    if tree.body and isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        tree.body = tree.body[1:]  # the module's docstring, which no function of it sees
    return ast.dump(tree)


@functools.cache
def imported_names(source: str) -> tuple[str, ...]:
    """Dotted names of all modules that a source may import, wherever the import stands."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(found)


def repository_modules(source: str) -> list[Path]:
    """The files of this repository's packages that a source imports, directly or through one another."""
    found: set[Path] = set()
    looked_up: set[str] = set()
    pending = [source]
    while pending:
        for name in imported_names(pending.pop()):
            parts = name.split(".")
            # Importing a.b.c runs a/__init__.py, a/b/__init__.py and a/b/c.py.
            for depth in range(1, len(parts) + 1):
                module = ".".join(parts[:depth])
                if module in looked_up:
                    continue
                looked_up.add(module)
                location = REPOSITORY.joinpath(*parts[:depth])
                for path in (location / "__init__.py", location.with_suffix(".py")):
                    if path.is_file() and path not in found:
                        found.add(path)
                        pending.append(path.read_text(encoding="utf-8"))
    return sorted(found)


if __name__ == "__main__":
    # The Dockerfile asks: python -m pipeline.packaging.fingerprints fingerprint
    print({"fingerprint": library_fingerprint, "lock": lock_digest}[sys.argv[1]]())
