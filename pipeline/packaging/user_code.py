"""Pack the user's code as a wheel per step, with a fingerprint of exactly the code that the step runs.

TFX packs a whole folder and hashes it, so that any change in the module file re-runs Transform, and a change in the
library re-runs nothing. Here each step gets the statements of the module file that its entry point needs, and the
modules next to it that these import. A wrong cut is a NameError in the run and never a silent cache hit.

The fingerprint also covers every module of this repository that is imported, and ``VERSIONS_THAT_COUNT``.
"""

import ast
import contextlib
import hashlib
import importlib.metadata
import io
import os
import platform
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import filesystem
from pipeline.errors import UserError
from pipeline.packaging.fingerprints import VERSIONS_THAT_COUNT, code_digest, imported_files, repository_modules
from pipeline.settings.config import PipelineConfig
from pipeline.settings.repository import REPOSITORY

# Code that looks names up at run time cannot be cut by reading it.
DYNAMIC_NAMES = {"eval", "exec", "globals", "importlib", "vars", "__import__"}


@dataclass(frozen=True)
class UserCode:
    """The part of a module file that one step runs, as a wheel; equal code has an equal fingerprint."""

    module: str
    wheel: Path
    fingerprint: str


def package(module_file: Path, entry_points: Sequence[str], folder: Path) -> UserCode:
    """Write a wheel into ``folder`` with the code that ``entry_points`` of ``module_file`` need."""

    def siblings(module: str) -> list[Path]:
        path = module_file.with_name(f"{module.split('.')[0]}.py")
        return [path] if path != module_file else []

    sources = {module_file.name: cut(read_module(module_file), entry_points)}
    for sibling in imported_files(sources[module_file.name], siblings):
        sources[sibling.name] = sibling.read_text(encoding="utf-8")

    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(f"{name}\n{code_digest(source)}\n".encode())
    for source in sources.values():
        for module in repository_modules(source):
            code = code_digest(module.read_text(encoding="utf-8"))
            digest.update(f"{module.relative_to(REPOSITORY)}\n{code}\n".encode())
    digest.update(f"python {platform.python_version()}\n".encode())
    for distribution in VERSIONS_THAT_COUNT:
        digest.update(f"{distribution} {importlib.metadata.version(distribution)}\n".encode())
    fingerprint = digest.hexdigest()[:16]

    wheel = write_wheel(f"{module_file.stem}_{entry_points[0]}", f"0.0+{fingerprint}", sources, folder)
    return UserCode(module=module_file.stem, wheel=wheel, fingerprint=fingerprint)


def read_module(module_file: Path) -> str:
    """Return the text of a module file; raise UserError unless it parses and has what Transform and Trainer call."""
    if not module_file.is_file():
        raise UserError(f"no module file {module_file}; expected a Python file with preprocessing_fn and run_fn")
    source = module_file.read_text(encoding="utf-8")
    try:
        names = defined_names(source)
    except SyntaxError as error:
        raise UserError(
            f"{module_file}, line {error.lineno}: {error.msg}: {(error.text or '').strip()!r}. "
            "Correct the line and run again"
        ) from error
    missing = [name for name in ("preprocessing_fn", "run_fn") if name not in names]
    if missing:
        raise UserError(
            f"{module_file} does not define {' and '.join(missing)}; expected preprocessing_fn(inputs) for Transform "
            "and run_fn(fn_args) for the Trainer, as models/flights.py does"
        )
    return source


def defined_names(source: str) -> set[str]:
    """Return the names that a module's top level binds."""
    return {name for statement in ast.parse(source).body for name in _bound(statement)}


def searches(config: PipelineConfig) -> bool:
    """Return whether the graph has a Tuner: the config asks for it and the module file has a ``tuner_fn``."""
    return config.tuning.mode == "search" and "tuner_fn" in defined_names(read_module(Path(config.module)))


def cut(source: str, entry_points: Sequence[str]) -> str:
    """Blank the top-level statements that ``entry_points`` do not need; line numbers stay as they are.

    Kept are statements that bind a name in use, statements that do more than bind names, and imports that nothing in
    the file refers to (they are there for their effect). Code that looks names up at run time is kept whole.
    """
    body = ast.parse(source).body
    used_by = {id(top): {node.id for node in ast.walk(top) if isinstance(node, ast.Name)} for top in body}
    everything_used = set().union(*used_by.values()) if used_by else set()
    if everything_used & DYNAMIC_NAMES or any(
        isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*" for statement in body
    ):
        return source

    wanted = set(entry_points)
    kept: set[int] = set()
    size = -1
    while len(kept) > size:
        size = len(kept)
        for statement in body:
            bound = _bound(statement)
            is_import_for_effect = isinstance(statement, (ast.Import, ast.ImportFrom)) and not bound & everything_used
            if not bound or bound & wanted or is_import_for_effect:
                kept.add(id(statement))
                wanted |= used_by[id(statement)]

    lines = source.splitlines()
    for statement in body:
        if id(statement) not in kept:
            first = min([statement.lineno, *(node.lineno for node in getattr(statement, "decorator_list", []))])
            for number in range(first, (statement.end_lineno or statement.lineno) + 1):
                lines[number - 1] = ""
    # A line that holds a dropped and a kept statement ("a = 1; b = 2") is gone now: keep the file whole.
    text = "\n".join(lines) + "\n"
    if len(ast.parse(text).body) != len(kept):
        return source
    return text


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds, if binding names is all it does; else nothing."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.split(".")[0] for alias in statement.names}
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        targets = [statement.target]
    names: set[str] = set()
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, (ast.Attribute, ast.Subscript)):
                return set()
            if isinstance(node, ast.Name):
                names.add(node.id)
    return names


def write_wheel(name: str, version: str, sources: Mapping[str, str], folder: Path) -> Path:
    """Write a wheel (PEP 427) of modules by file name, the same bytes for the same modules; return its path."""
    name = re.sub(r"_+", "_", name)  # pip refuses two underscores in a wheel's name
    dist_info = f"{name}-{version}.dist-info"
    files = dict(sorted(sources.items()))
    files[f"{dist_info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{dist_info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: pipeline\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{dist_info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{dist_info}/RECORD"])

    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with filesystem.new_file(wheel) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return wheel


@contextlib.contextmanager
def importable(module_path: str) -> Iterator[str]:
    """Let the modules of a wheel be imported until the end of the block, here and in new processes; yield the name.

    TFX installs the wheel by pip, which takes a second, and leaves its modules loaded for the next step.

    Args:
        module_path: ``module@folder/wheel``, where the folder may be in a bucket; or a module that is importable.
    """
    module, _, wheel = module_path.partition("@")
    if not wheel:
        yield module
        return
    folder = tempfile.mkdtemp(prefix="step-")
    with zipfile.ZipFile(io.BytesIO(filesystem.read_bytes(wheel))) as archive:
        archive.extractall(folder)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder if before is None else os.pathsep.join((folder, before))
    try:
        with importable_from(folder):
            yield module
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    shutil.rmtree(folder)  # after an error it stays, for its lines are shown with that


@contextlib.contextmanager
def importable_from(folder: str) -> Iterator[None]:
    """Let the modules in a folder be imported until the end of the block, and unload them then.

    Modules of the same names that are loaded already, in a notebook for example, are out of the way until then.
    """
    names = {path.stem for path in Path(folder).glob("*.py")}
    loaded_before = {name: sys.modules.pop(name) for name in names & sys.modules.keys()}
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name, loaded in list(sys.modules.items()):
            if os.path.dirname(getattr(loaded, "__file__", None) or "") == folder:
                del sys.modules[name]
        sys.modules.update(loaded_before)
