"""Backtest on this machine: learn from the spans up to one, test on the next, window by window.

Each window has a metadata store of its own, so that no model of a later window is found by an earlier one when the
backtest is run again. The artifacts lie together: windows share spans, and what was made of a span is kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from pipeline import filesystem
from pipeline.cli import interruption
from pipeline.cli.command_line import FAILED, SUCCEEDED
from pipeline.cli.scratch import scratch_folder
from pipeline.cli.terminal import Screen, redirect_output
from pipeline.data.location import check_data, find_files
from pipeline.errors import UserError
from pipeline.settings.config import Data, PipelineConfig
from pipeline.settings.gates import NO_BASELINE
from pipeline.settings.repository import shown
from pipeline.settings.target import Target
from pipeline.settings.tasks import shown_metrics

if TYPE_CHECKING:
    from pipeline.runs.step import Step

FOLDER, FILE = "backtest", "backtest.json"
# The last step of a window: nothing is pushed.
LAST = "Evaluator"


@dataclass(frozen=True)
class Window:
    """The metrics of a window on the rows of its test span.

    Attributes:
        learns_from: The oldest and the newest span that it learns from.
        tested_on: The span after them.
        metrics: Of its model.
        earlier_model: Of the model of the window before, which has not seen the newest span; none of the first window.
        baselines: Of simple models that learn from the same rows, by model.
    """

    learns_from: tuple[int, int]
    tested_on: int
    metrics: dict[str, float]
    earlier_model: dict[str, float]
    baselines: dict[str, dict[str, float]]


def backtest(
    config: PipelineConfig, target: Target, output: Path, count: int, command: Sequence[str], verbose: bool
) -> int:
    """Run a number of windows, the newest span last; show and write the metrics of each; return the exit code.

    Args:
        config: Of the pipeline whose model is tested.
        target: Where each window runs, but for its metadata store.
        output: Folder of the backtests.
        count: Number of windows.
        command: As typed.
        verbose: Whether the terminal shows the whole log.

    Raises:
        UserError: there are too few spans, or a window cannot start.
    """
    windows = windows_of(config.data, count)
    configs = [config_of_window(config, spans) for spans in windows]
    check_data(replace(config, data=replace(config.data, until_span=None, last_spans=None)))
    name = datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    with scratch_folder(), redirect_output(output / "logs" / f"{name}.log", verbose) as screen:
        screen.start(config, f"backtest {name}")
        from pipeline.runs import engine
        from pipeline.runs.step import StepFailed

        engine.check(target)
        measured: list[Window] = []
        model = NO_BASELINE
        for number, (spans, of_window) in enumerate(zip(windows, configs, strict=True), 1):
            screen.note(f"window {number} of {count}: learns from {_text(spans[0], spans[-2])}, tested on {spans[-1]}")
            try:
                metadata = str(output / f"span-{spans[-1]}.sqlite")
                steps = _run(of_window, replace(target, metadata=metadata), model, screen)
            except StepFailed as error:
                screen.failure(error.step, error.seconds, error.__cause__, config)
                return FAILED
            measured.append(_measured(steps, spans))
            model = steps["Trainer"].outputs["model"][0].uri
        file = output / FILE
        content = {"pipeline": config.name, "command": list(command), "windows": [asdict(one) for one in measured]}
        filesystem.write(file, json.dumps(content, indent=2) + "\n")
        _show(measured, config, screen)
        screen.note(f"written to {shown(file)}; nothing was pushed")
    return SUCCEEDED


def windows_of(data: Data, count: int) -> list[list[int]]:
    """Return the spans of each window, the one to test on last; the last window has the newest span.

    Raises:
        UserError: the data have no spans, or fewer than the windows need.
    """
    if data.query_source or not data.has_spans:
        raise UserError(
            'a backtest needs spans, and data.files has no "{SPAN}": write the rows of each month, say, to a folder of '
            'its own, and set files="month-{SPAN}/*" (docs/data.md)'
        )
    if data.images is not None:
        raise UserError("a backtest needs rows of tables, and data.images says that rows are images")
    everything = replace(data, last_spans=None, test_newest=False)
    spans = sorted(set(find_files(everything).spans.values()))
    if len(spans) < count + 1:
        numbers = ", ".join(map(str, spans))
        raise UserError(
            f"{count} windows need {count + 1} spans or more, one to learn from and the next to test on; found "
            f"{len(spans)} in {shown(data.path)} ({numbers}). Take fewer windows"
        )
    most = data.last_spans or len(spans)
    # Of data that is tested on its newest span already, that span is one of the last ones.
    most -= data.test_newest and data.last_spans is not None
    return [spans[max(0, place - most) : place + 1] for place in range(len(spans) - count, len(spans))]


def config_of_window(config: PipelineConfig, spans: Sequence[int]) -> PipelineConfig:
    """Return a config that learns from all spans but the last one, and tests on that.

    Raises:
        UserError: it would reuse a search that has seen the spans to test on.
    """
    if config.tuning.mode == "reuse":
        raise UserError(
            "a backtest reuses no search, which has seen the spans that it tests on; give --tuning search or off"
        )
    return replace(
        config,
        data=replace(config.data, until_span=spans[-1], last_spans=len(spans), test_newest=True, prepare=None),
        # The last blessed model has seen the spans to test on.
        training=replace(config.training, warm_start=False),
        # Months differ; how well a model stands that is the question, and no reason to stop.
        data_checks=replace(config.data_checks, severity={"skew": "warn", **config.data_checks.severity}),
    )


def _run(config: PipelineConfig, target: Target, model: str, screen: Screen) -> Mapping[str, Step]:
    """Run the graph of a window up to the Evaluator, which compares with an earlier model."""
    from pipeline.graph import create_pipeline
    from pipeline.runs.results import warnings_of
    from pipeline.runs.run_graph import run_graph

    def on_end(step: Step) -> None:
        screen.step_ends(step)
        interruption.check()
        for sentence in warnings_of(step):
            screen.warning(sentence)

    compared = replace(config, evaluation=replace(config.evaluation, baseline=model, broken_baseline="warn"))
    pipeline = create_pipeline(compared, target)
    return run_graph(pipeline, datetime.now().isoformat(), screen.step_starts, on_end, last=LAST)


def _measured(steps: Mapping[str, Step], spans: Sequence[int]) -> Window:
    from pipeline.components.artifacts import read_baselines
    from pipeline.evaluation.tfma_config import BASELINE, read_metrics

    evaluation = steps[LAST].outputs["evaluation"][0].uri
    return Window(
        (spans[0], spans[-2]),
        spans[-1],
        read_metrics(evaluation)["overall"],
        read_metrics(evaluation, BASELINE)["overall"],
        read_baselines(steps["Baselines"].outputs["baselines"][0].uri),
    )


def _show(windows: Sequence[Window], config: PipelineConfig, screen: Screen) -> None:
    """Show the first metric of the label's task, by window, and how often the model was better than each other one."""
    name, metric = next(iter(shown_metrics(config.label.task).items()))
    compared = [{"the model before": one.earlier_model, **dict(reversed(one.baselines.items()))} for one in windows]
    others = list(dict.fromkeys(model for of_window in compared for model in of_window))
    rows = []
    for one, of_window in zip(windows, compared, strict=True):
        values = [one.metrics, *(of_window.get(other, {}) for other in others)]
        cells = [_number(found.get(name, math.nan)) for found in values]
        rows.append((_text(*one.learns_from), str(one.tested_on), *cells, f"{one.metrics['example_count']:,.0f}"))
    screen.note("")
    header = ("learns from", "tested on", metric.title, *others, "examples")
    screen.table(header, rows)
    for other in others:
        differences = [
            one.metrics.get(name, math.nan) - of_window.get(other, {}).get(name, math.nan)
            for one, of_window in zip(windows, compared, strict=True)
        ]
        gains = [metric.direction * difference for difference in differences if math.isfinite(difference)]
        if gains:
            better = sum(gain > 0 for gain in gains)
            screen.note(
                f"better than {other} in {better} of {len(gains)} windows, by {mean(gains):+.4f} on average "
                f"({min(gains):+.4f} to {max(gains):+.4f})"
            )


def _text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"
