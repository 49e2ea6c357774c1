"""The estimate before a run on Vertex AI, its budget, and the bill after it, as the terminal shows them."""

import argparse
import datetime
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.cli.printing import Terminal
from pipeline.cli.terminal import Screen
from pipeline.cli.vertex import estimates
from pipeline.cli.vertex.commands import Session
from pipeline.costs.estimate import Bill, Line
from pipeline.runs import watched_jobs
from pipeline.runs.watched_jobs import WatchedJob
from pipeline.settings.config import PipelineConfig, Tuning, load_config
from pipeline.settings.machines import TASKS, Job, Machines
from pipeline.settings.target import Dataflow, Vertex
from tests.costs.shipped import only_shipped
from tests.e2e.run import Run

ROOT = Path(__file__).resolve().parents[3]
IMAGE = "us-central1-docker.pkg.dev/demo/pipelines/pipeline:1"
pytestmark = only_shipped
Look = Callable[..., tuple[bool, str]]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Return a function that shows the estimate of a run; it returns whether that keeps to its budget, and the text."""

    def show(
        output: Path = tmp_path,
        max_cost: float | None = None,
        config: PipelineConfig | None = None,
        pipeline: str = "flights",
        **settings,
    ) -> tuple[bool, str]:
        flights = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
        where = Vertex("demo", settings.pop("region", "us-central1"), "demo-bucket", IMAGE, **settings)
        text = io.StringIO()
        screen = Screen(Terminal(file=text, width=200), tmp_path / "log")
        arguments = argparse.Namespace(max_cost=max_cost, config=None, pipeline=pipeline, output=None)
        session = Session(arguments, config or flights, where, output, output, "now", screen)
        return estimates.show(session), re.sub(" +", " ", text.getvalue())

    return show


@pytest.fixture
def watched(tmp_path: Path) -> None:
    """A job of the same tasks that was watched to its end: half an hour each, on the machines of the default."""
    lines = tuple(Line(task, "task", "e2-standard-4", 1800.0, 0.09) for task in TASKS)
    bill = Bill(lines, 0.03, (), "2026-01-01")
    job = WatchedJob("projects/1/locations/r/pipelineJobs/flights-1", "succeeded", "2026-01-01T00:00:00", 1.0, bill)
    watched_jobs.keep(tmp_path, job)
    failed = replace(job, name="flights-2", state="failed", started="2026-01-02T00:00:00", bill=bill_of_one())
    watched_jobs.keep(tmp_path, failed)


def bill_of_one() -> Bill:
    return Bill((Line("Transform", "task", "e2-standard-4", 1.0, 0.0),), 0.03, (), "2026-01-01")


def test_without_an_earlier_run_there_are_rates_and_the_command_that_makes_one(look: Look) -> None:
    within, text = look()
    assert within
    assert "costs an hour; no earlier run shows how long it takes" in text
    assert "ExampleGen, StatisticsGen, and 12 more e2-standard-4 $0.18" in text
    assert "for a sum, run it once on this machine: python local_runner.py" in text
    assert "python local_runner.py --pipeline digits\n" in look(pipeline="digits")[1]
    assert text.endswith("discounts, taxes and other currencies are left out. Prices of 2026-09-08.\n")


@pytest.mark.usefixtures("watched")
def test_the_estimate_names_its_source_its_parts_its_sum_and_its_interval(look: Look) -> None:
    within, text = look()
    assert within
    assert "costs, estimated from the job flights-1 on Vertex AI, if nothing is cached" in text
    # 14 tasks of half an hour at 0.181 an hour; between 0.8 and 1.25 times that.
    assert "ExampleGen, StatisticsGen, and 12 more e2-standard-4 7.00 $1.27 $1.01 to $1.58" in text
    assert "run of the pipeline $0.03" in text
    assert "together $1.30 $1.04 to $1.61" in text


@pytest.mark.usefixtures("watched")
def test_a_run_above_the_limit_is_refused_with_the_sum_and_what_to_change(look: Look) -> None:
    machines = Machines(training=Job("n1-standard-8", "NVIDIA_TESLA_V100", 2))
    within, text = look(max_cost=2.5, machines=machines)
    assert not within
    assert "budget wrong the run is estimated at $4.34, between " in text
    assert "that is above the limit of $2.50 (--max-cost, or max_cost in the table of machines)" in text
    assert "-> Trainer, its job on 1 x n1-standard-8 with 2 NVIDIA_TESLA_V100 has $3.08 of it: take a smaller" in text


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize(("limit", "state"), [(2.0, "ok"), (1.5, "unsure")])
def test_a_run_below_the_limit_goes_on_and_one_that_may_pass_it_is_a_warning(look: Look, limit, state) -> None:
    within, text = look(max_cost=limit)
    assert within
    assert f"budget {state} the run is estimated at $1.30" in text


@pytest.mark.usefixtures("watched")
def test_near_the_limit_estimate_and_limit_have_all_their_digits(look: Look) -> None:
    within, text = look(max_cost=1.2905)
    assert re.search(r"the run is estimated at \$1\.29\d\d, between .* the limit of \$1\.2905 \(", text), text
    within, text = look(max_cost=0.001)
    assert not within
    assert "above the limit of $0.001 (" in text


@pytest.mark.usefixtures("watched")
def test_the_flag_goes_before_the_budget_in_the_table_of_machines(look: Look) -> None:
    assert not look(machines=Machines(max_cost=1.0))[0]
    assert look(machines=Machines(max_cost=1.0), max_cost=2.0)[0]


def test_where_nothing_can_be_estimated_a_limit_refuses_with_the_reason(look: Look) -> None:
    within, text = look(max_cost=100)
    assert not within
    assert "what the run costs is not known, so the limit of $100.00" in text
    assert "cannot be kept: no earlier run shows how long it takes" in text


@pytest.mark.usefixtures("watched")
def test_a_part_without_a_price_is_named_and_refused_under_a_limit(look: Look) -> None:
    dataflow = Dataflow("demo", "europe-west4", "gs://demo-bucket/temp", IMAGE)
    within, text = look(region="europe-west4", dataflow=dataflow)
    assert within
    assert "not in the sum: Dataflow of ExampleGen, Dataflow of" in text
    within, text = look(region="europe-west4", dataflow=dataflow, max_cost=100)
    assert not within
    assert "has no price on demand of dataflow.vcpu in europe-west4" in text
    # There is a run that shows how long each task takes.
    assert "-> give what lacks a price another machine or region, or lift the limit" in text


@pytest.mark.usefixtures("watched")
def test_a_fee_that_has_no_price_is_not_zero(look: Look, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "local_runner.py").touch()
    table = (ROOT / "configs/prices.toml").read_text(encoding="utf-8")
    assert "[prices.pipeline_run]" in table
    (tmp_path / "configs/prices.toml").write_text(table.replace("[prices.pipeline_run]", "[prices.pipeline_walk]"))
    monkeypatch.chdir(tmp_path)
    _, text = look()
    assert " run of the pipeline not known" in text
    assert "not in the sum: run of the pipeline: configs/prices.toml has no price on demand of pipeline_run" in text


def test_a_pipeline_without_a_search_has_no_tuner(look: Look) -> None:
    config = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    _, text = look(config=replace(config, tuning=Tuning(mode="off")))
    assert "ExampleGen, StatisticsGen, and 11 more" in text


def test_old_prices_are_a_warning_and_damaged_ones_a_finding(look: Look, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "local_runner.py").touch()
    table = (ROOT / "configs/prices.toml").read_text(encoding="utf-8")
    day = datetime.date.today() - datetime.timedelta(days=100)
    (tmp_path / "configs/prices.toml").write_text(table.replace("date = 2026-09-08", f"date = {day}"))
    monkeypatch.chdir(tmp_path)
    within, text = look()
    assert within
    assert (
        "the prices in configs/prices.toml are 100 days old; correct them from cloud.google.com/vertex-ai/pricing"
        in text
    )
    (tmp_path / "configs/prices.toml").write_text("date")
    within, text = look()
    assert within
    assert "costs unsure configs/prices.toml is no TOML" in text
    assert not look(max_cost=5)[0]


def test_a_damaged_store_of_earlier_runs_is_said_and_the_prices_are_shown(look: Look, tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").write_text("not a database")
    within, text = look()
    assert within
    assert "earlier runs unsure" in text
    assert "cannot be read as a metadata store" in text
    assert "costs an hour; no earlier run shows how long it takes" in text


def test_a_bill_has_a_line_for_each_part_the_sum_and_what_is_left_out(look: Look, tmp_path: Path) -> None:
    line = Line("Trainer", "job", "2 x large", 5400.0, 3.5)
    text = io.StringIO()
    screen = Screen(Terminal(file=text, width=200), tmp_path / "log")
    estimates.show_bill(Bill((line,), 0.03, ("the workers of Dataflow are not in it",), "2026-01-01"), screen)
    shown = re.sub(" +", " ", text.getvalue())
    assert " Trainer, its job 2 x large 1.50 $3.50\n run of the pipeline $0.03\n together $3.53" in shown
    assert "not in the sum: the workers of Dataflow are not in it\nAbout, at list prices in US dollars;" in shown


@pytest.mark.slow
def test_the_times_come_from_the_last_run_on_this_machine_also_when_it_was_cached(
    look: Look, clone: Path, first: Run
) -> None:
    assert first.code in (0, 3), first
    within, text = look(clone / "output/flights")
    assert within
    assert "costs, estimated from the run 2" in text
    assert "on this machine, if nothing is cached" in text
    assert "not in the sum" not in text
    (low, high) = map(float, re.findall(r"together \$[\d.]+ \$([\d.]+) to \$([\d.]+)", text)[0])
    assert 0.03 < low < high < 2
