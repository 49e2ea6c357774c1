"""python vertex_runner.py advise, as a user calls it in a clone with a run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.packaging import wheels
from pipeline.runs import measure, store
from tests.e2e.run import Run, copy_repository, run

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def advised(clone: Path, first: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of its own with a run: advice is kept beside it."""
    assert first.code == 0, first.text
    return Path(shutil.copytree(clone, tmp_path_factory.mktemp("advised") / "clone"))


def advise(clone: Path, *arguments: str) -> Run:
    return run(clone, "advise", "--output", str(clone / "output/flights"), *arguments, runner="vertex_runner.py")


@pytest.fixture(scope="module")
def answer(advised: Path) -> Run:
    return advise(advised, "--within", "8h", "--json", str(advised / "advice of a run.json"))


def test_it_measures_the_last_run_and_names_the_cheapest_and_the_fastest(advised: Path, answer: Run):
    assert answer.code == 0, answer.text
    assert "measuring its training on 1 core\n" in answer.text
    assert " this machine " in answer.text
    assert " n1-standard-8 + 1 T4 " in answer.text
    for beginning in ("cheapest  ", "fastest   ", "within 8 h  "):
        assert f"\n{beginning}" in answer.text
    found = json.loads((advised / "advice of a run.json").read_text())
    assert all(each["seconds"] > 0 for each in found["answers"])
    assert {"ExampleGen", "Transform", "Trainer", "Evaluator"} <= set(found["steps_here"])


def test_its_table_fits_into_a_hundred_columns(answer: Run):
    table = [line for line in answer.text.splitlines() if "standard" in line and "$" in line and line.startswith(" ")]
    assert len(table) > 5
    assert max(map(len, table)) <= 100


def test_it_does_not_measure_again_what_has_not_changed(advised: Path, answer: Run):
    again = advise(advised, "--rows", "10000000", "--epochs", "50", "--machine", "n1-standard-16")
    assert again.code == 0, again.text
    assert "measuring" not in again.text
    assert "10,000,000 rows, at most 50 epochs" in again.text
    assert " n1-standard-16 " in again.text
    assert "T4" not in again.text


def test_what_is_kept_is_of_a_model_and_holds_for_a_later_run_that_took_it_from_the_cache(advised: Path):
    with store.opened(advised / "output/flights") as metadata:
        last = store.runs_of(metadata)[-1]
    key = measure._key(last, "the config")
    assert measure._key(replace(last, name="a later run"), "the config") == key
    other = {**last.outputs, "Trainer": {"model_run": [SimpleNamespace(uri="another model")]}}
    assert measure._key(replace(last, outputs=other), "the config") != key
    assert measure._key(last, "another config") != key


def test_an_unknown_machine_or_region_is_answered_with_what_there_is_before_anything_is_measured(advised: Path):
    unknown = advise(advised, "--machine", "n1-standrad-8")
    assert (unknown.code, "measuring" in unknown.text) == (2, False)
    assert "no machine type 'n1-standrad-8'; the nearest is n1-standard-8" in unknown.text
    elsewhere = advise(advised, "--region", "moon-north1")
    assert elsewhere.code == 2
    assert "has no prices of moon-north1; it has those of asia-" in elsewhere.text


def test_a_batch_that_is_larger_than_the_train_split_is_refused(advised: Path):
    large = advise(advised, "--batch-size", "100000000")
    assert large.code == 2
    assert "--batch-size is 100,000,000, and of " in large.text


def test_without_a_run_it_says_how_to_start_one(tmp_path: Path):
    nothing = advise(copy_repository(tmp_path / "a clone"))
    assert nothing.code == 1
    assert "to measure yet; start one: python local_runner.py --config configs/small.py" in nothing.text


def test_a_module_with_a_loop_of_its_own_is_stopped_before_it_trains(
    advised: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = (Path(__file__).parent / "stock_module.py").read_text()
    wheel = wheels.write("stock", "0.0", {"stock_module.py": source}, tmp_path)
    with store.opened(advised / "output/flights") as metadata:
        last = store.runs_of(metadata)[-1]
    job = {**measure.job_of(last), "module_path": f"stock_module@{wheel}"}
    monkeypatch.setattr(measure, "job_of", lambda _: job)
    training, why = measure._training(last, lambda _: None)
    assert training is None
    assert "the module file trains in a loop of its own" in why
