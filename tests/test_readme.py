"""Promises of the documents that are kept: files, targets, options, benchmarks."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.__main__ import COMMANDS
from pipeline.cli.vertex.arguments import COMMANDS as VERTEX_COMMANDS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "data/README.md",
    "schema/README.md",
    *map(str, (ROOT / "docs").rglob("*.md")),
]


@pytest.fixture(params=DOCUMENTS)
def document(request) -> Path:
    return ROOT / request.param


def test_every_link_leads_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        assert target.startswith("https://") or (document.parent / target).exists(), target


def test_every_path_in_code_marks_exists(document):
    made_by_a_run = ("output/", ".venv", "data/flights/", "data/digits/", "artifacts/", "serving/", "assets.extra/")
    elsewhere = ("/v1/", "/var/", "/usr/", "roles/")
    for path in re.findall(r"`([\w./-]+/[\w./-]*)`", document.read_text()):
        if "mine" in path or path.startswith(made_by_a_run + elsewhere) or path in ("train/", "eval/", "test/"):
            continue
        assert (ROOT / path).exists() or (document.parent / path).exists(), path


def test_every_make_target_exists(document):
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^    |`)make ([a-z-]+)", document.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_script_and_module_exists(document):
    text = document.read_text()
    for script in re.findall(r"python ([\w/]+\.py)", text):
        assert (ROOT / script).is_file(), script
    for module in re.findall(r"python -m (pipeline\.[\w.]+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module
    for command in re.findall(r"(?:python -m pipeline|`pipeline) (\w+)", text):
        assert command in COMMANDS, command


@functools.cache
def help_of(*command: str) -> str:
    return subprocess.run(
        [sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["local_runner.py", "vertex_runner.py"])
def test_every_command_and_option_of_the_runners_exists(document, runner):
    for line in re.findall(rf"{runner}((?: [^\s`#]+)+)", document.read_text()):
        word = line.split()[0]
        command = []
        if runner == "vertex_runner.py" and word not in ("COMMAND", "--help"):
            command = ["run" if word.startswith("-") else word]
            assert command[0] in VERTEX_COMMANDS, line
        for option in re.findall(r"--[a-z]+(?:-[a-z]+)*", line):
            assert option in help_of(runner, *command), line


def test_the_table_of_rooms_in_the_readme_names_what_is_there():
    table = (ROOT / "README.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    named = {path for line in table.splitlines() for path in re.findall(r"^\| `([\w./]+)`", line)}
    assert {path for path in named if not (ROOT / path).exists()} == set()
    rooms = {f"pipeline/{path.name}/" for path in (ROOT / "pipeline").iterdir() if (path / "__init__.py").is_file()}
    assert rooms <= named


def test_every_threat_is_shown_by_tests_that_exist():
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    text = (ROOT / "docs/threat_model.md").read_text()
    named = re.findall(r"`(test_\w+)`", text)
    assert len(named) > 30
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_every_behaviour_of_google_cloud_has_its_test_or_is_called_unknown():
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    _, _, table = (ROOT / "docs/vertex.md").read_text().partition("## What it relies on")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")
    ]
    for behaviour, source, exercised_by in rows[1:]:
        if behaviour.startswith("**") or exercised_by == "unknown until seen":
            continue
        assert source, behaviour
        for name in exercised_by.split(", "):
            assert f"def {name.strip('`')}(" in tests, name
