"""Sections on the search and the training."""

import io
import json
from collections.abc import Mapping, Sequence

import pandas as pd

from pipeline import filesystem
from pipeline.report import charts
from pipeline.report.blocks import Block, Figure, Figures, Table, Text, number, short
from pipeline.report.finished_run import FinishedRun
from pipeline.training.history import DIAGNOSIS_FILE, EPOCHS_FILE, MEMBERS_FILE, STEPS_FILE


def tuning(run: FinishedRun) -> list[Block]:
    """Return a table of all trials, charts of values against score, and the chosen trial."""
    folder = run.folder_of("Tuner", "tuner_results")
    if folder is None:
        if run.config.tuning.mode != "search":
            return [Text(f"There was no search: tuning.mode is {run.config.tuning.mode!r}.")]
        return [Text("There was no search: the run did not come so far, or the module file has no tuner_fn.")]
    # The Tuner writes them from best to worst, whether its objective is to be high or low.
    trials = [trial for trial in json.loads(_read(folder, "tuner_results.json")) if trial.get("score") is not None]
    if not trials:
        return [Text("No trial has a score.")]
    # Not every trial has each value: some hyperparameters depend on others.
    names = list(dict.fromkeys(name for trial in trials for name in trial))
    names = [name for name in names if name not in ("trial_id", "score", "stopped")]
    rows = []
    for place, trial in enumerate(trials):
        found = [trial.get(name, "-") for name in names]
        values = [short(value) if isinstance(value, float) else str(value) for value in found]
        # None of Vizier's, and of a module file's own oracle.
        stopped = trial.get("stopped")
        remarks = [*([] if place else ["chosen"]), *([f"stopped {stopped}"] if stopped else [])]
        rows.append((str(trial["trial_id"]), number(trial["score"]), *values, ", ".join(remarks)))
    table = Table(("Trial", "Score", *names, ""), rows, f"{len(trials)} trials, the best first")
    figures = []
    for name in names:
        points = [(trial[name], trial["score"]) for trial in trials if isinstance(trial.get(name), (int, float))]
        if len(points) < len(trials) or len({x for x, _ in points}) < 2:
            continue
        xs = [x for x, _ in points]
        alt = f"Score of every trial against {name}; the chosen one has a ring"
        svg = charts.scatter(points, 0, alt, name, "score", log=min(xs) > 0 and max(xs) / min(xs) > 3)
        behind = Table((name, "Score"), [(short(x), number(y)) for x, y in points])
        figures.append(Figure(svg, f"{name} against score", behind))
    return [table, Figures(figures)]


def training(run: FinishedRun) -> list[Block]:
    """Return where the time went, and charts of metrics, learning rate, throughput and waiting."""
    folder = run.folder_of("Trainer", "model_run")
    if folder is None:
        return [Text("The run has not come as far as training.")]
    members: list[Block] = []
    if filesystem.exists(f"{folder}/{MEMBERS_FILE}"):
        members = [Text(f"Members, {_read(folder, MEMBERS_FILE).strip()}.")]
    if not filesystem.exists(f"{folder}/{EPOCHS_FILE}"):
        return members or [Text("The run_fn of this module file writes no history.")]
    epochs = _columns(_read(folder, EPOCHS_FILE))
    numbers = [int(epoch) + 1 for epoch in epochs.pop("epoch")]
    names = [name for name in epochs if not name.startswith("val_")]
    figures = []
    for name in (name for name in names if f"val_{name}" in epochs):
        figures.append(_chart(name, "epoch", numbers, {"train": epochs[name], "eval": epochs[f"val_{name}"]}))
    for name in ("examples_per_second", "share_waited_for_input"):
        if name in epochs:
            figures.append(_chart(name, "epoch", numbers, {name: epochs[name]}))
    if filesystem.exists(f"{folder}/{STEPS_FILE}"):
        steps = _columns(_read(folder, STEPS_FILE))
        for name in ("loss", "learning_rate"):
            figures.append(_chart(name, "step", steps["step"], {name: steps[name]}, 20))
    header = ("Epoch", *epochs)
    rows = [(str(n), *(short(values[place]) for values in epochs.values())) for place, n in enumerate(numbers)]
    return [*members, *_time(folder), Figures(figures), Table(header, rows, "Every epoch", True)]


def _time(folder: str) -> list[Block]:
    if not filesystem.exists(f"{folder}/{DIAGNOSIS_FILE}"):
        return []
    diagnosis = json.loads(_read(folder, DIAGNOSIS_FILE))
    seconds: dict[str, float] = diagnosis["seconds"]
    total = sum(seconds.values())
    shares = {part: 100 * value / total for part, value in seconds.items()}
    title = "Where the time of the network's training went"
    svg = charts.bars(shares, title, "% of the time", dict.fromkeys(shares, 0.0))
    rows = [(part, f"{value:.1f} s", f"{shares[part]:.1f} %") for part, value in seconds.items()]
    return [Text(diagnosis["sentence"]), Figures([Figure(svg, title, Table(("Part", "Time", "Share"), rows))])]


def _chart(
    name: str, x: str, xs: Sequence[float], series: Mapping[str, Sequence[float]], most_rows: int | None = None
) -> Figure:
    """Return a chart of lines over epochs or steps, with a table of about ``most_rows`` of its points."""
    title = f"{name} by {x}".replace("_", " ")
    lines = {label.replace("_", " "): (xs, ys) for label, ys in series.items()}
    svg = charts.lines(lines, title, x, name if len(series) > 1 else "")
    places = range(0, len(xs), max(1, len(xs) // (most_rows or len(xs) or 1)))
    rows = [(f"{xs[place]:.0f}", *(short(ys[place]) for ys in series.values())) for place in places]
    return Figure(svg, title, Table((x.capitalize(), *lines), rows))


def _read(folder: str, name: str) -> str:
    return filesystem.read_text(f"{folder}/{name}")


def _columns(text: str) -> dict[str, Sequence[float]]:
    return {str(name): values.tolist() for name, values in pd.read_csv(io.StringIO(text)).astype(float).items()}
