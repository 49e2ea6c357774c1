"""The part of a module file that each step gets, and what its fingerprint notices."""

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import Data, Evaluation, Gate, Label, PipelineConfig, Tuning
from pipeline.errors import UserError
from pipeline.packaging import fingerprints as fingerprints_of_code
from pipeline.packaging import user_code
from pipeline.settings.repository import REPOSITORY

MODULE = '''\
"""A module file."""

import json
import math
import readline
from pipeline import training

SCALE = 2.0
NAMES = ["a"]


def _helper(x):
    return x * SCALE


def preprocessing_fn(inputs):
    return {name: _helper(value) for name, value in inputs.items()}


class Net:
    depth = 3


def build_model(hp):
    return Net(), math.pi, NAMES


def tuner_fn(fn_args):
    return training.tune(fn_args, build_model)


def run_fn(fn_args):
    json.dumps({})
    training.run(fn_args, build_model)
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "code" / "mine.py"
    path.parent.mkdir()
    path.write_text(MODULE)
    return path


def fingerprints(module: Path) -> dict[str, str]:
    return {
        entry: user_code.package(module, [entry], module.parent.parent / "wheels").fingerprint
        for entry in ("preprocessing_fn", "tuner_fn", "run_fn")
    }


def changed(module: Path, old: str, new: str) -> set[str]:
    """The entry points whose fingerprint a replacement changes."""
    before = fingerprints(module)
    assert old in module.read_text()
    module.write_text(module.read_text().replace(old, new))
    after = fingerprints(module)
    return {entry for entry in before if before[entry] != after[entry]}


def test_a_step_gets_the_statements_its_entry_point_needs():
    kept = user_code.cut(MODULE, ["preprocessing_fn"])
    assert "def preprocessing_fn" in kept
    assert "def _helper" in kept
    assert "SCALE = 2.0" in kept
    assert "build_model" not in kept
    assert "Net" not in kept
    assert "NAMES" not in kept
    assert "from pipeline" not in kept


def test_an_import_that_nothing_refers_to_is_kept_for_its_effect():
    assert "import readline" in user_code.cut(MODULE, ["preprocessing_fn"])


def test_line_numbers_stay_those_of_the_file():
    kept = user_code.cut(MODULE, ["run_fn"]).splitlines()
    original = MODULE.splitlines()
    assert kept[original.index("def run_fn(fn_args):")] == "def run_fn(fn_args):"


@pytest.mark.parametrize(
    "dynamic",
    [
        "value = globals()['SCALE']",
        "from math import *",
        "exec('pass')",
        "import importlib as i\ni.import_module('x')\nimportlib = i",
    ],
)
def test_code_that_looks_names_up_at_run_time_is_kept_whole(dynamic):
    source = f"{MODULE}\n{dynamic}\n"
    assert user_code.cut(source, ["preprocessing_fn"]) == source


def test_two_statements_on_one_line_are_not_torn_apart():
    source = "a = 1; b = 2\ndef preprocessing_fn(inputs):\n    return a\n"
    assert user_code.cut(source, ["preprocessing_fn"]) == source


def test_editing_build_model_concerns_the_tuner_and_the_trainer(module):
    assert changed(module, "math.pi", "math.e") == {"tuner_fn", "run_fn"}


def test_editing_a_class_that_build_model_uses_concerns_the_tuner_and_the_trainer(module):
    assert changed(module, "depth = 3", "depth = 4") == {"tuner_fn", "run_fn"}


def test_editing_a_constant_behind_preprocessing_concerns_transform_only(module):
    assert changed(module, "SCALE = 2.0", "SCALE = 3.0") == {"preprocessing_fn"}


def test_comments_line_breaks_and_the_module_docstring_concern_no_step(module):
    assert changed(module, '"""A module file."""\n', '"""Another text."""\n\n# with a comment\n') == set()


def test_a_module_beside_the_module_file_travels_with_the_steps_that_import_it(module):
    (module.parent / "shapes.py").write_text("WIDTH = 8\n")
    (module.parent / "unrelated.py").write_text("WIDTH = 9\n")
    module.write_text(MODULE.replace("def build_model(hp):", "def build_model(hp):\n    import shapes"))
    code = user_code.package(module, ["run_fn"], module.parent)
    with zipfile.ZipFile(code.wheel) as wheel:
        names = {name for name in wheel.namelist() if name.endswith(".py")}
    assert names == {"mine.py", "shapes.py"}
    before = fingerprints(module)
    (module.parent / "shapes.py").write_text("WIDTH = 16\n")
    after = fingerprints(module)
    assert {entry for entry in before if before[entry] != after[entry]} == {"tuner_fn", "run_fn"}


def test_the_library_counts_for_the_steps_that_import_it(module, monkeypatch, tmp_path):
    before = fingerprints(module)
    repository = tmp_path / "repository"
    (repository / "pipeline/training").mkdir(parents=True)
    for path in (REPOSITORY / "pipeline").rglob("*.py"):
        copy = repository / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    for module_of in (user_code, fingerprints_of_code):
        monkeypatch.setattr(module_of, "REPOSITORY", repository)
    assert fingerprints(module) == before
    loop = repository / "pipeline/training/loop.py"
    loop.write_text(loop.read_text() + "\nCHANGED = True\n")
    after = fingerprints(module)
    assert {entry for entry in before if before[entry] != after[entry]} == {"tuner_fn", "run_fn"}
    terminal = repository / "pipeline/cli/terminal.py"
    terminal.write_text(terminal.read_text() + "\nCHANGED = True\n")
    assert fingerprints(module) == after


@pytest.mark.parametrize("package", ["keras", "keras-tuner", "tensorflow", "tensorflow-transform", "tfx"])
def test_another_version_of_what_trains_the_model_concerns_every_step(module, monkeypatch, tmp_path, package):
    before = fingerprints(module)
    installed = tmp_path / f"{package.replace('-', '_')}-99.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 99.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    after = fingerprints(module)
    assert not set(before.values()) & set(after.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mine", "mine_", "mine__2", "Mine"])
def test_pip_installs_the_wheel_and_the_entry_point_runs(module, tmp_path, name):
    module = module.rename(module.with_name(f"{name}.py"))
    code = user_code.package(module, ["preprocessing_fn"], tmp_path / "wheels")
    assert code.module == name
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--target", str(installed), str(code.wheel)]
    subprocess.run(pip, check=True)
    answer = subprocess.run(
        [sys.executable, "-c", f"import {name}; print({name}.preprocessing_fn({{'x': 4}}))"],
        cwd=installed,
        check=True,
        capture_output=True,
        text=True,
    )
    assert answer.stdout.strip() == "{'x': 8.0}"


def test_the_wheel_of_several_steps_is_named_after_the_first(module, tmp_path):
    code = user_code.package(module, ["tuner_fn", "run_fn"], tmp_path)
    assert Path(code.wheel).name.startswith("mine_tuner_fn-")


def test_the_graph_has_a_tuner_when_the_config_asks_for_one_and_the_module_file_has_it(module):
    config = PipelineConfig(
        "mine", Data("rows.csv"), Label("y"), module=str(module), evaluation=Evaluation((Gate("auc", 0.5),))
    )
    assert user_code.searches(config)
    for mode in ("off", "reuse"):
        assert not user_code.searches(replace(config, tuning=Tuning(mode=mode)))
    module.write_text(MODULE.replace("def tuner_fn", "def another"))
    assert not user_code.searches(config)


def test_the_image_with_gpus_has_a_name_of_its_own():
    name = fingerprints_of_code.image_name()
    assert name == f"{fingerprints_of_code.IMAGE_REPOSITORY}:{fingerprints_of_code.library_fingerprint()}"
    assert fingerprints_of_code.image_name("gpu") == f"{name}-gpu"


def test_a_syntax_error_is_named_with_its_line(module):
    module.write_text(MODULE.replace("def run_fn(fn_args):", "def run_fn(fn_args)"))
    with pytest.raises(UserError, match=r"mine.py, line 32: expected ':'"):
        user_code.read_module(module)


def test_a_module_without_run_fn_is_refused(module):
    module.write_text(MODULE.replace("def run_fn", "def other_fn"))
    with pytest.raises(UserError, match="mine.py does not define run_fn"):
        user_code.read_module(module)
