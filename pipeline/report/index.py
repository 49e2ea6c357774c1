"""Write the page over all runs of an output folder, next to their reports."""

import math
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from pipeline.report import charts
from pipeline.report.blocks import Block, Figure, Figures, Link, Section, Table, Text, duration, number, write_page
from pipeline.runs.record import Record
from pipeline.settings.tasks import METRICS

FILE, REPORT = "index.html", "report.html"


def write(output: Path, records: Sequence[Record]) -> None:
    """Write ``runs/index.html`` below an output folder, whole or not at all; nothing when there are no records."""
    if not records:
        return
    name = next((str(record.config["name"]) for record in reversed(records) if "name" in record.config), output.name)
    blocks = [*_trend(records), _table(records, output / "runs")]
    write_page(output / "runs" / FILE, f"{name}: runs", [Section("runs", "", blocks)])


def _trend(records: Sequence[Record]) -> list[Block]:
    measured = [record for record in records if record.metrics]
    gate = measured[-1].main_gate if measured else {}
    metric = gate.get("metric", "")
    points = [
        (place, record.metrics[metric])
        for place, record in enumerate(records, 1)
        if math.isfinite(record.metrics.get(metric, math.nan))
    ]
    if len(points) < 2:
        return [Text("The chart of a metric over time starts with the second model.", "quiet")]
    places, values = zip(*points, strict=True)
    title = METRICS[metric].title
    series = {title: (places, values)}
    for limit in ("floor", "ceiling"):
        if gate.get(limit) is not None:
            series[limit] = ((1, len(records)), (gate[limit], gate[limit]))
    alt = f"{title} on the test split by run, the oldest first"
    rows = [(records[place - 1].run, number(value)) for place, value in points]
    svg = charts.lines(series, alt, "run, the oldest first", title, size=charts.WIDE)
    return [Figures([Figure(svg, f"{title} by run", Table(("Run", title), rows))])]


def _table(records: Sequence[Record], folder: Path) -> Table:
    measured = {name for record in records for name in record.metrics}
    names = [name for name, metric in METRICS.items() if metric.listed and name in measured]
    rows = []
    for record in reversed(records):
        run: str | Link = record.run
        if (folder / record.run / REPORT).is_file():
            run = Link(record.run, f"{quote(record.run)}/{REPORT}")
        metrics = [number(record.metrics.get(name, math.nan)) for name in names]
        failed = charts.shown("; ".join(record.failed), 300)
        rows.append((run, record.verdict, *metrics, duration(record.seconds), failed))
    header = ("Run", "Verdict", *(METRICS[name].title for name in names), "Took", "Why")
    columns = None if any(record.failed for record in records) else -1
    return Table(header[:columns], [row[:columns] for row in rows])
