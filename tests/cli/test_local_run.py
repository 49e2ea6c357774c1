"""What a run decides before it imports anything."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cli.local_run import VERDICT, LocalRun
from pipeline.settings.config import load_config

ROOT = Path(__file__).resolve().parents[2]
LATER = 4_000_000_000  # seconds since 1970


@pytest.fixture
def run(tmp_path: Path) -> LocalRun:
    """A run of a pipeline with its own module file and data, after one that ended well."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mine.py").touch()
    (tmp_path / "rows.csv").touch()
    config = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    config = replace(
        config,
        module=str(tmp_path / "models/mine.py"),
        data=replace(config.data, path=str(tmp_path / "rows.csv"), splits={}, files="*", prepare=None),
    )
    ended(tmp_path, 0)
    return LocalRun(config, tmp_path, [], None)


def ended(output: Path, exit_code: int) -> None:
    (output / VERDICT).write_text(json.dumps({"exit_code": exit_code}))
    os.utime(output / VERDICT, (LATER, LATER))


@pytest.mark.parametrize("exit_code", [0, 3])
def test_no_step_is_expected_to_run_after_a_run_that_ended(run, exit_code):
    ended(run.output, exit_code)
    assert not run.expects_work()


@pytest.mark.parametrize("exit_code", [1, 130])
def test_steps_are_expected_to_run_after_a_run_that_failed(run, exit_code):
    ended(run.output, exit_code)
    assert run.expects_work()


@pytest.mark.parametrize("content", [None, "", "[]", "{}"])
def test_steps_are_expected_to_run_without_a_readable_verdict(run, content):
    (run.output / VERDICT).unlink()
    if content is not None:
        (run.output / VERDICT).write_text(content)
        os.utime(run.output / VERDICT, (LATER, LATER))
    assert run.expects_work()


@pytest.mark.parametrize("file", ["models/mine.py", "models/other.py", "rows.csv"])
def test_steps_are_expected_to_run_after_an_edit(run, file):
    (run.output / file).touch()
    os.utime(run.output / file, (LATER + 1, LATER + 1))
    assert run.expects_work()
