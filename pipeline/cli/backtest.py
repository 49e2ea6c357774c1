"""Backtest on this machine: train on the spans up to one, test on the next span, window by window.

Each window has its own metadata store, so that a second backtest cannot find the model of a later window. The windows
share a folder of artifacts, because they share spans, and the results of a span are kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline import filesystem
from pipeline.cli.command_line import FAILED, SUCCEEDED
from pipeline.cli.printing import say
from pipeline.cli.scratch import scratch_folder
from pipeline.cli.terminal import Screen, redirect_output
from pipeline.data.location import check_data, find_files
from pipeline.errors import UserError
from pipeline.settings.config import Data, PipelineConfig
from pipeline.settings.gates import NO_BASELINE
from pipeline.settings.repository import shown
from pipeline.settings.target import Target
from pipeline.settings.tasks import shown_metrics

FOLDER, FILE = "backtest", "backtest.json"
# The last step of a window: nothing is pushed.
LAST = "Evaluator"


def backtest(config: PipelineConfig, target: Target, output: Path, count: int, verbose: bool) -> int:
    """Run the windows, the oldest first; show and write the metrics of each; return the exit code."""
    windows = windows_of(config.data, count)
    configs = [config_of_window(config, spans) for spans in windows]
    for note in check_data(replace(config, data=replace(config.data, until_span=None, last_spans=None))):
        say(f"note: {note}", error=True)
    name = datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    with scratch_folder(), redirect_output(output / "logs" / f"{name}.log", verbose) as screen:
        screen.start(config, f"backtest {name}")
        from pipeline.runs import engine
        from pipeline.runs.step import StepFailed

        engine.check(target)
        measured: list[dict[str, Any]] = []
        model = NO_BASELINE
        for number, (spans, of_window) in enumerate(zip(windows, configs, strict=True), 1):
            screen.note(f"window {number} of {count}: trains on {spans[0]} to {spans[-2]}, tests on {spans[-1]}")
            metadata = str(output / f"span-{spans[-1]}.sqlite")
            try:
                model, metrics = _run(of_window, replace(target, metadata=metadata), model, screen)
            except StepFailed as error:
                screen.failure(error.step, error.seconds, error.__cause__, config)
                return FAILED
            measured.append({"learns_from": [spans[0], spans[-2]], "tested_on": spans[-1], **metrics})
        filesystem.write(output / FILE, json.dumps({"pipeline": config.name, "windows": measured}, indent=2) + "\n")
        _show(measured, config, screen)
        screen.note(f"written to {shown(output / FILE)}; nothing was pushed")
    return SUCCEEDED


def windows_of(data: Data, count: int) -> list[list[int]]:
    """Return the spans of each window, the test span last; the last window has the newest span."""
    if data.query_source or data.images or not data.has_spans:
        raise UserError(
            'a backtest needs tables in spans, with "{SPAN}" in data.files: for example, write the rows of each month '
            'to a separate folder and set files="month-{SPAN}/*" (docs/data.md)'
        )
    spans = sorted(set(find_files(replace(data, last_spans=None, test_newest=False)).spans.values()))
    if len(spans) <= count:
        raise UserError(
            f"{count} windows need at least {count + 1} spans; found {len(spans)} in {shown(data.path)} "
            f"({', '.join(map(str, spans))}). Reduce the number of windows"
        )
    most = data.last_spans or len(spans)
    # With data.test_newest, the span to test on is one of data.last_spans.
    most -= data.test_newest and data.last_spans is not None
    return [spans[max(0, place - most) : place + 1] for place in range(len(spans) - count, len(spans))]


def config_of_window(config: PipelineConfig, spans: Sequence[int]) -> PipelineConfig:
    """Return a config that trains on all spans but the last one, and tests on the last one."""
    if config.tuning.mode == "reuse":
        raise UserError(
            "a backtest cannot reuse a search, because the search has used the test spans; set --tuning search or off"
        )
    return replace(
        config,
        data=replace(config.data, until_span=spans[-1], last_spans=len(spans), test_newest=True, prepare=None),
        training=replace(config.training, warm_start=False),  # the last blessed model has used the test spans
        # A backtest measures the effect of differences between spans, so such a difference must not stop it.
        data_checks=replace(config.data_checks, severity={"skew": "warn", **config.data_checks.severity}),
    )


def _run(config: PipelineConfig, target: Target, earlier_model: str, screen: Screen) -> tuple[str, dict[str, Any]]:
    """Run a window's graph; return the model's folder, and metrics of it, the earlier model and the baselines."""
    from pipeline.components.artifacts import read_baselines, read_model_report
    from pipeline.graph import create_pipeline
    from pipeline.quality.tfma_config import BASELINE, read_metrics
    from pipeline.runs.run_graph import run_graph

    compared = replace(config, evaluation=replace(config.evaluation, baseline=earlier_model, broken_baseline="warn"))
    pipeline = create_pipeline(compared, target)
    steps = run_graph(pipeline, datetime.now().isoformat(), screen.step_starts, screen.step_ends, last=LAST)
    for reason in read_model_report(steps["ModelCheck"].outputs["blessing"][0].uri)["problems"]:
        screen.warning(f"model check: {reason}")
    evaluation = steps[LAST].outputs["evaluation"][0].uri
    return steps["Trainer"].outputs["model"][0].uri, {
        "metrics": read_metrics(evaluation)["overall"],
        "earlier_model": read_metrics(evaluation, BASELINE)["overall"],
        "baselines": read_baselines(steps["Baselines"].outputs["baselines"][0].uri),
    }


def _show(windows: Sequence[dict[str, Any]], config: PipelineConfig, screen: Screen) -> None:
    """Show the first metric of the label's task by window, and the gain of the model over each other model."""
    import pandas as pd

    name, metric = next(iter(shown_metrics(config.label.task).items()))
    rows = []
    for window in windows:
        models = {metric.title: window["metrics"], "previous model": window["earlier_model"], **window["baselines"]}
        first, last = window["learns_from"]
        row = {"trained on": f"{first} to {last}", "tested on": window["tested_on"]}
        row |= {model: metrics.get(name, math.nan) for model, metrics in models.items()}
        rows.append({**row, "examples": int(window["metrics"].get("example_count", 0))})
    table = pd.DataFrame(rows)
    screen.note("\n" + table.to_string(index=False, float_format="{:.4f}".format, na_rep="-"))
    for other in table.columns[3:-1]:
        gains = (metric.direction * (table[metric.title] - table[other])).dropna()
        if len(gains):
            screen.note(
                f"better than {other} in {(gains > 0).sum()} of {len(gains)} windows, on average by "
                f"{gains.mean():+.4f} ({gains.min():+.4f} to {gains.max():+.4f})"
            )
