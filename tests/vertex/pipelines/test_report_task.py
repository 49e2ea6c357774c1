"""The last task on Vertex AI: it runs whatever became of the others, and tells what did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Target, Vertex
from pipeline.vertex import JOB_NAME
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines import report_task
from pipeline.vertex.pipelines.compile import compile
from pipeline.vertex.pipelines.submit import submit
from pipeline.vertex.pipelines.watch import watch
from tests.fakes.google_cloud import GoogleCloud
from tests.fakes.webhook import KEY, SECRET, Receiver, receiving, verified

SECRET_NAME = "projects/demo/secrets/webhook/versions/latest"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(500) as receiver:
        yield receiver


def ended(job: str, cloud: Cloud) -> v1.PipelineJob:
    watch(job, cloud, lambda _: None, lambda _: None, seconds=0.0)
    return cloud.client(v1.PipelineServiceClient).get_pipeline_job(name=job)


def arguments_of(folder: Path, job: str, outputs: Path) -> list[str]:
    """What Vertex AI would start the task with."""
    spec = json.loads((folder / "pipeline_job.json").read_text())["pipelineSpec"]
    given: dict[str, Any] = {
        name: {"artifacts": [{"name": f"projects/1/{name}", "uri": str(outputs / name), "metadata": {}}]}
        for name in spec["components"]["Report"]["outputDefinitions"]["artifacts"]
    }
    executor_input = {"outputs": {"artifacts": given, "outputFile": str(outputs / "output.json")}}
    container = spec["deploymentSpec"]["executors"]["Report_executor"]["container"]
    assert container["command"] == ["python", "-m", "pipeline.vertex.pipelines.report_task"]
    values = {JOB_NAME: job, "{{$}}": json.dumps(executor_input)}
    return [values.get(word, word) for word in container["args"]]


def run_task(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["report_task", *arguments])
    return report_task.main()


def test_a_failed_run_has_its_report_and_the_webhook_its_message(
    compiled: Path, vertex: Vertex, cloud: Cloud, there: GoogleCloud, receiver: Receiver, tmp_path, monkeypatch
):
    there.vertex.script.failing_tasks = {"Transform": "column <b>x</b> is not there"}
    there.vertex.script.cached_tasks = {"ExampleGen"}
    there.rest.project.secrets[SECRET_NAME] = SECRET
    job = submit(compiled, vertex, cloud, lambda _: None).name
    tasks = {task.task_name: task.state.name for task in ended(job, cloud).job_detail.task_details}
    assert tasks["Report"] == "SUCCEEDED"
    assert tasks["Trainer"] == "NOT_TRIGGERED"

    outputs = tmp_path / "outputs"
    told = ["--webhook-url", receiver.url, "--webhook-secret", SECRET_NAME]
    assert run_task([*arguments_of(compiled, job, outputs), *told], monkeypatch) == 0
    written = json.loads((outputs / "output.json").read_text())["artifacts"]
    numbers = written["metrics"]["artifacts"][0]["metadata"]
    assert numbers["parameter_batch_size"] > 0  # what it was to be trained with
    assert "auc" not in numbers
    page = Path(written["report"]["artifacts"][0]["uri"]).read_text(encoding="utf-8")
    assert "The run failed in Transform; nothing was pushed." in page
    assert "column &lt;b&gt;x&lt;/b&gt; is not there" in page
    assert "cached" in page
    assert job in page
    message = verified(receiver.got[-1], KEY)
    assert len(receiver.got) == 2  # the first was answered by 500
    assert message["data"] == {
        "pipeline": "flights",
        "run": job.rpartition("/")[2],
        "exit_code": 1,
        "blessed": False,
        "pushed_to": None,
        "failed": ["Transform: column <b>x</b> is not there"],
    }


def test_it_never_fails(
    compiled: Path, vertex: Vertex, cloud: Cloud, there: GoogleCloud, tmp_path, monkeypatch, caplog
):
    there.vertex.script.failing_tasks = {"ExampleGen": "no file"}
    job = submit(compiled, vertex, cloud, lambda _: None).name
    ended(job, cloud)
    outputs = tmp_path / "outputs"
    told = ["--webhook-url", "https://hooks.example.com", "--webhook-secret", SECRET_NAME]
    assert run_task([*arguments_of(compiled, job, outputs), *told], monkeypatch) == 0
    assert "There was an error with the webhook." in caplog.text
    assert "'secretmanager.versions.access' denied" in caplog.text
    assert (outputs / "report.html").is_file()
    assert run_task(arguments_of(compiled, f"{job}-gone", tmp_path / "none"), monkeypatch) == 0
    assert "The run has no report." in caplog.text


def test_a_watcher_is_told_where_the_report_is(compiled: Path, vertex, cloud: Cloud, there: GoogleCloud):
    there.vertex.script.outputs = {"Report": {"report": {"uri": "gs://demo-bucket/flights/report.html"}}}
    job = submit(compiled, vertex, cloud, lambda _: None).name
    assert watch(job, cloud, lambda _: None, lambda _: None, seconds=0.0).page == (
        "https://storage.cloud.google.com/demo-bucket/flights/report.html"
    )


def test_the_webhook_of_the_settings_is_compiled_into_the_task_without_its_secret(
    config: PipelineConfig, tmp_path: Path
):
    vertex = Vertex("demo", "us-central1", "demo-bucket", "some.dev/image:1")
    told = replace(vertex, webhook_url="https://hooks.example.com/x", webhook_secret=SECRET_NAME)
    job = json.loads(compile(config, Target.on_vertex(told, "flights", tmp_path / "up"), tmp_path / "out").read_text())
    container = job["pipelineSpec"]["deploymentSpec"]["executors"]["Report_executor"]["container"]
    assert container["args"][-4:] == ["--webhook-url", told.webhook_url, "--webhook-secret", SECRET_NAME]
    with pytest.raises(UserError, match="need each other"):
        replace(vertex, webhook_url="https://hooks.example.com/x")
    with pytest.raises(UserError, match=r"webhook_url must be an address that starts with https://"):
        replace(told, webhook_url="http://hooks.example.com")


def test_the_task_waits_for_all_others_whatever_becomes_of_them(compiled: Path):
    spec = json.loads((compiled / "pipeline_job.json").read_text())["pipelineSpec"]
    tasks = spec["root"]["dag"]["tasks"]
    last = tasks.pop("Report")
    assert set(last["dependentTasks"]) == set(tasks)
    assert last["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
