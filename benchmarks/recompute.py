"""Measure what training.recompute saves of memory and costs of time, for a deep stack of layers.

    python benchmarks/recompute.py [--blocks 16] [--width 128] [--batch-size 4096]

Each training runs in a process of its own, with the same rows, seed and batches: with everything kept, and with
``Training(recompute=True)``. A block widens four times and narrows again, normalises and drops out. The two alternate;
numbers are medians. Time is the processors', for on a shared machine the clock tells little. Memory is the largest that
the process had while it trained, above what it had when model and optimizer were there. What must be reached is in the
last lines; exits 1 when it is not.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("kept", "recompute")
COLUMNS, EXAMPLES, EPOCHS, TIMES = 32, 16_384, 2, 3
MEMORY = 0.4  # of a training that keeps all
TIME = 1.5  # times; a second forward pass is a third of the matrix products, and more of gelu and dropout
CLOSE = 1e-5


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments.blocks, arguments.width, arguments.batch_size)))
        return 0
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(TIMES):
        for way in WAYS:
            runs[way].append(training(way, arguments))
    seconds, memory = (
        {way: statistics.median(run[name] for run in runs[way]) for way in WAYS} for name in ("seconds", "megabytes")
    )
    losses = {way: runs[way][0]["losses"] for way in WAYS}
    differ = {way: max(abs(a - b) for a, b in zip(losses[way], losses["kept"], strict=True)) for way in WAYS}
    title = f"A step of {arguments.batch_size:,} examples, {arguments.blocks} blocks of width {arguments.width}"
    table = Table("activations", title=title, title_justify="left")
    for column in ("a step", "memory", "losses differ by"):
        table.add_column(column, justify="right")
    for way in WAYS:
        table.add_row(way, f"{1e3 * seconds[way]:,.0f} ms", f"{memory[way]:,.0f} MB", f"{differ[way]:.1g}")
    Console(width=100).print(table)
    less, longer = memory["recompute"] / memory["kept"], seconds["recompute"] / seconds["kept"]
    reached = {
        f"recompute takes {less:.2f} of the memory (at most {MEMORY})": less <= MEMORY,
        f"and {longer:.2f} times as long (at most {TIME})": longer <= TIME,
        f"its losses differ by {differ['recompute']:.1g} (at most {CLOSE:g})": differ["recompute"] <= CLOSE,
    }
    for text, holds in reached.items():
        print(f"{'reached' if holds else 'MISSED'}: {text}")
    return 0 if all(reached.values()) else 1


def training(way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train in a process of its own; return the losses, the seconds of a step and the memory."""
    command = [sys.executable, __file__, "--one", way]
    for name in ("blocks", "width", "batch_size"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def one(way: str, blocks: int, width: int, batch_size: int) -> dict[str, Any]:
    """Train in this process."""
    import keras
    import tensorflow as tf

    from pipeline import training
    from pipeline.training import strategy
    from pipeline.training.decoding import Decoder
    from pipeline.training.input_pipeline import read
    from pipeline.training.loop import Fit
    from pipeline.training.settings import Settings

    settings = Settings(
        label="y",
        objective="auc",
        epochs=EPOCHS,
        batch_size=batch_size,
        patience=EPOCHS,
        schedule="constant",
        warmup_epochs=0.0,
        strategy="one_device",
        seed=1,
        steps_per_call=4,
        recompute=way == "recompute",
    )

    class Clock(keras.callbacks.Callback):
        """Keeps the processors' seconds of the last epoch; the first takes memory from the system."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.began = time.process_time()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seconds = time.process_time() - self.began

    distribution = strategy.choose("one_device")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "rows.gz")
        spec = {"x": tf.io.FixedLenFeature([COLUMNS], tf.float32), "y": tf.io.FixedLenFeature([1], tf.int64)}
        splits = [read([f"{folder}/rows.gz"], Decoder(spec, "y"), cache="memory", on_cpu=True) for _ in range(2)]
        with distribution.strategy.scope():
            keras.utils.set_random_seed(1)
            inputs = {"x": keras.Input((COLUMNS,), name="x")}
            hidden = keras.layers.Dense(width)(inputs["x"])
            hidden = training.blocks([block(width) for _ in range(blocks)])(hidden)
            model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
            model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
        clock = Clock()
        logs = str(folder / "logs")
        fit = Fit(model, splits[0], splits[1], settings, distribution, seed=1, callbacks=[clock], logs=logs)
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the largest so far is forgotten
        fit.run()
        losses = column(folder / "logs/steps.csv", "loss")
    return {
        "losses": losses,
        "seconds": clock.seconds / (EXAMPLES // batch_size),
        "megabytes": (status("VmHWM") - before) / 1e3,
    }


def block(width: int) -> Any:
    """Return one block, without weights yet."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            layers.Dense(4 * width, "gelu"),
            layers.Dropout(0.1),
            layers.Dense(width),
            layers.BatchNormalization(),
        ]
    )


def write(file: Path) -> None:
    """Write rows of numbers, and a label that follows from them."""
    import numpy as np
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(file), tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        for row in np.random.default_rng(1).normal(size=(EXAMPLES, COLUMNS)).astype("float32"):
            feature = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=row)),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(row[0] * row[1] > 0)])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def status(name: str) -> int:
    """Return a number of kB of this process' status."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(lines[name].split()[0])


def column(file: Path, name: str) -> list[float]:
    """Read the numbers of a column."""
    with file.open() as lines:
        return [float(row[name]) for row in csv.DictReader(lines)]


if __name__ == "__main__":
    sys.exit(main())
