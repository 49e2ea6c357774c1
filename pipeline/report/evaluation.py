"""Show the model on the test split: metrics against the baseline and by slice, important features, largest errors."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.components.artifacts import read_model_report
from pipeline.quality import intervals
from pipeline.report import charts, thumbnails
from pipeline.report.blocks import Block, Figure, Figures, Table, Text, between, number, short
from pipeline.report.finished_run import FinishedRun
from pipeline.settings.tasks import shown_metrics

CONFIDENCE = 0.95
MOST_SLICES, MOST_FEATURES, MOST_COLUMNS, MOST_CONFUSED = 40, 30, 12, 30


def evaluation(run: FinishedRun, scores: Mapping[str, Any]) -> list[Block]:
    """Return metrics, curves and slices."""
    if run.results is None:
        return [Text("The run has not come as far as judging a model.")]
    overall = run.results.metrics["overall"]
    if not overall:
        return [Text("The model was not evaluated; the verdict says why.")]
    rows = []
    task = run.config.label.task
    for name in shown_metrics(task):
        value, other = overall.get(name, math.nan), run.baseline.get(name, math.nan)
        within = between(intervals.interval(name, overall, CONFIDENCE))
        change = f"{value - other:+.4f}" if math.isfinite(value - other) else "-"
        simple = [number(found.get(name, math.nan)) for found in run.results.baselines.values()]
        rows.append((name, number(value), within, *simple, number(other), change))
    simple_models = map(str.capitalize, run.results.baselines)
    header = ("Metric", "New model", "95 % interval", *simple_models, "Earlier model", "Change")
    threshold = "" if run.results.threshold is None else f", threshold {run.results.threshold:.3g}"
    note = f"Test split, {overall['example_count']:,.0f} rows{threshold}"
    blocks: list[Block] = [Table(header, rows, note)]
    if not run.baseline:
        blocks.append(Text("There is no earlier model to compare with.", "quiet"))
    blocks += _curves(run, scores)
    blocks += _slices(run)
    return blocks


def importance(run: FinishedRun, scores: Mapping[str, Any]) -> list[Block]:
    """Return the features that the model depends on."""
    importances = {name: values for name, values in scores.get("importance", {}).items() if math.isfinite(values[0])}
    if scores and not importances and run.config.data.images:
        return [Text("The model sees images alone: there is no column whose values could be permuted.", "quiet")]
    if not importances:
        return [Text(_why_not(run))]
    metric = next(iter(shown_metrics(run.config.label.task).values()))
    loss = f"{'loss' if metric.direction > 0 else 'growth'} of {metric.title}"
    header = ("Feature", loss[0].upper() + loss[1:], "Deviation")
    alt = f"{header[1]} when the values of a feature are permuted among the rows, the largest first"
    times = "mean of three permutations" if scores["importance_repeats"] > 1 else "one permutation"
    text = (
        f"Permutation importance: the {loss} on {scores['importance_rows']:,} rows of the test split when the values "
        f"of one feature are permuted among them ({times}). Features with the same information share it."
    )
    return _ranked(importances, "Permutation importance", text, alt, header, number, "features")


def contributions(run: FinishedRun) -> list[Block]:
    """Return the effect of each column on the answers, as measured by ModelCheck."""
    folder = run.folder_of("ModelCheck", "blessing")
    if not folder:
        return [Text("The run has not come as far as checking a model.")]
    explained = read_model_report(folder).get("explained")
    if not explained:
        return [Text("The model does not explain its answers; docs/serving.md says which do.", "quiet")]
    unit = "probability" if run.config.label.classes else run.config.label.name
    header = ("Column", f"Mean contribution to the {charts.shown(unit, 30)}", "Standard error")
    alt = f"{header[1]}, whatever its sign, of each column, the largest first"
    text = (
        f"Mean size of each column's contributions to {explained['rows']:,} answers, rows of the eval split: Shapley "
        "values by sampling, from rows of the train split on. It says what moves answers, not what makes them right."
    )
    by_size = dict(sorted(explained["columns"].items(), key=lambda item: -item[1][0]))
    return _ranked(by_size, "Contributions of columns", text, alt, header, short, "columns")


def _ranked(
    values: Mapping[str, Sequence[float]],
    title: str,
    text: str,
    alt: str,
    header: Sequence[str],
    format: Callable[[float], str],
    what: str,
) -> list[Block]:
    top = dict(list(values.items())[:MOST_FEATURES])
    if len(values) > len(top):
        text += f" The chart has {len(top)} of {len(values):,} {what}."
    means, errors = ({name: pair[place] for name, pair in top.items()} for place in (0, 1))
    rows = [(charts.shown(name), format(mean), format(error)) for name, (mean, error) in values.items()]
    figure = Figure(charts.bars(means, alt, header[1], errors), title, Table(header, rows))
    return [Text(text, "quiet"), Figures([figure])]


def wrong(run: FinishedRun, scores: Mapping[str, Any]) -> list[Block]:
    """Return the examples with the largest errors."""
    examples = scores.get("wrong", [])
    if not examples:
        return [Text(_why_not(run))]
    names = [name for name in scores["importance"] if name in examples[0]["features"]][:MOST_COLUMNS]
    classes = run.config.label.classes
    answer = f"Probability of {classes[1]}" if run.config.label.task == "binary" else "Predicted"
    header = ("Label", answer, *names)
    rows = []
    for example in examples:
        features = (charts.shown(example["features"].get(name, ""), 30) for name in names)
        label = charts.shown(classes[int(example["label"])], 30) if classes else number(example["label"])
        rows.append((label, _predicted(example["answer"], classes), *features))
    pictures: list[Block] = []
    if run.config.data.images:
        pictures += thumbnails.most_wrong(examples, [row[0] for row in rows], [row[1] for row in rows])
    if pictures and not names:
        return pictures
    which = "Of each class the rows" if classes else "The rows"
    return [*pictures, Table(header, rows, f"{which} with the largest error, with the features that matter most")]


def _predicted(answer: float | list[float], classes: Sequence[str]) -> str:
    if isinstance(answer, list):
        best = max(range(len(answer)), key=answer.__getitem__)
        return f"{charts.shown(classes[best], 30)} ({number(answer[best])})"
    return number(answer)


def _why_not(run: FinishedRun) -> str:
    if run.results is None:
        return "The run has not come as far as judging a model."
    return "The model gave no answers; the log says why."


def _curves(run: FinishedRun, scores: Mapping[str, Any]) -> list[Block]:
    if not scores:
        return [Text("The curves are missing, because the model gave no answers; the log says why.", "bad")]
    blocks: list[Block] = [Text(note, "quiet") for note in scores["notes"]]
    if scores["rows"] < scores["of"]:
        blocks.append(Text(f"Curves over {scores['rows']:,} of {scores['of']:,} rows, evenly taken.", "quiet"))
    if weight := run.config.label.weight:
        blocks.append(Text(f"Rows count by their {weight}; tables of rows count the rows themselves.", "quiet"))
    curves, counts = scores["curves"], scores["confusion"]
    task, classes = run.config.label.task, run.config.label.classes
    figures = []
    defined = {name: curve for name, curve in curves.items() if curve["roc"]}
    if defined:
        weighed = scores.get("weighed_confusion", counts)
        (true_negatives, false_positives), (false_negatives, true_positives) = weighed
        hit = true_positives / (true_positives + false_negatives or 1)
        alarm = false_positives / (false_positives + true_negatives or 1)
        right = true_positives / (true_positives + false_positives or 1)
        figures = [
            _curve(defined, "roc", "ROC", "false positive rate", "true positive rate", True, (alarm, hit)),
            _curve(defined, "precision_recall", "Precision and recall", "recall", "precision", False, (hit, right)),
        ]
    elif task == "binary":
        blocks.append(Text("The test split has rows of one class only: ROC and precision are undefined.", "bad"))
    if curves:
        mean = f"share of {charts.shown(classes[1], 30)}" if task == "binary" else "mean label"
        figures.append(_curve(curves, "calibration", "Calibration", "mean prediction", mean, True, None))
    blocks += [Figures(figures)] if figures else []
    if counts:
        names = [charts.shown(name, 30) for name in classes]
        rows = [(name, *(f"{count:,}" for count in row)) for name, row in zip(names, counts, strict=True)]
        at = " at the threshold" if task == "binary" else ""
        if len(names) > MOST_CONFUSED:
            blocks.append(_most_confused(names, counts))
        else:
            blocks.append(Table(("Label", *(f"Predicted {name}" for name in names)), rows, f"Confusion{at}"))
    return blocks


def _most_confused(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Table:
    pairs = [(count, i, j) for i, row in enumerate(counts) for j, count in enumerate(row) if count and i != j]
    pairs.sort(key=lambda pair: -pair[0])
    rows = [(names[i], names[j], f"{count:,}", f"{sum(counts[i]):,}") for count, i, j in pairs[:MOST_CONFUSED]]
    return Table(("Label", "Predicted", "Rows", "Rows of the label"), rows, "Confused most often")


def _curve(
    curves: Mapping[str, Any], kind: str, title: str, x: str, y: str, diagonal: bool, at: tuple[float, float] | None
) -> Figure:
    series: dict[str, tuple[Sequence[float], Sequence[float]]] = {
        name: (curve[kind][0], curve[kind][1]) for name, curve in curves.items()
    }
    marked = {"threshold": at} if at else {}
    svg = charts.lines(series, f"{title} of {' and '.join(series)}", x, y, diagonal=diagonal, marked=marked)
    rows = []
    for name, (xs, ys) in series.items():
        for place in range(0, len(xs), max(1, len(xs) // 20)):
            rows.append((name, f"{xs[place]:.4f}", f"{ys[place]:.4f}"))
    return Figure(svg, title, Table(("Model", x, y), rows))


def _slices(run: FinishedRun) -> list[Block]:
    assert run.results is not None
    slices = {name: values for name, values in sorted(run.results.metrics.items()) if name != "overall"}
    if not slices:
        return [Text("There are no slices; evaluation.slices names columns.", "quiet")]
    columns = tuple(shown_metrics(run.config.label.task))
    main = columns[0]
    rows: list[tuple[str, ...]] = []
    points: dict[str, tuple[float, float, float]] = {}
    for name, values in slices.items():
        within = intervals.interval(main, values, CONFIDENCE)
        texts = [number(values.get(metric, math.nan)) for metric in columns]
        rows.append((charts.shown(name, 40), *texts, between(within), f"{values['example_count']:,.0f}"))
        if within and len(points) < MOST_SLICES:
            points[name] = (values[main], *within)
    header = ("Slice", *columns, f"{main}, 95 % interval", "Examples")
    table = Table(header, rows, "Metrics by slice", len(rows) > MOST_SLICES)
    if not points:
        return [table]
    overall = run.results.metrics["overall"].get(main)
    alt = f"{main} of every slice with its 95 % interval, against all rows"
    behind = Table(
        ("Slice", main, "Low", "High"), [(charts.shown(n, 40), *map(number, vs)) for n, vs in points.items()]
    )
    return [Figures([Figure(charts.intervals(points, alt, main, overall), f"{main} by slice", behind)]), table]
