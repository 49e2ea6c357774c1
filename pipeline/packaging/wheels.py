"""Write a wheel of plain modules, and let them be imported from it."""

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline import filesystem


def write(name: str, version: str, sources: Mapping[str, str], folder: Path) -> Path:
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
