"""Bills of jobs, from their tasks' own times and the rates that were compiled into them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.costs.estimate import Rates, run_rates
from pipeline.costs.prices import read_prices
from pipeline.settings.config import PipelineConfig
from pipeline.settings.machines import TASKS, Job, Machines
from pipeline.settings.repository import REPOSITORY
from pipeline.settings.target import Target, Vertex
from pipeline.vertex import tasks_of_spec
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines import report_task
from pipeline.vertex.pipelines.compile import compile
from pipeline.vertex.pipelines.submit import submit
from pipeline.vertex.pipelines.watch import bill_of_job, watch, watched
from tests.costs.shipped import only_shipped
from tests.fakes.google_cloud import GoogleCloud


def rates_of(config: PipelineConfig, vertex: Vertex) -> Rates:
    prices = read_prices(REPOSITORY / "configs/prices.toml")
    return run_rates(config, vertex, prices, searching=True, stored_gb=0.0)


def compiled_with_rates(config: PipelineConfig, vertex: Vertex, folder: Path) -> Path:
    target = Target.on_vertex(vertex, config.name, folder / "upload")
    compile(config, target, folder, rates_of(config, vertex))
    return folder


def ended(folder: Path, vertex: Vertex, cloud: Cloud) -> v1.PipelineJob:
    return watch(submit(folder, vertex, cloud, print).name, cloud, lambda _: None, print, seconds=0.0)


def test_a_rate_is_there_for_every_task_of_the_compiled_job_that_has_a_container(compiled: Path) -> None:
    spec = json.loads((compiled / "pipeline_job.json").read_text())["pipelineSpec"]
    executors = spec["deploymentSpec"]["executors"]
    labels = {name: spec["components"][task["componentRef"]["name"]] for name, task in tasks_of_spec(spec).items()}
    with_container = {
        name for name, found in labels.items() if "container" in executors.get(found.get("executorLabel"), {})
    }
    assert with_container == set(TASKS)


@pytest.mark.slow
@only_shipped
def test_a_trainer_that_is_a_job_is_charged_as_the_job_and_as_the_task_that_waits(
    config: PipelineConfig, vertex: Vertex, cloud: Cloud, there: GoogleCloud, tmp_path: Path
) -> None:
    machines = Machines(training=Job("n1-standard-8", "NVIDIA_TESLA_T4", 1, replicas=2))
    vertex = replace(vertex, machines=machines)
    there.vertex.script.cached_tasks = {"StatisticsGen"}
    there.vertex.script.failing_tasks = {"Evaluator": "no"}
    bill = bill_of_job(ended(compiled_with_rates(config, vertex, tmp_path), vertex, cloud))
    assert bill is not None
    parts = {(line.task, line.part): line for line in bill.lines}
    replica = 1.15 * (8 * 0.031611 + 30 * 0.004237 + 0.35 + 100 * 0.17 / 730)
    assert parts["Trainer", "job"].cost == pytest.approx(2 * replica * 90 / 3600)
    assert parts["Trainer", "task"].machine == "e2-standard-2"
    assert ("Evaluator", "task") in parts, "a task that failed had its machine"
    assert ("StatisticsGen", "task") not in parts, "a cached task has none"
    assert ("Pusher", "task") not in parts
    assert bill.total == pytest.approx(0.03 + sum(line.cost for line in bill.lines))


@pytest.mark.slow
def test_the_page_of_the_run_has_the_bill(
    config: PipelineConfig, vertex: Vertex, cloud: Cloud, there: GoogleCloud, tmp_path: Path
) -> None:
    there.vertex.script.failing_tasks = {"Transform": "no"}
    folder = compiled_with_rates(config, vertex, tmp_path)
    job = json.loads((folder / "pipeline_job.json").read_text())
    job["runtimeConfig"]["failurePolicy"] = "PIPELINE_FAILURE_POLICY_FAIL_FAST"
    (folder / "pipeline_job.json").write_text(json.dumps(job))
    report_task.report_here(ended(folder, vertex, cloud), cloud, tmp_path, print)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.search(r"run of the pipeline.*\$0\.03", html, re.DOTALL)
    assert "e2-standard-4" in html


@pytest.mark.slow
def test_a_job_without_rates_has_no_bill(compiled: Path, vertex: Vertex, cloud: Cloud, there: GoogleCloud) -> None:
    assert bill_of_job(ended(compiled, vertex, cloud)) is None
    assert bill_of_job(v1.PipelineJob()) is None


@pytest.mark.slow
def test_a_job_is_kept_with_its_start_and_its_time(
    config: PipelineConfig, vertex: Vertex, cloud: Cloud, there: GoogleCloud, tmp_path: Path
) -> None:
    job = ended(compiled_with_rates(config, vertex, tmp_path), vertex, cloud)
    bill = bill_of_job(job)
    assert bill
    assert watched("projects/p/x", job, bill).started == "2026-01-01T00:00:00"
