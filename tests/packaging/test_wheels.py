"""Modules imported from successive wheels."""

import importlib
import os
import shutil
import subprocess
import sys
import traceback
import types
from pathlib import Path

import pytest

from pipeline.packaging import user_code

CODE = """\
def answer():
    import helper_of_mine

    return helper_of_mine.VALUE
"""


def module_path(folder: Path, value: int, more: str = "") -> str:
    sources = {"of_mine.py": CODE + more, "helper_of_mine.py": f"VALUE = {value}\n"}
    return f"of_mine@{user_code.write_wheel(f'mine_{value}', '0.0', sources, folder)}"


def test_what_a_function_imports_when_it_is_called_is_there(tmp_path):
    with user_code.importable(module_path(tmp_path, 1)) as module:
        assert importlib.import_module(module).answer() == 1


def test_a_step_gets_nothing_of_the_step_before(tmp_path):
    with user_code.importable(module_path(tmp_path, 1, "LEFT_OUT = 1\n")) as module:
        assert importlib.import_module(module).LEFT_OUT == 1
        importlib.import_module(module).answer()
    with user_code.importable(module_path(tmp_path, 2)) as module:
        loaded = importlib.import_module(module)
        assert loaded.answer() == 2
        assert not hasattr(loaded, "LEFT_OUT")


def test_a_loaded_module_of_the_same_name_is_not_used_and_comes_back(tmp_path, monkeypatch):
    """A notebook may already have imported the module file."""
    loaded = types.ModuleType("of_mine")
    monkeypatch.setitem(sys.modules, "of_mine", loaded)
    with user_code.importable(module_path(tmp_path, 5)) as module:
        assert importlib.import_module(module).answer() == 5
    assert sys.modules["of_mine"] is loaded


@pytest.mark.parametrize("before", [None, "/elsewhere"])
def test_a_process_that_is_started_imports_them_too_and_nothing_is_left(tmp_path, monkeypatch, before):
    if before is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", before)
    path = list(sys.path)
    with user_code.importable(module_path(tmp_path, 3)) as module:
        command = [sys.executable, "-c", f"import {module}; print({module}.answer())"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "3\n"
        folder = Path(importlib.import_module(module).__file__).parent
        importlib.import_module(module).answer()
    assert sys.path == path
    assert os.environ.get("PYTHONPATH") == before
    assert not {"of_mine", "helper_of_mine"} & set(sys.modules)
    assert not folder.exists()


def test_an_error_is_shown_with_its_line_and_nothing_stays_importable(tmp_path):
    fails = module_path(tmp_path, 4, "\n\ndef fail():\n    1 / 0  # here\n")
    with pytest.raises(ZeroDivisionError) as raised, user_code.importable(fails) as module:
        importlib.import_module(module).fail()
    shown = "".join(traceback.format_exception(raised.value))
    assert 'of_mine.py", line 8, in fail\n    1 / 0  # here' in shown
    assert "of_mine" not in sys.modules
    shutil.rmtree(Path(raised.traceback[-1].path).parent)


def test_a_module_without_a_wheel_is_importable_as_it_is():
    with user_code.importable("json") as module:
        assert module == "json"
