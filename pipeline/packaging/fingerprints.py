"""Take fingerprints of code: a step runs again when its code has changed, and an image is named by its library.

Comments, line breaks and a module's docstring do not count.
"""

import ast
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from pipeline.settings.repository import REPOSITORY

# A new version of one of these may train another model from the same code.
VERSIONS_THAT_COUNT = ("keras", "keras-tuner", "tensorflow", "tensorflow-transform", "tfx")
# Of the image of the Vertex tasks: repository of Artifact Registry, and the image in it.
IMAGE_REPOSITORY = "pipelines/tfx-pipeline"


def fingerprint_of(*modules: Path) -> str:
    """Return 16 hexadecimal digits over the code of some modules of this repository and all they import from it."""
    digest = hashlib.sha256()
    for module in modules:
        source = module.read_text(encoding="utf-8")
        digest.update(code_digest(source).encode())
        for imported in repository_modules(source):
            digest.update(code_digest(imported.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:16]


def library_fingerprint() -> str:
    """Return 16 hexadecimal digits over the library and the locked packages, the same on every version of Python."""
    digest = hashlib.sha256(lock_digest().encode())
    for module in sorted((REPOSITORY / "pipeline").rglob("*.py")):
        digest.update(f"\n{module.relative_to(REPOSITORY).as_posix()}\n".encode())
        digest.update(module.read_bytes())
    return digest.hexdigest()[:16]


def lock_digest() -> str:
    """Return the SHA-256 of the locked packages that the image has, hexadecimal; tools of development do not count."""
    return hashlib.sha256((REPOSITORY / "requirements-image.lock").read_bytes()).hexdigest()


def image_name(variant: str = "cpu") -> str:
    """Return name and tag, below a project's registry, of the image that ``make image`` builds from this code."""
    return f"{IMAGE_REPOSITORY}:{library_fingerprint()}{'' if variant == 'cpu' else f'-{variant}'}"


def code_digest(source: str) -> str:
    """Return the SHA-256 of a source's syntax tree, hexadecimal: without docstring, comments and line breaks."""
    return _read(source)[0]


def imported_names(source: str) -> tuple[str, ...]:
    """Return the dotted names of all modules that a source may import, wherever the import stands."""
    return _read(source)[1]


# Each run reads all modules, because several steps run the same: each once.
@functools.cache
def _read(source: str) -> tuple[str, tuple[str, ...]]:
    tree = ast.parse(source)
    if tree.body and isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        tree.body = tree.body[1:]  # the module's docstring, which no function of it sees
    words: list[str] = []
    imports: list[str] = []
    _walk(tree, words, imports)
    return hashlib.sha256(" ".join(words).encode()).hexdigest(), tuple(imports)


def _walk(node: ast.AST, words: list[str], imports: list[str]) -> None:
    """Add the words of a syntax tree, which no other tree has, and what it imports.

    ``ast.walk`` and ``ast.dump`` take three times as long, 0.35 s for all modules in each run. No two trees have the
    same words: each kind of node has a number of fields, and lists are in brackets.
    """
    words.append(type(node).__name__)
    if isinstance(node, ast.Import):
        imports += (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        imports += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            _walk(value, words, imports)
        elif isinstance(value, list):
            words.append("[")
            for item in value:
                if isinstance(item, ast.AST):
                    _walk(item, words, imports)
                else:
                    words.append(repr(item))
            words.append("]")
        else:
            words.append(repr(value))


def imported_files(source: str, candidates: Callable[[str], Iterable[Path]]) -> list[Path]:
    """Return the files that a source imports, directly or through one another; ``candidates`` finds files by name."""
    files: set[Path] = set()
    looked_up: set[str] = set()
    pending = [source]
    while pending:
        for name in set(imported_names(pending.pop())) - looked_up:
            looked_up.add(name)
            for path in candidates(name):
                if path not in files and os.path.isfile(path):
                    files.add(path)
                    pending.append(path.read_text(encoding="utf-8"))
    return sorted(files)


def repository_modules(source: str) -> list[Path]:
    """Return the files of this repository that a source imports, directly or through one another."""
    names = {path.stem for path in REPOSITORY.iterdir()}  # no look at the disk for each name of a package
    return imported_files(
        source, lambda module: _candidates(REPOSITORY, module) if module.partition(".")[0] in names else ()
    )


@functools.cache
def _candidates(root: Path, module: str) -> tuple[Path, ...]:
    # Importing a.b.c runs a/__init__.py, a/b/__init__.py and a/b/c.py.
    places = [root.joinpath(*module.split(".")[: depth + 1]) for depth in range(module.count(".") + 1)]
    return tuple(file for place in places for file in (place / "__init__.py", place.with_suffix(".py")))


if __name__ == "__main__":
    # The Dockerfile asks: python -m pipeline.packaging.fingerprints fingerprint
    print({"fingerprint": library_fingerprint, "lock": lock_digest}[sys.argv[1]]())
