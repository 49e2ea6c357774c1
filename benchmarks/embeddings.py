"""Time the training step of a large vocabulary: rows of a table alone, against gradients of all of it.

    python benchmarks/embeddings.py [--rows 10000 1000000 10000000]

Each training runs in a separate process, with the same rows, seed and batches (1,024 examples that name 8 numbers
each, embedded to a width of 16): with ``training.embedding``, and with ``keras.layers.Embedding``, whose gradients are
dense. All sizes and both layers take turns, three rounds. A training's time is the median over its calls of four steps,
in epochs of 128 steps: after an epoch the best weights are copied, which leaves nothing of a table in the processor's
cache, and of epochs of a few steps one would measure that.

The fewer rows a table has, the more numbers occur twice in a batch, and the fewer rows a step changes: of ten thousand
two thirds of what it changes of ten million. What must be reached is about whole steps all the same; beside it stands
the time for each row that is changed.

Memory is the process' largest between the steps, above what it had before the table was made; what a step takes and
gives back is not in it. With dense gradients a training ends within its first epoch, before there are best weights to
keep. The losses of every step that both take must be equal with Adagrad, which leaves a row alone that has no gradient.
What must be reached is in the last lines; exits 1 when it is not.
"""

import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pipeline.cli.startup import with_allocation  # noqa: E402

EXAMPLES, NUMBERS, WIDTH, BATCH_SIZE = 131_072, 8, 16, 1_024
# By whether gradients are dense: steps of those take up to two hundred times as long.
STEPS = {False: 384, True: 48}
EPOCHS = STEPS[False] * BATCH_SIZE // EXAMPLES
STEPS_PER_CALL = 4
FIRST_CALLS = 4  # in which memory is taken from the system for the first time; not counted
ROUNDS = 3
COPIES = {"Adagrad": 3, "Adam": 4}  # the table, what the optimizer keeps of it, and the best weights so far
FLAT = 1.5  # a step with the largest table, to one with the smallest
TABLES = 1.25  # memory, to that of those copies
CLOSE = 1e-5


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000], help="of the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(**json.loads(arguments.one))))
        return 0
    table = Table("optimizer", "rows", "table", title="A step, and the memory of the training", title_justify="left")
    for column in ("rows changed", "ours", "dense", "times as fast", "memory, ours", "dense", "losses differ by"):
        table.add_column(column, justify="right")
    steps, over, differences = {}, 0.0, [0.0]
    with tempfile.TemporaryDirectory() as folder:
        for optimizer in COPIES:
            found: dict[tuple[int, bool], list[dict[str, Any]]] = {}
            for _ in range(ROUNDS):
                for rows, is_dense in itertools.product(arguments.rows, STEPS):
                    found.setdefault((rows, is_dense), []).append(training(folder, optimizer, rows, is_dense))
            for rows in arguments.rows:
                ours, dense = found[rows, False], found[rows, True]
                seconds = [statistics.median(run["seconds"] for run in runs) for runs in (ours, dense)]
                memory = [statistics.median(run["megabytes"] for run in runs) for runs in (ours, dense)]
                steps[optimizer, rows] = seconds[0]
                size = rows * WIDTH * 4 / 1e6
                if rows == max(arguments.rows):
                    over = max(over, memory[0] / (size * COPIES[optimizer]))
                differs = max(abs(a - b) for a, b in zip(ours[0]["losses"], dense[0]["losses"], strict=False))
                if optimizer == "Adagrad":
                    differences.append(differs)
                table.add_row(
                    optimizer,
                    f"{rows:,}",
                    f"{size:,.1f} MB",
                    f"{changed(rows):,.0f}",
                    *(f"{1e3 * of_one:,.1f} ms" for of_one in seconds),
                    f"{seconds[1] / seconds[0]:.1f}",
                    *(f"{of_one:,.0f} MB" for of_one in memory),
                    f"{differs:.1g}",
                )
    Console(width=140).print(table)
    smallest, largest = min(arguments.rows), max(arguments.rows)
    flat = max(steps[optimizer, largest] / steps[optimizer, smallest] for optimizer in COPIES)
    for_each_row = flat * changed(smallest) / changed(largest)
    reached = {
        f"a step with {largest:,} rows takes {flat:.2f} times one with {smallest:,} (at most {FLAT}); "
        f"{for_each_row:.2f} times for each changed row": flat <= FLAT,
        f"its memory is {over:.2f} times table, optimizer's states and best weights (at most {TABLES})": over <= TABLES,
        f"losses with Adagrad differ by {max(differences):.1g} (at most {CLOSE:g})": max(differences) <= CLOSE,
    }
    for text, holds in reached.items():
        print(f"{'reached' if holds else 'MISSED'}: {text}")
    return 0 if all(reached.values()) else 1


def changed(rows: int) -> float:
    """Return how many rows of a table a step changes in the mean: different ones among the numbers of its batch."""
    return rows * (1 - (1 - 1 / rows) ** (BATCH_SIZE * NUMBERS))


def training(folder: str, optimizer: str, rows: int, dense: bool) -> dict[str, Any]:
    """Train in a separate process; return the losses, the seconds of a step and the memory."""
    job = json.dumps({"folder": folder, "optimizer": optimizer, "rows": rows, "dense": dense})
    command = [sys.executable, __file__, "--one", job]
    # As local_runner.py and the image take memory.
    environment = with_allocation({**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def one(folder: str, optimizer: str, rows: int, dense: bool) -> dict[str, Any]:
    """Train in this process."""
    import keras
    import psutil
    import tensorflow as tf

    from pipeline import training
    from pipeline.training import strategy
    from pipeline.training.decoding import Decoder
    from pipeline.training.input_pipeline import read
    from pipeline.training.loop import Fit
    from pipeline.training.settings import Settings

    file = Path(folder) / f"{rows}.gz"
    if not file.exists():
        write(file, rows)
    spec = {"x": tf.io.FixedLenFeature([NUMBERS], tf.int64), "y": tf.io.FixedLenFeature([1], tf.int64)}
    splits = [read([str(file)], Decoder(spec, "y"), cache="memory", on_cpu=True) for _ in range(2)]
    distribution = strategy.choose("one_device")
    settings = Settings(
        label="y",
        objective="auc",
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        patience=EPOCHS,
        schedule="constant",
        warmup_epochs=0.0,
        strategy="one_device",
        seed=1,
        steps_per_call=STEPS_PER_CALL,
    )
    process = psutil.Process()
    before, most = process.memory_info().rss, 0
    calls: list[float] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.began = fit.seconds

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            nonlocal most
            calls.append(fit.seconds - self.began)
            most = max(most, process.memory_info().rss)
            self.model.stop_training = len(calls) * STEPS_PER_CALL >= STEPS[dense]

    with distribution.strategy.scope():
        keras.utils.set_random_seed(1)
        begin = keras.initializers.RandomUniform(-0.05, 0.05, seed=2)
        layer = keras.layers.Embedding(rows, WIDTH, begin) if dense else training.embedding(rows, WIDTH)
        inputs = {"x": keras.Input((NUMBERS,), dtype="int64", name="x")}
        hidden = keras.layers.Flatten()(layer(inputs["x"]))
        last = keras.layers.Dense(1, "sigmoid", kernel_initializer=keras.initializers.GlorotUniform(seed=3))
        model = keras.Model(inputs, last(hidden))
        if not dense:
            layer.table.assign(begin((rows, WIDTH)))
        kind = getattr(keras.optimizers, optimizer)
        model.compile(kind(0.01), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    logs = Path(folder) / f"{optimizer}-{rows}-{dense}"
    fit = Fit(model, splits[0], splits[1], settings, distribution, seed=1, logs=str(logs), callbacks=[Watch()])
    fit.run()
    return {
        "losses": column(logs / "steps.csv", "loss"),
        "seconds": statistics.median(calls[FIRST_CALLS:]) / STEPS_PER_CALL,
        "megabytes": (most - before) / 1e6,
    }


def write(file: Path, rows: int) -> None:
    """Write examples of ``NUMBERS`` numbers of the table each, and a label that follows from them."""
    import numpy as np
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(file), tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        for row in np.random.default_rng(1).integers(0, rows, (EXAMPLES, NUMBERS)):
            lists = {"x": tf.train.Int64List(value=row), "y": tf.train.Int64List(value=[int(row.sum() % 2)])}
            feature = {name: tf.train.Feature(int64_list=values) for name, values in lists.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def column(file: Path, name: str) -> list[float]:
    """Read the numbers of a column."""
    with file.open() as lines:
        return [float(row[name]) for row in csv.DictReader(lines)]


if __name__ == "__main__":
    sys.exit(main())
