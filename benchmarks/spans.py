"""Spans that arrive one by one: what the data steps of each run cost, beside one span alone and the whole window.

    python benchmarks/spans.py [--spans 8] [--window 4] [--rows 327346] [--module models/flights.py]

Each span is a year of flights, made from the real one as benchmarks/scale.py makes them, in one Parquet file. Module
file and schema are what ``pipeline new`` writes for it, or another module file. Every run is a process of its own and
executes the steps up to Transform; the model is not trained. After each arrival that span alone is run, and at the end
the whole window, in output folders of their own, from nothing.

Must be reached: each run takes at most 1.5 times the work (processor seconds) of its span alone in the data steps, and
the last run has written what the run of the whole window writes: examples and statistics byte by byte, transformed
numbers within TOLERANCE, for Beam merges sketches of quantiles in any order. Exits 1 when it misses its target. Ten
minutes or more on two cores.
"""

import argparse
import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.scale import FLIGHTS, years  # noqa: E402
from pipeline import filesystem  # noqa: E402

# The steps that read rows and make others of them. Baselines trains models, on a number of rows that has a bound.
DATA_STEPS = ("ExampleGen", "StatisticsGen", "SchemaGen", "ExampleValidator", "DataGate", "Transform")
MOST = 1.5
ROW_GROUP = 1 << 16
SHOWN = 0.1  # seconds of a step that has a column
# Of each step: by the clock, and of processors, which other programs on the machine do not lengthen.
Seconds: TypeAlias = dict[str, tuple[float, ...]]
CLOCK, WORK = 0, 1
# What a run is compared by: the rows and their description, and the model's features.
COMPARED, FEATURES = ("ExampleGen/examples", "StatisticsGen/statistics"), "Transform/transformed_examples"
# Of features from 0 to 1, or of a standard deviation of 1: what ``training.quantile_transform`` asks of its quantiles.
TOLERANCE = 0.1 / 128
CONFIG = """\
from pipeline.config import Data, Evaluation, Gate, Label, PipelineConfig

CONFIG = PipelineConfig(
    name="spans",
    data=Data({data!r}, files="span-{{SPAN}}/*.parquet", last_spans={window}),
    label=Label("late", classes=("on time", "late")),
    module={module!r},
    schema={schema!r},
    evaluation=Evaluation(gates=(Gate("auc", floor=0.5),)),
)
"""


def main() -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=8, help="that arrive (8)")
    parser.add_argument("--window", type=int, default=4, help="spans that a run reads (4)")
    parser.add_argument("--rows", type=int, help="of a span (a year of flights)")
    parser.add_argument("--module", type=Path, help="module file (what pipeline new writes)")
    parser.add_argument("--folder", type=Path, help="where data and runs go (a temporary folder)")
    parser.add_argument("--run", type=Path, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(run(*arguments.run)))
        return 0
    if not FLIGHTS.is_dir():
        subprocess.run([sys.executable, ROOT / "data/prepare_flights.py", "--output", FLIGHTS], check=True)
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spans-")))
        return measure(folder, arguments)


def measure(folder: Path, arguments: argparse.Namespace) -> int:
    """Lets the spans arrive, and compares."""
    files = make_spans(folder, arguments.spans, arguments.rows)
    config = write_config(folder, files[0], arguments.window, arguments.module)
    data = folder / "data"
    runs, alone = {}, []
    for number, file in enumerate(files, 1):
        arrive(data, number, file)
        runs[f"span {number} arrives"] = timed(config, folder / "output")
        # Each beside its own, for the machine may be another one ten minutes later.
        others = stowed(data, number)
        alone.append(timed(config, folder / f"alone-{number}"))
        shutil.rmtree(folder / f"alone-{number}")
        for path, place in others.items():
            place.rename(path)
    whole = timed(config, folder / "whole")
    differing = differences(folder / "output", folder / "whole")
    return report(runs, alone, whole, differing, arguments.window)


def make_spans(folder: Path, spans: int, rows: int | None) -> list[Path]:
    """Makes a file of each year."""
    made = years(spans, folder / "years")
    (folder / "spans").mkdir(exist_ok=True)
    files = []
    for number in range(spans):
        year = pa.concat_tables(pq.read_table(file) for file in sorted(made.glob(f"*/{2013 + number}-*.parquet")))
        every = max(1, len(year) // (rows or len(year)))
        year = year.take(list(range(0, len(year), every))) if every > 1 else year
        files.append(folder / f"spans/{number + 1}.parquet")
        pq.write_table(year, files[-1], row_group_size=ROW_GROUP)
    shutil.rmtree(made)
    return files


def write_config(folder: Path, file: Path, window: int, module: Path | None) -> Path:
    """Writes what ``pipeline new`` writes for the first span, with a window of spans as its data."""
    from pipeline.scaffold import files
    from pipeline.scaffold.table import look
    from pipeline.settings.config import Data

    table = look(Data(str(file)), "late", None, [], None)
    paths = {"module": folder / "spans_model.py", "schema": folder / "schema/schema.pbtxt"}
    filesystem.write(paths["module"], files.module_text("spans_model", table))
    filesystem.write(paths["schema"], files.schema_text(table, []))
    if module:
        paths |= {"module": module.resolve(), "schema": ROOT / "schema/flights/schema.pbtxt"}
    config = folder / "config.py"
    of_config = {name: str(path) for name, path in paths.items()}
    config.write_text(CONFIG.format(data=str(folder / "data"), window=window, **of_config))
    return config


def arrive(data: Path, number: int, file: Path) -> None:
    """Puts a span where the pipeline looks for it."""
    place = data / f"span-{number}/flights.parquet"
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(file, place)


def stowed(data: Path, number: int) -> dict[Path, Path]:
    """Takes all spans but one away; returns where each was and is."""
    places = {}
    for path in sorted(data.glob("span-*")):
        if path.name != f"span-{number}":
            places[path] = path.with_name(f"away-{path.name}")
            path.rename(places[path])
    return places


def timed(config: Path, output: Path) -> Seconds:
    """Runs the steps in a process of their own; returns the seconds of each."""
    command = [sys.executable, __file__, "--run", config, output]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return {name: tuple(pair) for name, pair in json.loads(done.stdout.splitlines()[-1]).items()}


def run(config_file: Path, output: Path) -> Seconds:
    """Executes the steps up to Transform; returns the seconds of each."""
    from pipeline.graph import create_pipeline
    from pipeline.runs.run_graph import run_graph
    from pipeline.runs.step import Step
    from pipeline.settings.config import load_config
    from pipeline.settings.target import Target

    del sys.argv[1:]  # TFX hands them to Beam
    config = load_config(config_file)
    output.mkdir(exist_ok=True)
    pipeline = create_pipeline(config, Target.local(output, config.name))
    name = datetime.now().isoformat()
    started: list[float] = []
    work: dict[str, float] = {}

    def on_end(step: Step) -> None:
        work[step.name] = time.process_time() - started[-1]

    steps = run_graph(pipeline, name, lambda _: started.append(time.process_time()), on_end, last="Transform")
    return {name: (step.seconds, work[name]) for name, step in steps.items() if step.state == "ran"}


def differences(output: Path, whole: Path) -> list[str]:
    """Returns the files that the last run has written otherwise than the run of the whole window."""
    found = []
    one, other = (newest(folder / "artifacts" / FEATURES) for folder in (output, whole))
    names = sorted({str(path.relative_to(folder)) for folder in (one, other) for path in folder.glob("Split-*/*")})
    found += [name for name in names if not (largest_difference(one / name, other / name) <= TOLERANCE)]
    for name in COMPARED:
        one, other = (filesystem.digests(newest(folder / "artifacts" / name)) for folder in (output, whole))
        found += [f"{name}/{file}" for file in sorted(one.keys() | other.keys()) if one.get(file) != other.get(file)]
    return found


def largest_difference(one: Path, other: Path) -> float:
    """Returns by how much a number differs most in two files of features; infinite where they are not comparable."""
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    from pipeline.data.tfrecord_files import read_records

    largest, decoder = 0.0, ExamplesToRecordBatchDecoder()
    if not (one.is_file() and other.is_file()):
        return float("inf")
    for several in itertools.zip_longest(*(read_records(str(file), 1 << 16) for file in (one, other)), fillvalue=()):
        tables = [pa.table(decoder.DecodeBatch(list(records))) for records in several if records]
        if len(tables) != 2 or tables[0].column_names != tables[1].column_names or len(tables[0]) != len(tables[1]):
            return float("inf")
        for name in tables[0].column_names:
            mine, its = (
                np.nan_to_num(np.asarray(table.column(name).combine_chunks().flatten(), np.float64)) for table in tables
            )
            largest = max(largest, float(np.abs(mine - its).max())) if len(mine) == len(its) else float("inf")
    return largest


def newest(folder: Path) -> Path:
    """Returns the folder that the last run has written."""
    return max(folder.iterdir(), key=lambda path: int(path.name))


def report(runs: dict[str, Seconds], alone: list[Seconds], whole: Seconds, differing: list[str], window: int) -> int:
    """Prints the seconds and what must be reached; returns the exit code."""
    one = {name: tuple(np.mean([seconds[name] for seconds in alone], axis=0)) for name in alone[0]}
    table = Table("seconds", title=f"A window of {window} spans", title_justify="left")
    names = [name for name in (*DATA_STEPS, "Baselines") if whole.get(name, (0.0, 0.0))[0] >= SHOWN]
    for name in (*names, "data steps", "work", "of its span"):
        table.add_column(name, justify="right")
    ratios = [total(run, WORK) / total(beside, WORK) for run, beside in zip(runs.values(), alone, strict=True)]
    shown = iter([1.0, *ratios, total(whole, WORK) / total(one, WORK)])
    for label, seconds in {"a span alone, mean": one, **runs, "the whole window": whole}.items():
        cells = [f"{seconds.get(name, (0.0, 0.0))[CLOCK]:.1f}" for name in names]
        table.add_row(label, *cells, *(f"{total(seconds, which):.1f}" for which in (CLOCK, WORK)), f"{next(shown):.2f}")
    Console(width=140).print(table)
    same = not differing
    print("the last run has written what the run of the whole window has" if same else f"other files: {differing[:5]}")
    print(f"the dearest run took {max(ratios):.2f} times the work of its span alone; at most {MOST}")
    return 0 if same and max(ratios) <= MOST else 1


def total(seconds: Seconds, which: int) -> float:
    """Returns the seconds of the data steps."""
    return float(sum(seconds.get(name, (0.0, 0.0))[which] for name in DATA_STEPS))


if __name__ == "__main__":
    sys.exit(main())
