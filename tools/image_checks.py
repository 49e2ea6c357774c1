"""Look at the packages of an image, from within: run by tools/rehearse_image.py as ``python - NAME... < this file``.

The names are modules, or classes of modules, that must be importable, beside every module of the library. Standard
library only. Prints JSON: a list of findings by check.
"""

import collections
import importlib
import importlib.metadata
import json
import os
import pkgutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def main() -> None:
    """Print what is wrong, by check; an empty list is as it should be."""
    site_packages = Path(sysconfig.get_path("purelib"))
    findings = {
        "pip check": pip_check(),
        "packages twice": packages_twice(),
        "ldd": missing_libraries(site_packages),
        "imports": failed_imports(sys.argv[1:]),
    }
    print(json.dumps(findings))


def pip_check() -> list[str]:
    """Return the requirements that the packages have and the image does not meet."""
    command = [sys.executable, "-m", "pip", "check", "--disable-pip-version-check", "--no-cache-dir"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    return (checked.stdout or checked.stderr).splitlines() if checked.returncode else []


def packages_twice() -> list[str]:
    """Return the packages of which two versions lie in the folder."""
    names = collections.Counter(each.metadata["Name"].lower() for each in importlib.metadata.distributions())
    return [name for name, count in names.items() if count > 1]


def missing_libraries(folder: Path) -> list[str]:
    """Return the libraries and symbols that shared objects want and do not find, as ldd says it."""
    objects = [path for path in folder.rglob("*.so*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = zip(objects, pool.map(_ldd, objects), strict=True)
        return [f"{path.relative_to(folder)}: {line}" for path, lines in found for line in lines]


def _ldd(path: Path) -> list[str]:
    listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
    lines = [line.strip() for line in (listed.stdout + listed.stderr).splitlines()]
    return [line for line in lines if "not found" in line]


def failed_imports(names: list[str]) -> list[str]:
    """Return the names that cannot be imported, and the modules of the library, each with its error."""
    # Only looked up here: the image has the library, this machine's copy of it may be another.
    library = importlib.import_module("pipeline")
    names = [*names, *(module.name for module in pkgutil.walk_packages(library.__path__, "pipeline."))]
    failed = []
    for name in sorted(set(names)):
        try:
            _import(name)
        except BaseException as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    return failed


def _import(name: str) -> None:
    if name.endswith(".__main__"):
        return  # it would run
    module, _, attribute = name.rpartition(".")
    if attribute[:1].isupper():
        getattr(importlib.import_module(module), attribute)
    else:
        importlib.import_module(name)


if __name__ == "__main__":
    main()
