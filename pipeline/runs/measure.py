"""Measure a pipeline on this machine, for ``advise``: its last run, a run on part of its rows, and its training."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import filesystem
from pipeline.costs.measured import Measured, TrainingMeasured
from pipeline.data.sample import Sample
from pipeline.errors import UserError
from pipeline.packaging.fingerprints import library_fingerprint
from pipeline.runs import store
from pipeline.runs.probe_process import MEASURED, OWN_LOOP
from pipeline.runs.sample import run_on_part
from pipeline.runs.store import Run
from pipeline.runs.timings import rows_of, timings
from pipeline.settings.checks import from_json, to_json
from pipeline.settings.config import PipelineConfig
from pipeline.settings.repository import REPOSITORY, runner, shown
from pipeline.settings.target import Target

if TYPE_CHECKING:
    from tfx.orchestration.pipeline import Pipeline

FILE = "advice.json"
# Of a process that measures the training; one that has its own loop may not notice.
MOST_SECONDS = 900
OWN_LOOP_SENTENCE = (
    "the module file trains in a loop of its own, which cannot be measured in parts: the Trainer's whole seconds of "
    "the last run are scaled by rows and epochs, and other machines cannot be told apart"
)
Tell = Callable[[str], None]
Create = Callable[[PipelineConfig, Target, Sample], "Pipeline"]


def measured(config: PipelineConfig, output: Path, create: Create, *, anew: bool, flags: str, tell: Tell) -> Measured:
    """Return the measurement of the last run in an output folder; the kept one while model and code are the same.

    Args:
        config: Of the pipeline.
        output: Folder of its runs on this machine.
        create: Creates the graph of a config for a target on a sample.
        anew: Measure even if there is one.
        flags: Of the command that runs the pipeline.
        tell: Receives what is measured now.

    Raises:
        UserError: there is no run with a model yet, or its files are gone.
    """
    run = _last_run(output, f"{runner()}{flags}")
    key = _key(run, config)
    kept = output / FILE
    if not anew and kept.is_file():
        try:
            before = from_json(Measured, kept.read_text(encoding="utf-8"))
        except ValueError:
            before = None  # of an earlier version
        if before and before.key == key:
            return before
    tell(f"measuring run {run.name}: its steps on part of its rows")
    whole = timings(run)
    part = run_on_part(config.name, run, lambda target, sample: create(config, target, sample), tell)
    steps = {name: (*((part[name],) if name in part else ()), timing) for name, timing in whole.items()}
    training, why_not = _training(run, tell)
    most = _most_rows(run, config)
    found = Measured(run.name, key, rows_of(run), config.training.epochs, steps, training, why_not, most)
    filesystem.write(kept, to_json(found))
    return found


def _last_run(output: Path, command: str) -> Run:
    if not (output / store.FILE).is_file():
        raise UserError(f"there is no run below {shown(output)} to measure yet; start one: {command}")
    with store.opened(output) as metadata:
        runs = store.runs_of(metadata)
    for run in reversed(runs):
        artifact = run.artifact("Trainer", "model_run")
        if artifact and run.artifact("Transform", "transform_graph") and "Verdict" in run.executions:
            if not all(Path(item.uri).exists() for item in (artifact, *_needed(run))):
                raise UserError(f"the files of run {run.name} are gone; run again: {command}")
            return run
    raise UserError(f"no run below {shown(output)} has come to its end yet, so nothing can be measured; run: {command}")


def _needed(run: Run) -> list[Any]:
    names = (("Transform", "transform_graph"), ("Transform", "transformed_examples"), ("StatisticsGen", "statistics"))
    return [artifact for name, output in names if (artifact := run.artifact(name, output))]


def _key(run: Run, config: PipelineConfig) -> str:
    """Return a digest that changes with what was trained, the library, and the settings that decide what is measured.

    A run that took its model from the cache is not measured anew.
    """
    artifact = run.artifact("Trainer", "model_run")
    assert artifact
    parts = (artifact.uri, library_fingerprint(), run.settings("Trainer"), repr(config))
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _most_rows(run: Run, config: PipelineConfig) -> dict[str, int]:
    """Return how many rows the steps that work on a sample look at, by step; in rows of all splits together."""
    from pipeline.components.artifacts import BASELINES  # TFX
    from pipeline.evaluation.baselines import rows_to_fit  # scikit-learn

    artifact, rows = run.artifact("Baselines", "baselines"), rows_of(run)
    share = rows["train"] / sum(rows.values())
    most = {"Tuner": config.tuning.rows} if config.tuning.rows else {}
    if artifact and (file := Path(artifact.uri, BASELINES)).is_file():
        content = json.loads(file.read_text(encoding="utf-8"))
        most["Baselines"] = rows_to_fit(content["columns"], config.data.images is not None)
    return {step: round(of_train / share) for step, of_train in most.items()}


def _training(run: Run, tell: Tell) -> tuple[TrainingMeasured | None, str]:
    """Return the measured training on one core and on all; None and why where that cannot be."""
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    parts = [cores[:1], cores] if len(cores) > 1 else [cores]
    found = []
    for part in parts:
        tell(f"measuring its training on {len(part) or 'all'} {'core' if len(part) == 1 else 'cores'}")
        measured = _probe(run, part)
        if isinstance(measured, str):
            return None, measured
        found.append(measured)
    return replace(found[-1], speeds=tuple(speed for measured in found for speed in measured.speeds)), ""


def _probe(run: Run, cores: list[int]) -> TrainingMeasured | str:
    """Return the training as a process on some cores measures it, or why it cannot."""
    with tempfile.TemporaryDirectory() as scratch:
        to, job = Path(scratch) / "measured.json", Path(scratch) / "job.json"
        job.write_text(json.dumps({**job_of(run), "to": str(to)}), encoding="utf-8")
        try:
            process = subprocess.run(
                [sys.executable, "-m", "pipeline.runs.probe_process", str(job)],
                cwd=scratch,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                timeout=MOST_SECONDS,
                preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
            )
        except subprocess.TimeoutExpired:
            return f"its training could not be measured in {MOST_SECONDS // 60} minutes"
        print(process.stdout, flush=True)  # noqa: T201  # into the log
        if process.returncode == OWN_LOOP:
            return OWN_LOOP_SENTENCE
        if process.returncode != MEASURED:
            last = [line for line in process.stdout.splitlines() if line.strip()][-1:]
            return f"its training could not be measured: {' '.join(last) or 'its process ended without a word'}"
        return from_json(TrainingMeasured, to.read_text(encoding="utf-8"))


def job_of(run: Run) -> dict[str, Any]:
    """Return what the process that measures must know of the Trainer of a run."""
    settings = run.settings("Trainer")
    examples = run.artifact("Transform", "transformed_examples")
    graph = run.artifact("Transform", "transform_graph")
    assert examples is not None
    assert graph is not None  # ``_last_run`` has looked
    arguments: Mapping[str, Any] = {
        "transform_graph_path": graph.uri,
        "transform_output": graph.uri,  # its name in older module files
        "train_files": [f"{examples.uri}/Split-train/*"],
        "eval_files": [f"{examples.uri}/Split-eval/*"],
        "hyperparameters": _hyperparameters(run),
        "custom_config": json.loads(settings["custom_config"]),
        "base_model": None,
    }
    return {"module_path": settings["module_path"], "arguments": arguments}


def _hyperparameters(run: Run) -> Any:
    for node in ("Tuner", "LastSearch"):
        artifact = run.artifact(node, "best_hyperparameters")
        if artifact:
            return json.loads(Path(artifact.uri, "best_hyperparameters.txt").read_text(encoding="utf-8"))
    return None
