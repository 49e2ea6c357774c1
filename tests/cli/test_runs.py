"""Runs read from a metadata store, and cleaned up: real steps over a few rows, run by the local runner."""

import contextlib
import datetime
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.__main__ import main
from pipeline.cli.runs import list_runs
from pipeline.costs.estimate import Bill, Line
from pipeline.runs import store, watched_jobs
from pipeline.runs.record import Record
from pipeline.runs.watched_jobs import WatchedJob

ROOT = Path(__file__).resolve().parents[2]


def runs(output: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pipeline", "runs", *arguments, "--output", str(output)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_jobs_on_vertex_ai_that_were_watched_are_listed_with_their_cost(tmp_path, capsys):
    bill = Bill((Line("Trainer", "task", "m", 3600.0, 1.25),), 0.03, (), "2026-01-01")
    name = "projects/1/locations/r/pipelineJobs/flights-1"
    watched_jobs.keep(tmp_path, WatchedJob(name, "succeeded", "2026-01-01T10:00:00", 4000.0, bill))
    assert main(["runs", "list", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        " on Vertex AI  started (UTC)        ended         took   cost",
        " flights-1     2026-01-01 10:00:00  succeeded  4,000 s  $1.28",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("command", [("list",), ("show",), ("diff",), ("clean", "--keep", "1")])
def test_a_folder_without_runs_is_named_with_the_command_that_makes_one(tmp_path, command):
    told = runs(tmp_path, *command)
    assert told.returncode == 1
    run_it = f"python local_runner.py --output {tmp_path}"
    assert told.stderr == f"pipeline runs: no runs below {tmp_path} yet; start the first one: {run_it}\n"
    assert not any(tmp_path.iterdir())


def test_one_run_is_not_compared_with_itself(tmp_path, monkeypatch, capsys):
    (tmp_path / "metadata.sqlite").touch()
    alone = store.Run("2026-11-21T09-47-15", datetime.datetime.now(), None, {}, {}, {})
    monkeypatch.setattr(store, "opened", contextlib.nullcontext)
    monkeypatch.setattr(store, "runs_of", lambda metadata: [alone])
    for more in ([], ["2026-11-21T09-47-15"]):
        assert main(["runs", "diff", "--output", str(tmp_path), *more]) == 1
        assert capsys.readouterr().err == (
            "pipeline runs: there is one run, 2026-11-21T09-47-15, and a second is needed to compare with: "
            f"python local_runner.py --output {tmp_path}\n"
        )


def test_the_list_of_runs_is_whole_in_a_narrow_terminal():
    started = datetime.datetime(2026, 11, 21, 9, 47, 15)
    metrics = {"auc": 0.7142, "precision": 0.4522, "recall": 0.54}
    record = Record("2026-11-21T09-47-15", metrics=metrics, seconds=127.0, exit_code=3)
    text = io.StringIO()
    run = store.Run("2026-11-21T09-47-15", started, record, {}, {}, {})
    list_runs(Console(file=text, width=40), [run])
    assert text.getvalue().splitlines() == [
        " run                  data  verdict         auc  precision  recall   took  executed",
        " 2026-11-21T09-47-15  -     not blessed  0.7142     0.4522  0.5400  127 s    0 of 0",
    ]


@pytest.mark.parametrize("command", [("list",), ("clean", "--keep", "1", "--yes")])
def test_a_damaged_store_ends_in_one_message_and_is_left_as_it_is(tmp_path, command):
    (tmp_path / "metadata.sqlite").write_bytes(b"no database" * 1000)
    told = runs(tmp_path, *command)
    assert told.returncode == 1
    assert "cannot be read as a metadata store" in told.stderr
    assert "Traceback" not in told.stderr
    assert (tmp_path / "metadata.sqlite").read_bytes() == b"no database" * 1000


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["0", "-1", "all"])
def test_keep_must_be_a_count(tmp_path, keep):
    told = runs(tmp_path, "clean", f"--keep={keep}")
    assert told.returncode == 2
    assert "expected a whole number of 1 or more" in told.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_cleaning_frees_what_it_showed_and_no_cache_hit_remains_on_what_is_gone(tmp_path):
    from tfx.orchestration import metadata
    from tfx.orchestration import pipeline as tfx_pipeline

    from pipeline.components.example_gen import create_example_gen
    from pipeline.runs import store
    from pipeline.runs.run_graph import run_graph
    from pipeline.settings.config import Data, Label, PipelineConfig
    from pipeline.settings.gates import Evaluation, Gate
    from pipeline.settings.target import Target

    output, data = tmp_path / "output", tmp_path / "data"
    output.mkdir()
    data.mkdir()
    target = Target.local(output, "few")
    gates = Evaluation(gates=(Gate("auc", floor=0.5),))
    config = PipelineConfig("few", Data(str(data), files="*.csv"), Label("late"), "models/flights.py", gates)

    def run(name: str, rows: int) -> dict[str, str]:
        (data / "rows.csv").write_text("late,amount\n" + "".join(f"{row % 2},{row}\n" for row in range(rows)))
        os.utime(data / "rows.csv", (rows, rows))  # which TFX looks at beside the size
        examples = create_example_gen(config, target)
        graph = tfx_pipeline.Pipeline(
            pipeline_name="few",
            pipeline_root=target.pipeline_root,
            components=[examples],
            enable_cache=True,
            metadata_connection_config=metadata.sqlite_metadata_connection_config(target.metadata),
            beam_pipeline_args=list(target.beam_args),
        )
        steps = run_graph(graph, name, lambda name: None, lambda step: None)
        return {step: ended.state for step, ended in steps.items()}

    def folders() -> set[Path]:
        return {path for path in (output / "artifacts").glob("*/*/*") if ".system" not in path.parts}

    every = {"ExampleGen": "ran"}
    assert run("first", 100) == every
    of_first = folders()
    assert run("second", 120) == every
    of_both = folders()
    for name in ("first", "second"):
        (output / "runs" / name).mkdir(parents=True)
        (output / "runs" / name / "report.html").write_text("a page")

    shown = runs(output, "clean", "--keep", "1")
    assert shown.returncode == 0, shown.stderr
    assert "nothing is deleted without --yes" in shown.stdout
    assert "ExampleGen/examples" in shown.stdout
    assert folders() == of_both

    done = runs(output, "clean", "--keep", "1", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.replace("freed", "to free; nothing is deleted without --yes") == shown.stdout
    assert folders() == of_both - of_first
    assert not (output / "runs/first").exists()
    assert (output / "runs/second").exists()
    assert not (output / "trash").exists()
    with store.opened(output) as handle:
        for artifact in handle.get_artifacts():
            assert Path(artifact.uri).exists() == (artifact.state == store.Artifact.LIVE), artifact.uri

    again = runs(output, "clean", "--keep", "1")
    assert "0 bytes to free" in again.stdout
    # What was kept is still re-used, what is gone is made anew.
    assert set(run("third", 120).values()) == {"cached"}
    assert run("fourth", 100) == every
    listed = runs(output, "list").stdout
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["first", "second", "third", "fourth"]
    assert "0 of 1" in listed
    # Also of a run that was taken from the cache, whose execution TFX gives no settings.
    assert listed.count("span 0, ") == 4
    assert "the same: settings, code, schema, data" in runs(output, "diff", "second", "third").stdout
    told = runs(output, "diff", "third", "fourth").stdout
    assert "executed:  ExampleGen" in told
    assert "num_files:1,total_bytes" in told
