"""The lock: what setup.py asks for, on every supported Python and system, with hashes and without addresses."""

import datetime
import re
import sys
import tomllib
import warnings
from pathlib import Path
from unittest import mock

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
# The lines of one package: the first starts at the margin, hashes and comments are indented.
ENTRIES = re.findall(r"^\S.*\n(?:[ ].*\n)*", LOCK, re.MULTILINE)
SYSTEMS = {
    "linux": {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux"},
    "macos": {"sys_platform": "darwin", "platform_machine": "arm64", "platform_system": "Darwin"},
}


def metadata() -> dict:
    """The arguments that setup.py gives to setup()."""
    code = compile((ROOT / "setup.py").read_text(), "setup.py", "exec")
    with mock.patch.object(setuptools, "setup") as setup:
        exec(code, {"__name__": "__main__"})
    return setup.call_args.kwargs


def required() -> list[str]:
    """Every requirement of setup.py, the extras' too."""
    arguments = metadata()
    return [*arguments["install_requires"], *(item for extra in arguments["extras_require"].values() for item in extra)]


def locked(environment: dict[str, str]) -> dict[str, str]:
    """Name -> version of what the lock installs there."""
    requirements = [Requirement(entry.partition("\\")[0]) for entry in ENTRIES]
    chosen = [item for item in requirements if item.marker is None or item.marker.evaluate(environment)]
    assert len({item.name for item in chosen}) == len(chosen), "a package is locked at two versions"
    return {item.name: next(iter(item.specifier)).version for item in chosen}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_lock_satisfies_every_requirement_of_setup_py(python, system):
    environment = {"python_version": python, "python_full_version": f"{python}.9", **SYSTEMS[system]}
    versions = locked(environment)
    for requirement in map(Requirement, required()):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert requirement.name in versions, f"run make lock: {requirement} is missing"
            assert versions[requirement.name] in requirement.specifier, f"run make lock: {requirement} is not met"


def test_setup_py_admits_the_pythons_the_setup_script_looks_for():
    assert metadata()["python_requires"] == ">=3.11,<3.14"
    assert "3.11.* | 3.12.* | 3.13.*)" in (ROOT / "tools/setup.sh").read_text()


def test_setup_py_packages_the_library_and_the_models_only():
    assert {name.partition(".")[0] for name in metadata()["packages"]} == {"pipeline", "models"}


def test_every_package_is_pinned_and_has_a_hash():
    assert len(ENTRIES) > 200
    for entry in ENTRIES:
        assert re.match(r"[\w.-]+==\S+ ", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry


def test_the_lock_names_no_index_and_no_folder():
    assert not re.search(r"://|^-|/home/|/root/|/work/|/tmp/", LOCK, re.MULTILINE)


def test_this_environment_is_what_the_lock_says():
    from importlib.metadata import version

    names = {"python_version": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name, wanted in locked({**names, "sys_platform": sys.platform}).items():
        assert version(name) == wanted


def test_the_overridden_pyfarmhash_gives_the_fingerprints_of_the_version_tfdv_asks_for():
    import farmhash

    # Computed with pyfarmhash 0.3.2.
    assert farmhash.fingerprint64("") == 11160318154034397263
    assert farmhash.fingerprint64("dep_hour") == 13948139241713286172
    assert farmhash.fingerprint32("dep_hour") == 1187721107


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_no_locked_package_has_a_known_hole_that_nobody_has_thought_about(python, system):
    known = tomllib.loads((ROOT / "tests/setup/known_holes.toml").read_text())
    environment = {"python_version": python, "python_full_version": f"{python}.1", **SYSTEMS[system]}
    versions = locked(environment)
    assert known["fixed"].keys() <= {Requirement(entry.partition("\\")[0]).name for entry in ENTRIES}
    open_holes = {
        hole
        for name, holes in known["fixed"].items()
        for hole, fixed in holes
        if name in versions and Version(versions[name]) < Version(fixed)
    }
    assert open_holes == known["accepted"].keys(), "take a newer version with make lock, or accept it with a reason"


def test_the_list_of_known_holes_says_when_it_was_reviewed_and_why_one_is_accepted():
    known = tomllib.loads((ROOT / "tests/setup/known_holes.toml").read_text())
    for hole, why in known["accepted"].items():
        assert isinstance(why["date"], datetime.date), hole
        assert why["reason"], hole
    age = (datetime.date.today() - known["reviewed"]).days
    assert age >= 0
    if age > 90:  # no failure: whoever clones this later has broken nothing
        warnings.warn(f"tests/setup/known_holes.toml was reviewed {age} days ago; look for newer ones", stacklevel=1)


def test_what_setup_py_asks_for_has_no_known_hole_either():
    known = tomllib.loads((ROOT / "tests/setup/known_holes.toml").read_text())["fixed"]
    for requirement in map(Requirement, required()):
        for hole, fixed in known.get(requirement.name, ()):
            lowest = next((bound.version for bound in requirement.specifier if bound.operator in (">=", "==")), "0")
            assert Version(lowest) >= Version(fixed), f"{requirement} admits {hole}; ask for >={fixed}"
