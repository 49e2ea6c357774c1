"""Steps that run again after an edit. One clone lives through all of it, in the order of the tests."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.e2e.run import Run, copy_repository, edit, run, runs, with_few_features

pytestmark = pytest.mark.slow

FROM_TUNER = {"Tuner", "Trainer", "ModelCheck", "Evaluator", "Pusher", "Verdict"}
FROM_TRANSFORM = {"Transform", *FROM_TUNER}
ON_RAW_DATA = {"ExampleValidator", "DataGate", "Baselines"}
ON_ONE_CARRIER = 'SliceGate("auc", by="carrier=UA", floor=0.95, min_examples=50)'
EVERY_STEP = {"ExampleGen", "StatisticsGen", "SchemaGen", *ON_RAW_DATA, *FROM_TRANSFORM}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, few_flights: Path) -> Path:
    """Copy the repository for this module: its tests edit and clean the copy."""
    clone = with_few_features(copy_repository(tmp_path_factory.mktemp("caching"), few_flights))
    edit(clone / "configs/small.py", "trials=2", "trials=1")  # the defaults: what runs again is the same
    return clone


@pytest.fixture(scope="module")
def first(clone: Path) -> Run:
    """Run the pipeline for the first time in the clone."""
    return run(clone)


def versions(clone: Path) -> list[Path]:
    return sorted((clone / "output/flights/serving/flights").iterdir())


def test_a_first_run_executes_every_step_and_pushes(clone, first):
    assert first.code == 0, first.text
    assert first.ran == EVERY_STEP
    assert "blessed: auc" in first.text
    assert re.search(r"^Baselines, AUC: boosting 0\.\d+, linear 0\.\d+, constant 0\.5000$", first.text, re.MULTILINE)
    assert (clone / first.pushed_to / "saved_model.pb").is_file()
    (report,) = clone.glob("output/flights/runs/*/report.html")
    assert (clone / "output/flights/verdict.json").stat().st_mtime_ns < report.stat().st_mtime_ns
    assert first.text.index("\npushed to ") < first.text.index("\nreport ")


def test_nothing_changed_executes_nothing(clone, first):
    again = run(clone)
    assert again.code == 0, again.text
    assert again.ran == set()
    assert again.pushed_to == first.pushed_to
    report = f"report output/flights/runs/{first.run_id}/report.html"
    assert f"{report} (of an earlier run: nothing has changed since)" in again.text
    assert "nothing it depends on has changed since" in again.text
    assert "by an earlier run; nothing has changed that would push another model" in again.text
    assert "by an earlier run" not in first.text


def test_a_pushed_model_that_changed_on_the_disk_is_no_result(clone, first):
    graph = clone / first.pushed_to / "saved_model.pb"
    pushed = graph.read_bytes()
    graph.write_bytes(pushed[:-1] + bytes([pushed[-1] ^ 1]))
    again = run(clone)
    graph.write_bytes(pushed)
    assert again.code == 1
    assert (
        "has changed since: saved_model.pb is another; nothing else has changed that would push it again" in again.text
    )
    assert "Traceback" not in again.text


def test_editing_a_test_the_readme_or_an_unrelated_file_executes_nothing(clone, first):
    (clone / "tests/e2e/run.py").write_text("# another test\n")
    (clone / "README.md").write_text("# Another README\n")
    (clone / "notes.py").write_text("print('unrelated')\n")
    (clone / "models/other.py").write_text("VALUE = 1\n")
    edit(clone / "pipeline/cli/terminal.py", '("ran", "ok"), "green"', '("ran", "ok"), "blue"')
    again = run(clone)
    assert again.code == 0, again.text
    assert again.ran == set()


def test_a_gate_on_one_carrier_executes_the_evaluator_only_and_keeps_the_model_back(clone, first):
    before = versions(clone)
    config = clone / "configs/small.py"
    edit(config, 'Gate("auc", floor=0.5, max_drop=0.1),', f'Gate("auc", floor=0.5, max_drop=0.1), {ON_ONE_CARRIER},')
    again = run(clone)
    assert again.code == 3, again.text
    assert again.ran == {"Evaluator", "Pusher", "Verdict"}
    failed = re.search(r"^not blessed: auc on carrier=UA is (0\.\d+), floor 0.95 \((\d+) examples, ", again.text, re.M)
    assert failed, again.text
    assert float(failed[1]) < 0.95
    assert versions(clone) == before

    # With a minimum of examples above the carrier's, the model is pushed and it is said why.
    edit(config, "min_examples=50", "min_examples=500")
    again = run(clone)
    assert again.code == 0, again.text
    assert f"note: auc on carrier=UA was not judged: {failed[2]} examples, minimum 500" in again.text
    verdict = json.loads((clone / "output/flights/verdict.json").read_text())
    assert (verdict["exit_code"], verdict["blessed"], verdict["failed"]) == (0, True, [])
    assert f"auc on carrier=UA was not judged: {failed[2]} examples, minimum 500" in verdict["passed_over"]
    assert verdict["model_check"]["largest_difference_from_training"] < 1e-3
    edit(config, f" {ON_ONE_CARRIER.replace('=50)', '=500)')},", "")


@pytest.mark.long
def test_editing_the_training_library_executes_from_the_tuner(clone, first):
    edit(clone / "pipeline/training/input_pipeline.py", "BLOCK = 128", "BLOCK = 64")
    again = run(clone)
    assert again.ran == FROM_TUNER, again.text


def test_editing_preprocessing_fn_executes_from_transform(clone, first):
    edit(
        clone / "models/flights.py",
        "def preprocessing_fn(inputs, custom_config):",
        "CHANGED = 1\n\n\ndef preprocessing_fn(inputs, custom_config, changed=CHANGED):",
    )
    again = run(clone)
    assert again.ran == FROM_TRANSFORM, again.text


@pytest.mark.long
def test_editing_the_reviewed_schema_executes_what_reads_it(clone, first):
    edit(clone / "schema/flights/schema.pbtxt", "min: -60.0 max: 130.0", "min: -70.0 max: 130.0")
    again = run(clone)
    assert again.ran == {*ON_RAW_DATA, *FROM_TRANSFORM}, again.text


def test_editing_build_model_executes_from_the_tuner_and_a_worse_model_is_not_pushed(clone, first):
    before = versions(clone)
    edit(
        clone / "models/flights.py",
        "    model.compile(",
        "    model = keras.Model(model.inputs, 0.0 * model.output + 0.2)\n    model.compile(",
    )
    again = run(clone)
    assert again.ran == FROM_TUNER, again.text
    assert again.code == 3
    assert "not blessed: auc on all rows" in again.text
    assert "of the last blessed model, at most 0.1" in again.text
    assert "note: nothing shows that the model has learnt: auc on all rows is 0.5000" in again.text
    assert versions(clone) == before

    told = runs(clone, "diff").stdout
    assert "+     model = keras.Model(model.inputs, 0.0 * model.output + 0.2)" in told
    assert told.count("0.0 * model.output + 0.2") == 1
    assert re.search(r"^  auc +0\.\d+ -> 0\.5000  -0\.\d+$", told, re.MULTILINE), told
    assert "executed:  Tuner, Trainer, ModelCheck, Evaluator, Pusher, Verdict" in told
    assert "re-used:   ExampleGen, StatisticsGen, SchemaGen, ExampleValidator, DataGate, Baselines, Transform" in told
    assert "the same: settings, schema, data, packages and machine" in told
    assert "not blessed" in runs(clone, "show").stdout


def test_new_data_files_execute_every_step(clone, first):
    shutil.copy(clone / "data/flights/train/2013-01.parquet", clone / "data/flights/train/2013-01-more.parquet")
    again = run(clone, "--tuning", "reuse")
    assert again.ran == EVERY_STEP - {"Tuner"}, again.text
    assert again.states["LastSearch"] == "looked up"


def test_cleaning_keeps_the_pushed_model_and_what_the_next_run_needs(clone, first):
    before = versions(clone)
    count = len(list((clone / "output/flights/artifacts/Trainer/model").iterdir()))
    cleaned = runs(clone, "clean", "--keep", "1", "--yes")
    assert cleaned.returncode == 0, cleaned.stderr
    assert versions(clone) == before
    assert (clone / f"output/flights/runs/{first.run_id}/report.html").is_file()
    assert len(list((clone / "output/flights/artifacts/Trainer/model").iterdir())) < count
    again = run(clone, "--tuning", "reuse")
    assert again.ran == set(), again.text
    assert "earlier model to compare with" not in again.text


def test_a_failing_step_ends_in_one_message_and_pushes_nothing(clone, first):
    before = versions(clone)
    edit(
        clone / "models/flights.py",
        "    model.compile(",
        '    raise ArithmeticError("no layer [dense] here")\n    model.compile(',
    )
    again = run(clone, "--tuning", "off")
    assert again.code == 1
    assert again.states["Trainer"] == "failed"
    assert "Trainer failed: ArithmeticError: no layer [dense] here" in again.text
    assert "models/flights.py, line" in again.text
    assert ', in build_model: raise ArithmeticError("no layer [dense] here")' in again.text
    assert "output/flights/logs/" in again.text
    assert "Traceback" not in again.text
    assert versions(clone) == before
    report = clone / f"output/flights/runs/{again.run_id}/report.html"
    assert "failed in Trainer" in report.read_text()
    assert " failed " in runs(clone, "list").stdout.splitlines()[-1]


def test_a_damaged_metadata_store_ends_in_one_message(clone, tmp_path):
    (tmp_path / "metadata.sqlite").write_bytes(b"no database" * 1000)
    again = run(clone, "--output", tmp_path)
    assert again.code == 1
    assert "cannot be read as a metadata store" in again.text
    assert "Traceback" not in again.text
