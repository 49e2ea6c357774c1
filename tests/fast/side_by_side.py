"""Run graphs with parallel steps: `python -m tests.fast.side_by_side FOLDER`; print each outcome as JSON.

Runs in a separate process, because TensorFlow has already computed in the test process.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.orchestration.metadata import sqlite_metadata_connection_config
from tfx.orchestration.pipeline import Pipeline
from tfx.types.standard_artifacts import Model

from pipeline.errors import UserError
from pipeline.fast.side_by_side import side_by_side
from pipeline.processes import Processes, processes
from pipeline.runs.run_graph import one_after_the_other, run_graph
from pipeline.runs.step import Step, StepFailed


@component
def First(model: OutputArtifact[Model], how: Parameter[str] = "well"):
    """Start the graph."""
    act(model.uri, how)


@component
def Next(before: InputArtifact[Model], model: OutputArtifact[Model], how: Parameter[str] = "well"):
    """Continue from another step."""
    act(model.uri, how)


def act(uri: str, how: str) -> None:
    """End as ``how`` requires, "well" or "fails", "while" another step runs; write a file on success."""
    name, _, other = how.partition(" while ")
    step = Path(uri).parents[1]
    (step / "began").touch()
    while other and not (step.parent / other / "began").exists():
        time.sleep(2)
    if name == "fails":
        raise UserError("there is no more")
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    Path(uri, "made").write_text(f"{os.getpid()} {os.nice(0)}")


def graph(folder: Path, **how: str) -> Pipeline:
    """Build a pipeline: Check before DataGate, DataGate before Baselines and Transform, Transform before Trainer."""
    first = First(how=how.get("First", "well")).with_id("First")
    check = Next(before=first.outputs["model"], how=how.get("Check", "well")).with_id("Check")
    gate = Next(before=check.outputs["model"], how=how.get("DataGate", "well")).with_id("DataGate")
    baselines = Next(before=first.outputs["model"], how=how.get("Baselines", "well")).with_id("Baselines")
    baselines.add_upstream_node(gate)
    transform = Next(before=first.outputs["model"], how=how.get("Transform", "well")).with_id("Transform")
    transform.add_upstream_node(gate)
    trainer = Next(before=transform.outputs["model"], how=how.get("Trainer", "well")).with_id("Trainer")
    return Pipeline(
        pipeline_name="graph",
        pipeline_root=str(folder),
        components=[first, check, gate, baselines, transform, trainer],
        enable_cache=True,
        metadata_connection_config=sqlite_metadata_connection_config(str(folder / "metadata.sqlite")),
    )


def outcome(folder: Path, run: str, made: Processes | None, **how: str) -> dict:
    """Run a graph; return the steps that began and ended, and the failure."""
    folder.mkdir(exist_ok=True)
    started: list[str] = []
    ended: list[str] = []
    cpu: dict[str, tuple[float | None, float]] = {}
    failed, others = "", []

    def on_end(step: Step) -> None:
        ended.append(f"{step.name} {step.state}")
        cpu[step.name] = step.cpu_seconds, step.seconds

    pipeline = graph(folder, **how)
    try:
        schedule = side_by_side(made) if made else one_after_the_other
        run_graph(pipeline, run, started.append, on_end, schedule=schedule)
    except StepFailed as error:
        failed, others = f"{error.step}: {error.__cause__}", [f"{one.step}: {one.__cause__}" for one in error.others]
    made_by = {path.relative_to(folder).parts[0]: path.read_text().split() for path in folder.glob("*/model/*/made")}
    return {
        "began": started,
        "ended": ended,
        "failed": failed,
        "others": others,
        "files": sorted(made_by),
        "pids": len({pid for pid, _ in made_by.values()} - {str(os.getpid())}),
        "niceness": {name: int(niceness) for name, (_, niceness) in made_by.items()},
        "cpu": cpu,
    }


def main(folder: Path) -> None:
    """Run the graph in each way."""
    ways = {
        "well": {"Check": "well while Transform", "Transform": "well while Baselines"},
        "again": {"Check": "well while Transform", "Transform": "well while Baselines"},
        # Only the gate can end Transform, because Trainer runs after it.
        "bad data": {"Check": "well while Transform", "DataGate": "fails", "Transform": "well while Trainer"},
        "bad data that breaks": {"Check": "well while Transform", "DataGate": "fails", "Transform": "fails"},
        "a bad step": {"Check": "well while Transform", "Transform": "fails"},
        "a lost process": {"Check": "dies"},
    }
    found = {}
    with processes() as made:
        assert made
        for way, how in ways.items():
            found[way] = outcome(folder / ("well" if way == "again" else way), way, made, **how)
        found["alone"] = outcome(folder / "alone", "alone", None, DataGate="fails")
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
