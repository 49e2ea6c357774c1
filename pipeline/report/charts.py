"""Charts as SVG to put inside a page, drawn by matplotlib, in colours that the page's style sheet decides."""

import io
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator
from rich.cells import cell_len

# Drawn in these, shown in what the page says: dark on light or light on dark, whatever the reader's device prefers.
INK, GRID = "#010203", "#040506"
SERIES = ("#070101", "#070202", "#070303", "#070404")
STYLE_NAMES = {INK: "--ink", GRID: "--grid", **{color: f"--series-{place}" for place, color in enumerate(SERIES, 1)}}
DASHES = ("-", "--", ":", "-.")  # lines differ in black and white, too
SETTINGS = {
    "svg.fonttype": "none",  # letters stay letters: they can be searched, read out and marked
    "text.parse_math": False,  # a dollar in a category's name is a dollar
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    **dict.fromkeys(("axes.edgecolor", "grid.color"), GRID),
    **dict.fromkeys(("axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK),
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
}
# A line of more points looks the same.
POINTS = 300
ENGINEERING = EngFormatter(sep="")
WIDE, SMALL = (6.4, 3.0), (3.4, 2.2)


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    alt: str,
    x: str,
    y: str,
    *,
    size: tuple[float, float] = SMALL,
    diagonal: bool = False,
    marked: Mapping[str, tuple[float, float]] | None = None,
) -> Markup:
    """Draw lines by name, as {"train": (xs, ys)}."""

    def draw(axes: Any) -> None:
        if diagonal:
            values = [value for pair in series.values() for values in pair for value in values]
            ends = [min(values), max(values)]
            axes.plot(ends, ends, color=GRID, linewidth=1)
        for (name, (xs, ys)), color, dash in zip(series.items(), SERIES, DASHES, strict=False):
            marker = "o" if len(xs) < 12 else ""
            axes.plot(thinned(xs), thinned(ys), dash, color=color, label=name, marker=marker, markersize=3)
        for name, (at_x, at_y) in (marked or {}).items():
            axes.plot([at_x], [at_y], "o", color=INK, label=name)
        whole = all(float(value).is_integer() for xs, _ in series.values() for value in xs)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))

    return _svg(draw, alt, x, y, size, legend=len(series) + len(marked or {}) > 1)


def densities(histograms: Mapping[str, Sequence[tuple[float, float, float]]], alt: str) -> Markup:
    """Draw the distribution of a number by name, from buckets (low, high, count)."""

    def draw(axes: Any) -> None:
        for (name, buckets), color, dash in zip(histograms.items(), SERIES, DASHES, strict=False):
            low, high = buckets[0][0], buckets[-1][1]
            if low == high:  # a bucket without width has no height
                axes.axvline(low, color=color, label=name, linestyle=dash, linewidth=1.3)
                continue
            total = sum(count for *_, count in buckets) or 1.0
            edges = [low, *(high for _, high, _ in buckets)]
            heights = [count / total / (high - low) if high > low else 0.0 for low, high, count in buckets]
            axes.stairs(heights, edges, color=color, label=name, linestyle=dash, linewidth=1.3)
        ends = (edge for buckets in histograms.values() for edge in (buckets[0][0], buckets[-1][1]))
        whole = all(float(edge).is_integer() for edge in ends)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=whole))
        axes.set_yticks([])
        axes.grid(False)

    return _svg(draw, alt, "", "", SMALL, left=0.15, legend=len(histograms) > 1)


def shares(values: Sequence[str], by_name: Mapping[str, Sequence[float]], alt: str) -> Markup:
    """Draw bars of the share of each value, by name next to each other; the first value on top."""
    height = 0.8 / max(len(by_name), 1)

    def draw(axes: Any) -> None:
        for place, ((name, of_name), color) in enumerate(zip(by_name.items(), SERIES, strict=False)):
            at = np.arange(len(values)) + (place - (len(by_name) - 1) / 2) * height
            axes.barh(at, np.asarray(of_name) * 100, height=height * 0.9, color=color, label=name)
        axes.xaxis.set_major_locator(MaxNLocator(5))

    names = [shown(value, 14) for value in values]
    return _svg(draw, alt, "% of rows", "", SMALL, names=names, legend=len(by_name) > 1)


def bars(values: Mapping[str, float], alt: str, x: str, errors: Mapping[str, float]) -> Markup:
    """Draw a bar for each name, the first on top; ``errors`` are drawn to both sides."""

    def draw(axes: Any) -> None:
        error = [errors[name] for name in values]
        axes.barh(range(len(values)), list(values.values()), color=SERIES[0], height=0.7, xerr=error, ecolor=INK)

    names = [shown(name, 24) for name in values]
    return _svg(draw, alt, x, "", (WIDE[0], 0.7 + 0.2 * len(values)), names=names)


def intervals(values: Mapping[str, tuple[float, float, float]], alt: str, x: str, line: float | None) -> Markup:
    """Draw a point with its range (value, low, high) for each name, and a line to compare them with."""

    def draw(axes: Any) -> None:
        points, lows, highs = (np.asarray(column) for column in zip(*values.values(), strict=True))
        around = [np.maximum(points - lows, 0), np.maximum(highs - points, 0)]
        axes.errorbar(points, range(len(values)), xerr=around, fmt="o", color=SERIES[0], ecolor=INK, markersize=4)
        if line is not None:
            axes.axvline(line, color=SERIES[1], linestyle="--", linewidth=1, label=f"all rows: {line:.4g}")

    names = [shown(name, 24) for name in values]
    size = (WIDE[0], 0.9 + 0.2 * len(values))
    return _svg(draw, alt, x, "", size, names=names, legend=line is not None)


def scatter(points: Sequence[tuple[float, float]], chosen: int, alt: str, x: str, y: str, log: bool) -> Markup:
    """Draw points, one of them marked."""

    def draw(axes: Any) -> None:
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, "o", color=SERIES[0], markersize=4)
        axes.plot([xs[chosen]], [ys[chosen]], "o", color=SERIES[1], markersize=8, fillstyle="none")
        axes.margins(0.12)
        if log:
            axes.set_xscale("log")
            # Matplotlib's own labels of part of a decade run into each other.
            axes.set_xticks([float(f"{tick:.1g}") for tick in np.geomspace(min(xs), max(xs), 3)])
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5))

    return _svg(draw, alt, x, y, SMALL)


def _tick(value: float, _: float) -> str:
    if abs(value) >= 10_000:
        return str(ENGINEERING(value))
    return f"{value:.1e}".replace("e-0", "e-") if 0 < abs(value) < 0.001 else f"{value:.4g}"


def thinned(values: Sequence[float]) -> np.ndarray:
    """Return at most ``POINTS`` of the values, evenly taken, the first and the last among them."""
    places = np.linspace(0, len(values) - 1, min(POINTS, len(values))).round().astype(int)
    return np.asarray(values, float)[places]


def shown(text: str, length: int = 60) -> str:
    """Return a value of the data as it may stand in a page: without control characters, cut in the middle."""
    text = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(char)[0] == "C" else char for char in text)
    return text if len(text) <= length else f"{text[: length // 2]}…{text[len(text) + length // 2 + 1 - length :]}"


def _svg(
    draw: Callable[[Any], None],
    alt: str,
    x: str,
    y: str,
    size: tuple[float, float],
    *,
    left: float = 0.55,
    names: Sequence[str] = (),
    legend: bool = False,
) -> Markup:
    # The salt makes the ids of clip paths differ between the charts of a page, and be the same in every run.
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": alt}):
        figure = Figure(figsize=size)
        axes = figure.subplots()
        draw(axes)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.xaxis.set_major_formatter(_tick)
        axes.yaxis.set_major_formatter(_tick)
        if names:
            axes.set_yticks(range(len(names)), names, fontsize=8)
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.grid(False, axis="y")
            left = 0.2 + max(map(cell_len, names)) * 0.6 * 8 / 72  # a letter is 0.6 of its height wide
        if legend:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderpad=0, handlelength=1.6)
        width, height = size
        figure.subplots_adjust(
            left=(left + 0.2 * bool(y)) / width,
            right=1 - 0.15 / width,
            top=1 - (0.3 if legend else 0.1) / height,
            bottom=(0.28 + 0.2 * bool(x)) / height,
        )
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # the same in every chart, and nothing refers to them
    text = re.sub(r"\s*\n\s*", "\n", text)
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)  # 0.01 pt is enough
    for color, name in STYLE_NAMES.items():
        text = text.replace(color, f"var({name})")
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1))
