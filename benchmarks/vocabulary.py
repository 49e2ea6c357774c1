"""A vocabulary of millions, from the table to the served model: seconds, memory and disk.

    python benchmarks/vocabulary.py [--words 1000000 10000000] [--folder FOLDER]

Makes a table whose rows name 8 of so many words, and each word twice, and runs a pipeline on it: Transform finds and
numbers all of them, and the model looks them up in ``training.embedding``, 16 numbers a word. ModelCheck, which is part
of the run, compares the answers of the exported model with the trained one's. The pushed model is then loaded in a
process of its own and asked row by row, and ``predict`` answers a file. Memory is the largest proportional set size of
all processes of a command together, looked at three times a second. Ten million words take about half an hour on two
cores.

Must be reached: with the most words no more memory than stated. Exits 1 when it misses its target.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's own folder stands there

from benchmarks.scale import STEP, gigabytes, timed  # noqa: E402

WORDS_A_ROW, TIMES, ROWS_A_FILE = 8, 2, 250_000
MOST_GIB = {"the run": 12.0, "the model, loaded and asked": 4.0, "predict": 4.0}
ONE_BY_ONE = 200
CONFIG = """\
from pipeline.config import Data, Evaluation, Gate, Label, PipelineConfig, Training, Tuning

CONFIG = PipelineConfig(
    name="words",
    data=Data({data!r}),
    label=Label("bought", classes=("no", "yes")),
    module={module!r},
    tuning=Tuning(mode="off"),
    training=Training(epochs=1, batch_size=1024),
    evaluation=Evaluation(gates=(Gate("auc", floor=0.5),)),
)
"""
MODULE = '''\
"""Words in a table of their own."""

import keras
import tensorflow as tf
import tensorflow_transform as tft

from pipeline import training


def preprocessing_fn(inputs, custom_config):
    words = tft.compute_and_apply_vocabulary(inputs["words"], num_oov_buckets=1, vocab_filename="words")
    return {"words": words, "price": tft.scale_to_z_score(inputs["price"]), "bought": inputs["bought"]}


def build_model(hp, features):
    inputs = features.inputs()
    embedded = training.embedding(features.categories["words"], 16, mask_zero=True)(inputs["words"])
    hidden = keras.layers.GlobalAveragePooling1D()(embedded)
    hidden = keras.layers.Concatenate()([hidden, inputs["price"]])
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile(keras.optimizers.Adagrad(0.5), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return model


def run_fn(fn_args):
    training.run(fn_args, build_model)
'''
ASK = """\
import json, sys, time
started = time.monotonic()
import tensorflow as tf
imported = time.monotonic()
model = tf.saved_model.load(sys.argv[1])
answer = model.signatures["serving_default"]
loaded = time.monotonic()
times = []
for number in range(int(sys.argv[3])):
    row = [[f"word-{number * 8 + place:09d}" for place in range(8)]]
    before = time.monotonic()
    answer(words=tf.constant(row), price=tf.constant([float(number)]))
    times.append(time.monotonic() - before)
with open(sys.argv[2], "w") as file:
    json.dump({"load": loaded - imported, "median": sorted(times)[len(times) // 2]}, file)
"""


@dataclass
class Found:
    """Measurements of a vocabulary."""

    words: int
    rows: int
    seconds: dict[str, float]
    gib: dict[str, float]
    gigabytes: dict[str, float]


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, nargs="+", default=[1_000_000, 10_000_000], help="of the vocabulary")
    parser.add_argument("--folder", type=Path, help="where data and runs go (a temporary folder)")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return report([measured(words, folder.absolute() / str(words)) for words in sorted(arguments.words)])


def measured(words: int, folder: Path) -> Found:
    """Run everything with so many words."""
    shutil.rmtree(folder, ignore_errors=True)
    data, output = folder / "data", folder / "output"
    rows = write(words, data)
    config, module = folder / "words.py", folder / "words_module.py"
    module.write_text(MODULE)
    config.write_text(CONFIG.format(data=str(data), module=str(module)))
    seconds, gib = {}, {}
    text, seconds["the run"], gib["the run"] = timed("local_runner.py", "--config", config, "--output", output)
    pushed = max((output / "serving/words").iterdir())
    asked = folder / "asked.json"
    _, _, gib["the model, loaded and asked"] = timed("-c", ASK, pushed, asked, str(ONE_BY_ONE))
    times = json.loads(asked.read_text())
    _, seconds["predict"], gib["predict"] = timed(
        *("-m", "pipeline", "predict", "--config", config, "--output", output, "--data", data / "0.parquet"),
        *("--to", folder / "answers.parquet"),
    )
    steps = {name: float(took) for name, took in STEP.findall(text)}
    sizes = {"data": gigabytes(data), "pushed model": gigabytes(pushed), "all of the run": gigabytes(output)}
    return Found(words, rows, {**steps, **seconds, "loading": times["load"], "a row": times["median"]}, gib, sizes)


def write(words: int, to: Path) -> int:
    """Write the table; return its rows. A price decides, with the weights of a row's words, what is bought."""
    to.mkdir(parents=True)
    random = np.random.default_rng(1)
    weights = random.normal(size=words)
    numbers = np.concatenate([random.permutation(words) for _ in range(TIMES)])
    numbers = numbers[: len(numbers) // WORDS_A_ROW * WORDS_A_ROW].reshape(-1, WORDS_A_ROW)
    for start in range(0, len(numbers), ROWS_A_FILE):
        part = numbers[start : start + ROWS_A_FILE]
        named = pa.array([f"word-{number:09d}" for number in part.ravel()])
        offsets = pa.array(np.arange(0, part.size + 1, WORDS_A_ROW, dtype=np.int32))
        price = random.normal(size=len(part)).astype(np.float32)
        bought = (weights[part].mean(axis=1) > price).astype(np.int64)
        table = pa.table({"words": pa.ListArray.from_arrays(offsets, named), "price": price, "bought": bought})
        pq.write_table(table, to / f"{start // ROWS_A_FILE}.parquet")
    return len(numbers)


def report(found: list[Found]) -> int:
    """Print what was measured and what must be reached; return the exit code."""
    table = Table("", title="By words of the vocabulary", title_justify="left")
    for each in found:
        table.add_column(f"{each.words:,}", justify="right")
    table.add_row("rows", *(f"{each.rows:,}" for each in found))
    for name in found[0].seconds:
        table.add_row(f"seconds, {name}", *(f"{each.seconds.get(name, 0):.4g}" for each in found))
    for name in found[0].gib:
        table.add_row(f"GiB, {name}", *(f"{each.gib[name]:.1f}" for each in found))
    for name in found[0].gigabytes:
        table.add_row(f"GB of disk, {name}", *(f"{each.gigabytes[name]:.2f}" for each in found))
    console = Console()
    console.print(table)
    most = found[-1]
    reached = all(most.gib[name] <= limit for name, limit in MOST_GIB.items())
    limits = ", ".join(f"{name} {most.gib[name]:.1f} of {limit:g} GiB" for name, limit in MOST_GIB.items())
    console.print(
        f"must reach: no more memory with {most.words:,} words than stated ({limits}): "
        f"{'reached' if reached else 'misses its target'}"
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
