"""The exit handler on Vertex AI: it runs whatever became of the others, and tells what did; else who waits tells it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as v1
from tfx import v1 as tfx
from tfx.orchestration.kubeflow.decorators import FinalStatusStr, exit_handler
from tfx.orchestration.kubeflow.v2 import kubeflow_v2_dag_runner

from pipeline.errors import UserError
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Target, Vertex
from pipeline.vertex import JOB_NAME
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines import report_task
from pipeline.vertex.pipelines.compile import compile
from pipeline.vertex.pipelines.submit import submit
from pipeline.vertex.pipelines.watch import page_of, watch
from tests.fakes.google_cloud import GoogleCloud
from tests.fakes.webhook import KEY, SECRET, Receiver, receiving, verified

SECRET_NAME = "projects/demo/secrets/webhook/versions/latest"
ADDRESS_NAME = "projects/demo/secrets/webhook-address/versions/3"
TOLD = ["--webhook-url", ADDRESS_NAME, "--webhook-secret", SECRET_NAME]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(500) as receiver:
        yield receiver


def Report(status):
    """TFX's own way to an exit handler."""
    print(status)


# TFX reads no annotation that is a string, as all are in this module.
Report.__annotations__ = {"status": tfx.dsl.components.Parameter[str]}


def ended(job: str, cloud: Cloud) -> v1.PipelineJob:
    watch(job, cloud, lambda _: None, lambda _: None, seconds=0.0)
    return cloud.client(v1.PipelineServiceClient).get_pipeline_job(name=job)


def arguments_of(folder: Path, job: str, outputs: Path) -> list[str]:
    """Return the arguments that Vertex AI would start the task with."""
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


@pytest.mark.slow
def test_a_failed_run_has_its_report_and_the_webhook_its_message(
    compiled: Path, vertex: Vertex, cloud: Cloud, there: GoogleCloud, receiver: Receiver, tmp_path, monkeypatch
):
    there.vertex.script.failing_tasks = {"Transform": "column <b>x</b> is not there"}
    there.vertex.script.cached_tasks = {"ExampleGen"}
    there.rest.project.secrets |= {SECRET_NAME: SECRET, ADDRESS_NAME: f"{receiver.url}\n"}
    job = submit(compiled, vertex, cloud, lambda _: None).name
    tasks = {task.task_name: task.state.name for task in ended(job, cloud).job_detail.task_details}
    assert tasks["Report"] == "SUCCEEDED"
    assert tasks["tfx-dag"] == "FAILED"
    assert "Trainer" not in tasks

    outputs = tmp_path / "outputs"
    assert run_task([*arguments_of(compiled, job, outputs), *TOLD], monkeypatch) == 0
    written = json.loads((outputs / "output.json").read_text())["artifacts"]
    numbers = written["metrics"]["artifacts"][0]["metadata"]
    assert numbers["parameter_batch_size"] > 0  # the configured batch size
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
        "failed": ["Transform failed; its log and its report say why"],
        "failed_step": "Transform",
    }


@pytest.mark.slow
def test_it_never_fails(
    compiled: Path, vertex: Vertex, cloud: Cloud, there: GoogleCloud, tmp_path, monkeypatch, caplog
):
    there.vertex.script.failing_tasks = {"ExampleGen": "no file"}
    job = submit(compiled, vertex, cloud, lambda _: None).name
    ended(job, cloud)
    outputs = tmp_path / "outputs"
    assert run_task([*arguments_of(compiled, job, outputs), *TOLD], monkeypatch) == 0
    assert "There was an error with the webhook." in caplog.text
    assert "'secretmanager.versions.access' denied" in caplog.text
    assert (outputs / "report.html").is_file()
    assert run_task(arguments_of(compiled, f"{job}-gone", tmp_path / "none"), monkeypatch) == 0
    assert "The run has no report." in caplog.text


@pytest.mark.slow
def test_a_watcher_is_told_where_the_report_is(compiled: Path, vertex, cloud: Cloud, there: GoogleCloud):
    there.vertex.script.outputs = {"Report": {"report": {"uri": "gs://demo-bucket/flights/report.html"}}}
    job = submit(compiled, vertex, cloud, lambda _: None).name
    assert page_of(watch(job, cloud, lambda _: None, lambda _: None, seconds=0.0)) == (
        "https://storage.cloud.google.com/demo-bucket/flights/report.html"
    )


def test_of_the_webhook_neither_address_nor_secret_is_compiled_into_the_task(config: PipelineConfig, tmp_path: Path):
    vertex = Vertex("demo", "us-central1", "demo-bucket", "some.dev/image:1")
    told = replace(vertex, webhook_url=ADDRESS_NAME, webhook_secret=SECRET_NAME)
    job = json.loads(compile(config, Target.on_vertex(told, "flights", tmp_path / "up"), tmp_path / "out").read_text())
    container = job["pipelineSpec"]["deploymentSpec"]["executors"]["Report_executor"]["container"]
    assert container["args"][-4:] == TOLD
    with pytest.raises(UserError, match="need each other"):
        replace(vertex, webhook_url=ADDRESS_NAME)
    with pytest.raises(UserError, match=r"webhook_url must be a version of a secret .* gcloud secrets create NAME"):
        replace(told, webhook_url="https://hooks.example.com/x")


def test_the_job_has_the_form_in_which_tfx_compiles_an_exit_handler(compiled: Path, tmp_path: Path):
    config = kubeflow_v2_dag_runner.KubeflowV2DagRunnerConfig(default_image="some/image:1")
    runner = kubeflow_v2_dag_runner.KubeflowV2DagRunner(config)
    runner.set_exit_handler(exit_handler(Report)(status=FinalStatusStr()))
    node = tfx.components.CsvExampleGen(input_base=str(tmp_path))
    theirs = runner.run(tfx.dsl.Pipeline("some", str(tmp_path), components=[node]), write_out=False)["pipelineSpec"]
    ours = json.loads((compiled / "pipeline_job.json").read_text())["pipelineSpec"]
    del theirs["root"]["dag"]["tasks"]["Report"]["inputs"]  # the status, which ours reads from the job
    assert ours["root"] == theirs["root"]
    assert set(theirs["components"]["tfx-dag"]["dag"]["tasks"]) == {"CsvExampleGen"}
    assert {"ExampleGen", "Verdict"} <= set(ours["components"]["tfx-dag"]["dag"]["tasks"])


def with_policy(folder: Path, policy: str) -> Path:
    """Set the failure policy and a webhook in the compiled job."""
    path = folder / "pipeline_job.json"
    job = json.loads(path.read_text())
    job["runtimeConfig"]["failurePolicy"] = f"PIPELINE_FAILURE_POLICY_FAIL_{policy}"
    words = job["pipelineSpec"]["deploymentSpec"]["executors"]["Report_executor"]["container"]["args"]
    words += TOLD
    path.write_text(json.dumps(job))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancelled", "fast"])
def test_a_run_whose_exit_handler_never_starts_is_reported_by_who_waits_for_it(
    how: str, compiled: Path, vertex: Vertex, cloud: Cloud, there: GoogleCloud, receiver: Receiver, tmp_path: Path
):
    there.rest.project.secrets |= {SECRET_NAME: SECRET, ADDRESS_NAME: receiver.url}
    with_policy(compiled, "FAST" if how == "fast" else "SLOW")
    if how == "fast":
        there.vertex.script.failing_tasks = {"Transform": "column x is not there"}
    job = submit(compiled, vertex, cloud, lambda _: None).name
    client = cloud.client(v1.PipelineServiceClient)
    for _ in range(5):
        client.get_pipeline_job(name=job)
    if how == "cancelled":
        client.cancel_pipeline_job(name=job)
    over = ended(job, cloud)
    assert "Report" not in {task.task_name for task in over.job_detail.task_details}

    notes: list[str] = []
    report_task.report_here(over, cloud, tmp_path, notes.append)
    assert notes == [f"report {tmp_path}/report.html", "webhook notified"]
    reason = "Transform: column x is not there" if how == "fast" else "SchemaGen: cancelled"
    step = reason.partition(":")[0]
    assert verified(receiver.got[-1], KEY)["data"]["failed"] == [f"{step} failed; its log and its report say why"]
    assert receiver.got[-1][0]["webhook-id"] == f"flights_{job.rpartition('/')[2]}"
    assert reason.split(": ")[1] in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_that_has_its_report_is_not_reported_twice(
    compiled: Path, vertex: Vertex, cloud: Cloud, there: GoogleCloud, tmp_path: Path
):
    job = submit(with_policy(compiled, "SLOW"), vertex, cloud, lambda _: None).name
    report_task.report_here(ended(job, cloud), cloud, tmp_path, pytest.fail)


def test_what_cannot_be_reported_is_said(
    compiled: Path, vertex: Vertex, cloud: Cloud, there: GoogleCloud, tmp_path: Path
):
    there.vertex.script.failing_tasks = {"ExampleGen": "no file"}
    job = submit(with_policy(compiled, "FAST"), vertex, cloud, lambda _: None).name
    notes: list[str] = []
    report_task.report_here(ended(job, cloud), cloud, tmp_path, notes.append)
    assert notes[0] == f"report {tmp_path}/report.html"
    assert notes[1].startswith("the webhook was not notified: ")
    assert "'secretmanager.versions.access' denied" in notes[1]
