"""Rehearsals of the real pipeline on a few flights, as a user starts them. One clone, in the order of the tests."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tfx.types import standard_artifacts
from tfx.utils import json_utils

from pipeline.settings.machines import Job
from pipeline.settings.target import Vertex
from pipeline.vertex import REHEARSAL_VARIABLE
from pipeline.vertex.jobs import launch, vizier
from pipeline.vertex.pipelines.compile import custom_job
from tests.e2e.run import ROOT, Run, copy_repository, edit, run, with_few_features
from tests.preloaded_tasks import preloaded_tasks
from tests.training.worker import SETTINGS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rehearsal_clone(tmp_path_factory: pytest.TempPathFactory, few_flights: Path) -> Path:
    return with_few_features(copy_repository(tmp_path_factory.mktemp("rehearsal") / "clone", few_flights))


@pytest.fixture(scope="module", autouse=True)
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, preloaded_tasks(tmp_path_factory.mktemp("tasks")) as variables:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def rehearsed(rehearsal_clone: Path) -> Run:
    workers = ("--training-workers", "2", "--tuner-workers", "2")
    endpoint = ("--endpoint", "configs/endpoint.py")
    return run(rehearsal_clone, "rehearse", *workers, *endpoint, runner="vertex_runner.py")


def artifacts_of(clone: Path) -> Path:
    """The folder of the runs, by project number as on Vertex AI."""
    return clone / "output/flights/rehearsal/artifacts/0"


def auc(text: str) -> float:
    found = re.search(r"^blessed: auc ([\d.]+)", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def test_two_training_workers_and_two_tuner_workers_push_a_model_like_the_local_runs(rehearsal_clone, rehearsed, first):
    assert rehearsed.code == 0, rehearsed.text
    assert rehearsed.states == {**first.states, "Report": "ran"}
    assert (rehearsal_clone / rehearsed.pushed_to / "saved_model.pb").is_file()
    page = next(artifacts_of(rehearsal_clone).glob("*/Report_*/report.html")).read_text(encoding="utf-8")
    assert "could not be" not in page
    assert all(part in page for part in ("Blessed and pushed to", "Permutation importance", "carrier", "2 trials"))
    told = json.loads(next(artifacts_of(rehearsal_clone).glob("*/Report_*/executor_output.json")).read_text())
    numbers = told["artifacts"]["metrics"]["artifacts"][0]["metadata"]
    assert numbers["auc"] == pytest.approx(auc(rehearsed.text), abs=1e-3)
    assert numbers["blessed"] == 1.0
    assert {"parameter_learning_rate", "parameter_batch_size"} <= set(numbers)
    # Another model, for a step takes the batches of both workers.
    assert auc(rehearsed.text) == pytest.approx(auc(first.text), abs=0.05)
    (logs,) = (path for path in (rehearsal_clone / "output/flights/rehearsal/logs").iterdir() if path.is_dir())
    said = {path.stem: path.read_text() for path in logs.glob("*.log")}
    assert "Training on 2 devices of 2 workers, this is 1" in said["trainer-workerpool1-0"]
    trials = [len(re.findall(r"Trial \d+: val_auc", said[f"tuner-workerpool{pool}-0"])) for pool in (0, 1)]
    assert sum(trials) == 2
    not_rehearsed = rehearsed.text.partition("not rehearsed:")[2]
    assert "machine types" in not_rehearsed
    assert "the registry and the endpoint late-flights: nothing was deployed" in not_rehearsed


def test_a_second_run_finds_the_first_runs_model_and_refuses_a_worse_one(rehearsal_clone, rehearsed):
    config, module = rehearsal_clone / "configs/small.py", rehearsal_clone / "models/flights.py"
    before = config.read_text(), module.read_text()
    edit(config, 'Gate("auc", floor=0.5, max_drop=0.1)', 'Gate("auc", max_drop=0.1)')
    reversed_labels = "lambda label, answer: keras.losses.binary_crossentropy(1 - label, answer)"
    edit(module, 'loss="binary_crossentropy"', f"loss={reversed_labels}")
    worse = run(rehearsal_clone, "rehearse", "--tuning", "off", runner="vertex_runner.py")
    config.write_text(before[0])
    module.write_text(before[1])

    assert worse.code == 0, worse.text
    judged = re.search(r"[\d.]+ worse than the ([\d.]+) of the last blessed model, at most 0.1", worse.text)
    assert judged, worse.text
    assert float(judged[1]) == pytest.approx(auc(rehearsed.text), abs=1e-3)
    assert re.search(r"note: the baseline \S+/Trainer_\d+/model has auc " + judged[1], worse.text)
    evaluation = json.loads(max(artifacts_of(rehearsal_clone).glob("*/Evaluator_*/executor_output.json")).read_text())
    (blessing,) = evaluation["artifacts"]["blessing"]["artifacts"]
    assert blessing["metadata"]["blessed"] == 0.0
    assert re.fullmatch(r"projects/.+/metadataStores/default/artifacts/.+", blessing["metadata"]["current_model_id"])
    assert blessing["metadata"]["baseline_model"].endswith("/model")


def test_a_module_file_that_works_only_here_fails_with_the_reason_and_the_rest_is_cached(rehearsal_clone, rehearsed):
    (rehearsal_clone / "models/widths.py").write_text("WIDTHS = [64, 128]\n")
    edit(
        rehearsal_clone / "models/flights.py",
        '    units = hp.Choice("units", [64, 128], default=128)',
        '    from models import widths\n\n    units = hp.Choice("units", widths.WIDTHS, default=128)',
    )
    again = run(rehearsal_clone, "rehearse", runner="vertex_runner.py")
    assert again.code == 1
    assert again.states["ExampleGen"] == again.states["Transform"] == "cached"
    assert "Tuner failed: ModuleNotFoundError: No module named 'models'" in again.text
    assert re.search(r"at models/flights.py, line \d+, in build_model: from models import widths", again.text)
    assert "models/ is in this repository but not in the image of the tasks" in again.text
    assert 'write "import x" in place of "from models import x"' in again.text
    assert "Traceback" not in again.text
    page = max(artifacts_of(rehearsal_clone).glob("*/Report_*/report.html")).read_text(encoding="utf-8")
    assert "The run failed in Tuner" in page
    assert "No module named" in page


def test_vizier_trials_are_jobs_that_report_and_keep_checkpoints_of_their_own(
    rehearsed: Run, rehearsal_clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    transform = next(artifacts_of(rehearsal_clone).glob("*/Transform_*"))
    monkeypatch.setenv(REHEARSAL_VARIABLE, str(tmp_path / "logs"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    vertex = Vertex(project="demo", region="us-central1", bucket="demo-bucket", image="i.dev/i:1")
    job = Job(replicas=2)
    setting = {
        "parent": "projects/demo/locations/us-central1",
        "replicas": 2,
        "job": custom_job(job, vertex, "tuner"),
    }
    config = {**SETTINGS, "epochs": 1, "trials": 2, launch.SETTING: setting}
    examples, graph, best, results = (
        standard_artifacts.Examples(),
        standard_artifacts.TransformGraph(),
        standard_artifacts.HyperParameters(),
        standard_artifacts.TunerResults(),
    )
    examples.uri, graph.uri = str(transform / "transformed_examples"), str(transform / "transform_graph")
    examples.split_names = '["train", "eval"]'
    best.uri, results.uri = str(tmp_path / "best"), str(tmp_path / "results")
    properties = {"train_args": "{}", "eval_args": "{}", "module_file": str(ROOT / "models/flights.py")}
    vizier.VizierJobExecutor().Do(
        {"examples": [examples], "transform_graph": [graph]},
        {"best_hyperparameters": [best], "tuner_results": [results]},
        {**properties, "custom_config": json_utils.dumps(config)},
    )

    rows = json.loads((tmp_path / "results/tuner_results.json").read_text())
    assert sorted(row["trial_id"] for row in rows) == ["1", "2"]
    assert rows[0]["score"] >= rows[1]["score"] > 0.4
    values = json.loads((tmp_path / "best/best_hyperparameters.txt").read_text())["values"]
    assert {name: rows[0][name] for name in values} == values
    for trial in ("1", "2"):
        assert list((tmp_path / f"job/{trial}/checkpoints/trial-{trial}").glob("ckpt-*"))
