"""`make setup`: each thing that can be wrong is said in one sentence, and nothing is done twice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import setup_environment
from tools.setup_environment import why_unsupported

ROOT = Path(__file__).resolve().parents[2]
BASE_PYTHON = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def tree(tmp_path):
    """A copy of what the set-up reads."""
    shutil.copytree(ROOT / "tools", tmp_path / "tree/tools", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "requirements.lock", tmp_path / "tree")
    return tmp_path / "tree"


@pytest.fixture
def stubs(tmp_path):
    """A folder that can be all there is on PATH; holds what the script itself needs."""
    folder = tmp_path / "stubs"
    folder.mkdir()
    for name in ("dirname", "uname", "sh"):
        (folder / name).symlink_to(shutil.which(name))
    return folder


def write_stub(path: Path, script: str) -> Path:
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def run_setup(tree, **environment):
    """Runs the script with nothing but these variables and PATH."""
    everything = {"PATH": os.environ["PATH"], "HOME": str(tree), **{name: str(v) for name, v in environment.items()}}
    return subprocess.run([tree / "tools/setup.sh"], env=everything, capture_output=True, text=True, timeout=600)


def make_environment(tree, python=BASE_PYTHON):
    """Make what a finished set-up leaves, without the packages."""
    venv = tree / ".venv"
    subprocess.run([python, "-m", "venv", "--without-pip", venv], check=True)
    code = (
        "from pathlib import Path; import sys; sys.path.insert(0, '.'); from tools import setup_environment as s; "
        "v = Path('.venv').absolute(); (v / '.setup-stamp').write_text(s._made_from(v))"
    )
    subprocess.run([venv / "bin/python", "-c", code], cwd=tree, check=True)
    return venv


def test_only_an_old_python_is_named_with_what_is_needed_and_how_to_get_it(tree, stubs):
    write_stub(stubs / "python3", "echo 3.8.18")
    done = run_setup(tree, PATH=stubs)
    assert done.returncode == 1
    assert "found no Python 3.11 to 3.13 (python3 is 3.8.18)" in done.stderr
    assert "apt install python3" in done.stderr
    assert "PYTHON=/path/to/python3.12" in done.stderr


def test_no_python_at_all_is_said(tree, stubs):
    done = run_setup(tree, PATH=stubs)
    assert done.returncode == 1
    assert "no Python at all" in done.stderr


def test_a_chosen_python_that_does_not_fit_is_not_replaced_by_another(tree, stubs):
    old = write_stub(stubs / "old", "echo 3.9.1")
    done = run_setup(tree, PYTHON=old)
    assert done.returncode == 1
    assert f"PYTHON={old}: found no Python 3.11 to 3.13 ({old} is 3.9.1)" in done.stderr


def test_a_python_too_old_or_broken_is_passed_over(tree, stubs):
    write_stub(stubs / "python3", "echo 3.14.0")
    write_stub(stubs / "python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    write_stub(stubs / "python3.12", '[ "$1" = -c ] && echo 3.12.1 || echo "chosen: $*"')
    done = run_setup(tree, PATH=stubs)
    assert done.stdout == "chosen: -I tools/setup_environment.py .venv\n"


def test_a_python_of_pyenv_is_found(tree, stubs):
    (tree / ".pyenv/versions/3.11.7/bin").mkdir(parents=True)
    write_stub(tree / ".pyenv/versions/3.11.7/bin/python", '[ "$1" = -c ] && echo 3.11.7 || echo "chosen: $*"')
    assert "chosen" in run_setup(tree, PATH=stubs).stdout


@pytest.mark.parametrize(("system", "advice"), [("MINGW64_NT-10.0", "WSL 2"), ("FreeBSD", "Linux x86-64 container")])
def test_another_system_is_refused_with_a_way_out(tree, stubs, system, advice):
    write_stub(stubs / "uname", f"echo {system}")
    done = run_setup(tree, PATH=stubs)
    assert done.returncode == 1
    assert advice in done.stderr


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        (("Linux", "aarch64", ("glibc", "2.39")), "Linux aarch64 with glibc 2.39"),
        (("Linux", "x86_64", ("glibc", "2.31")), "Linux x86_64 with glibc 2.31"),
        (("Linux", "x86_64", ("", "")), "no glibc (musl?)"),
        (("Darwin", "x86_64", ("", "")), "Intel Macs"),
    ],
)
def test_a_machine_without_wheels_is_named_with_a_way_out(machine, found):
    problem = why_unsupported(*machine)
    assert found in problem
    assert "docker run" in problem


@pytest.mark.parametrize(
    "machine",
    [
        ("Linux", "x86_64", ("glibc", "2.34")),
        ("Linux", "x86_64", ("glibc", "2.41")),
        ("Darwin", "arm64", ("", "")),
    ],
)
def test_a_machine_with_wheels_is_supported(machine):
    assert why_unsupported(*machine) is None


def test_a_python_without_ensurepip_is_told_which_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(setup_environment.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(setup_environment.SetupError, match=r"apt install python3\.\d+-venv"):
        setup_environment._make_venv(tmp_path / "venv")


def test_a_folder_that_is_no_environment_is_never_cleared(tree):
    (tree / "home").mkdir()
    (tree / "home/letter").write_text("dear")
    done = run_setup(tree, PYTHON=BASE_PYTHON, VENV=tree / "home")
    assert done.returncode == 1
    assert "is not a virtual environment" in done.stderr
    assert (tree / "home/letter").read_text() == "dear"


@pytest.mark.slow
def test_no_network_is_one_sentence_and_leaves_no_stamp(tree):
    unreachable = "http://127.0.0.1:9/simple"
    done = run_setup(
        tree,
        PYTHON=BASE_PYTHON,
        PIP_CONFIG_FILE="/dev/null",
        PIP_INDEX_URL=unreachable,
        PIP_RETRIES=0,
        UV_DEFAULT_INDEX=unreachable,
    )
    assert done.returncode == 1
    assert "Is the package index reachable?" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert str(tree / ".venv/setup.log") in done.stderr
    assert "127.0.0.1" in (tree / ".venv/setup.log").read_text()
    assert not (tree / ".venv/.setup-stamp").exists()


def test_nothing_is_done_when_nothing_has_changed(tree):
    make_environment(tree)
    for chosen in ({}, {"PYTHON": BASE_PYTHON}):
        done = run_setup(tree, PIP_INDEX_URL="http://127.0.0.1:9", **chosen)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["requirements.lock", "tools/older_glibc.py"])
def test_a_changed_input_is_installed_into_the_same_environment(tree, name):
    venv = make_environment(tree)
    (venv / "kept").touch()
    with (tree / name).open("a") as file:
        file.write("# changed\n")
    done = run_setup(tree)
    # There is no pip in this environment, so the set-up gets as far as calling it.
    assert "only what has changed" in done.stdout
    assert "No module named pip" in done.stderr
    assert (venv / "kept").exists()
    assert not (venv / ".setup-stamp").exists()


@pytest.mark.slow
def test_an_interrupted_set_up_starts_over(tree):
    venv = make_environment(tree)
    (venv / "half-installed").touch()
    (venv / ".setup-stamp").unlink()
    done = run_setup(tree, PYTHON=BASE_PYTHON, PIP_NO_INDEX=1, PIP_CONFIG_FILE="/dev/null")
    assert "about 3.5 GB" in done.stdout
    assert not (venv / "half-installed").exists()


@pytest.mark.slow
def test_a_moved_tree_gets_a_new_environment(tree):
    make_environment(tree)
    moved = tree.rename(tree.with_name("moved"))
    (moved / ".venv/old").touch()
    run_setup(moved, PYTHON=BASE_PYTHON, PIP_NO_INDEX=1, PIP_CONFIG_FILE="/dev/null")
    assert not (moved / ".venv/old").exists()


def test_make_help_lists_every_target():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert listed == {
        "help",
        "setup",
        "run",
        "test",
        "long",
        "check",
        "lint",
        "format",
        "bench",
        "gauntlet",
        "faults",
        "mutants",
        "image",
        "rehearse-image",
        "lock",
        "tensorboard",
        "clean",
    }


def test_what_the_setup_runs_needs_neither_a_home_nor_room_among_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/dev/null/none")
    monkeypatch.setenv("TMPDIR", "/dev/null")
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    log = tmp_path / "setup.log"
    code = "import os, tempfile; print(tempfile.gettempdir(), os.environ['UV_CACHE_DIR'], sep='\\n')"
    setup_environment._run([sys.executable, "-c", code], log)
    temporary, cache = log.read_text().splitlines()[-2:]
    assert Path(temporary).is_relative_to(tmp_path)
    assert Path(cache).is_relative_to(tmp_path)


def test_a_home_that_can_be_written_keeps_the_cache_of_uv(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    assert "UV_CACHE_DIR" not in setup_environment._environment(tmp_path)
