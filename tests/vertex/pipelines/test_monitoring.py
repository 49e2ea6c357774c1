"""Monitoring on Vertex AI: requests that the endpoint has logged, against the training data, by the real clients."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow_data_validation as tfdv

from pipeline.errors import UserError
from pipeline.quality import predictions, reference
from pipeline.settings.config import PipelineConfig, load_config
from pipeline.settings.target import Target
from pipeline.vertex.pipelines import monitoring, submit
from tests.fakes.google_cloud import BUCKET, GoogleCloud
from tests.serving.test_image_inputs import b64, grey_image
from tests.vertex.serving import ENDPOINT, Pushes

ROOT = Path(__file__).resolve().parents[3]
TABLE = "demo.logs.requests"
LOGGED = replace(ENDPOINT, log_to=f"bq://{TABLE}")
CRON = "0 6 * * *"


@pytest.fixture(scope="session")
def train(few_flights: Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(file) for file in sorted(few_flights.glob("train/*.parquet"))])


@pytest.fixture
def requests(train: pd.DataFrame, there: GoogleCloud) -> list[dict[str, Any]]:
    """Return what is logged: half as instances, half as whole bodies of requests."""
    rows = json.loads(train.drop(columns=["late"]).to_json(orient="records"))
    there.rest.project.tables[TABLE] = {}
    there.rest.project.logged = [json.dumps(row) for row in rows[::2]]
    there.rest.project.logged += [json.dumps({"instances": rows[1::2]}), "cut o"]
    return rows


@pytest.fixture
def compiled_task(config: PipelineConfig, pushes: Pushes, train: pd.DataFrame, tmp_path: Path) -> list[str]:
    """The arguments of the task, as scheduled for a pipeline that has pushed once."""
    return task(config, pushes, train, tmp_path)


def task(config: PipelineConfig, pushes: Pushes, train: pd.DataFrame, tmp_path: Path) -> list[str]:
    pushed = pushes.push(1, LOGGED)
    target = Target.on_vertex(replace(pushes.vertex, endpoint=LOGGED), config.name, tmp_path / "upload")
    version = pushed.get_string_custom_property("pushed_version")
    statistics = {"train": tfdv.generate_statistics_from_dataframe(train)}
    scores = np.linspace(0, 1, 1_000, dtype=np.float32) if len(config.label.classes) == 2 else np.arange(1_000) % 2
    of_test = predictions.statistics_of(scores, config.label.classes)
    reference.write(f"{target.pipeline_root}/_pushed/{config.name}", version, statistics, {}, of_test)
    monitoring.compile(config, target, tmp_path / "out", retrain=False)
    for here, address in json.loads((tmp_path / "out/uploads.json").read_text()).items():
        copy = tmp_path / "buckets" / address.removeprefix("gs://")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(Path(here).read_bytes())
    return arguments_in(json.loads((tmp_path / "out/pipeline_job.json").read_text())["pipelineSpec"])


def arguments_in(spec: dict[str, Any]) -> list[str]:
    container = spec["deploymentSpec"]["executors"]["Monitor_executor"]["container"]
    assert container["command"] == ["python", "-m", "pipeline.vertex.pipelines.monitoring"]
    return [str(word) for word in container["args"]]


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch, retrain: bool = False) -> int:
    (given,) = arguments
    monkeypatch.setattr("sys.argv", ["monitoring", json.dumps(json.loads(given) | {"retrain": retrain})])
    return monitoring.main()


@pytest.mark.slow
def test_rows_like_those_of_the_training_are_within_the_limits(compiled_task, requests, tmp_path, monkeypatch, capsys):
    assert run(compiled_task, monkeypatch) == 0
    said = capsys.readouterr().out
    assert f"{len(requests):,} rows of version " in said
    assert "1 lines that are not rows" in said
    assert "within the limits of the schema" in said
    written = tmp_path / "buckets" / BUCKET / "flights/artifacts/_monitor"
    assert len(list(written.glob("*/findings.json"))) == 1
    assert len(list(written.glob("*/Split-serving/FeatureStats.pb"))) == 1


@pytest.mark.slow
def test_a_crossed_limit_fails_the_task_or_starts_the_schedules_job(
    compiled_task, requests, there: GoogleCloud, compiled: Path, vertex, cloud, monkeypatch, capsys
):
    there.rest.project.logged = [json.dumps({**row, "origin": "XXX"}) for row in requests]
    assert run(compiled_task, monkeypatch) == 4
    assert "crossed: origin" in capsys.readouterr().out
    with pytest.raises(UserError, match="there is no schedule flights, whose job would be started"):
        run(compiled_task, monkeypatch, retrain=True)
    submit.create_schedule(compiled, vertex, "flights", CRON, cloud, lambda _: None)
    assert run(compiled_task, monkeypatch, retrain=True) == 0
    (job,) = there.vertex.pipeline_jobs.values()
    assert job.name in capsys.readouterr().out
    assert "Trainer" in job.pipeline_spec["components"]["tfx-dag"]["dag"]["tasks"]


def answers(probabilities: np.ndarray) -> list[str]:
    return [json.dumps({"predictions": [{"probability": value, "label": "late"}]}) for value in probabilities.tolist()]


@pytest.mark.slow
def test_other_answers_than_for_the_test_split_are_a_crossed_limit(compiled_task, requests, there, monkeypatch, capsys):
    project = there.rest.project
    project.logged = [json.dumps({"instances": [row]}) for row in requests]
    project.answered = answers(np.linspace(0, 1, len(requests)))
    assert run(compiled_task, monkeypatch) == 0
    assert "predictions" not in capsys.readouterr().out
    project.answered = answers(np.linspace(0, 0.2, len(requests)))
    assert run(compiled_task, monkeypatch) == 4
    assert "crossed: predictions" in capsys.readouterr().out


@pytest.mark.slow
def test_of_images_what_is_known_about_them_is_compared_and_nothing_that_requests_lack(
    pushes, there: GoogleCloud, tmp_path, monkeypatch, capsys
):
    config = load_config(ROOT / "configs/digits.py").with_paths_from(ROOT)
    greys = np.arange(1_200) % 200
    train = pd.DataFrame(
        {
            "image_format": "PNG",
            "image_width": 8,
            "image_height": 8,
            "image_brightness": greys.astype(np.float32),
            "image_path": [f"{number}.png" for number in range(len(greys))],
            "image_folder": "7",
            "digit": 7,
        }
    )
    arguments = task(config, pushes, train, tmp_path)
    there.rest.project.tables[TABLE] = {}

    def log(greys: np.ndarray) -> None:
        images = [b64(grey_image(grey, (8, 8))) for grey in greys.tolist()]
        bodies = [{"instances": [{"image": image}]} if number % 2 else image for number, image in enumerate(images)]
        there.rest.project.logged = list(map(json.dumps, bodies))

    log(greys)
    assert run(arguments, monkeypatch) == 0
    said = capsys.readouterr().out
    assert "1,200 rows of version " in said
    assert "within the limits of the schema" in said
    assert "crossed" not in said
    assert "warning" not in said
    log(greys // 2 + 100)
    assert run(arguments, monkeypatch) == 4
    assert "crossed: image_brightness" in capsys.readouterr().out


def test_too_few_rows_are_no_reason_to_fail(compiled_task, requests, there: GoogleCloud, monkeypatch, capsys):
    there.rest.project.logged = there.rest.project.logged[:10]
    assert run(compiled_task, monkeypatch) == 0
    assert "10 rows in 7 days, at least 1,000 are needed" in capsys.readouterr().out


@pytest.mark.slow
def test_it_is_scheduled_beside_the_pipeline_by_a_command(runner, there: GoogleCloud, tmp_path: Path, vertex):
    endpoint = tmp_path / "endpoint.py"
    endpoint.write_text(
        f"from pipeline.settings.endpoint import Endpoint\nENDPOINT = Endpoint('e', log_to='bq://{TABLE}')\n"
    )
    code, text = runner("monitor", CRON)
    assert code == 2
    assert "--endpoint (or VERTEX_ENDPOINT) is missing" in text
    there.rest.project.tables[TABLE] = {}
    code, text = runner("monitor", CRON, "--retrain", f"--endpoint={endpoint}")
    assert code == 0, text
    assert f"created the schedule\nflights-monitor  active  '{CRON}', 0 runs so far" in text
    (schedule,) = there.vertex.schedules.values()
    job = schedule.create_pipeline_job_request.pipeline_job
    (given,) = arguments_in(job.pipeline_spec)
    assert json.loads(given)["retrain"]
    assert any("/_schemas/" in address for address in there.files())
