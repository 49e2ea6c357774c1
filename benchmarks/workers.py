"""Measure how several workers on this machine scale: their speed together, against the same processes without exchange.

    python benchmarks/workers.py [--processes 1 2 4]

Two processes have a core each, four have half of one: two are pinned to each core. In theory n workers that train
together are as fast as n trainings side by side, on the same cores, that have nothing to do with one another: these
share caches, memory and what else runs here alike, and only the sum of the gradients is missing. Both are run in turn,
and the ratio of each pair is taken, for the same training is up to three times as slow on a busy machine. A step takes
1,024 examples a worker. What must be reached is in the last lines; exits 1 when it is not.
"""

import argparse
import csv
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, WIDTH, EXAMPLES, BATCH_SIZE, EPOCHS, PAIRS = 32, 512, 131_072, 1_024, 2, 3
EFFICIENCY = 0.75


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--one", nargs=2, metavar=("ROWS", "LOGS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(*arguments.one)
        return 0
    cores = sorted(os.sched_getaffinity(0))
    table = Table("processes", title="Examples a second, of all", title_justify="left")
    for column in ("cores", "side by side", "together", "efficiency", "to one process"):
        table.add_column(column, justify="right")
    found, speed_of_one = {}, 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "rows")
        for processes in arguments.processes:
            pinned = [cores[number % len(cores)] for number in range(processes)]
            pairs = [[speed(folder, pinned, together) for together in (False, True)] for _ in range(PAIRS)]
            found[processes] = statistics.median(together / apart for apart, together in pairs)
            apart, together = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
            speed_of_one = speed_of_one or apart
            table.add_row(
                str(processes),
                str(len(set(pinned))),
                f"{apart:,.0f}",
                f"{together:,.0f}",
                f"{found[processes]:.2f}",
                f"{together / speed_of_one:.2f}",
            )
    Console(width=100).print(table)
    for processes, efficiency in found.items():
        word = "reached" if efficiency >= EFFICIENCY else "MISSED"
        print(f"{word}: {processes} together have {efficiency:.2f} of their speed side by side (at least {EFFICIENCY})")
    return 0 if min(found.values()) >= EFFICIENCY else 1


def speed(folder: Path, pinned: list[int], together: bool) -> float:
    """Train in processes that are pinned to cores; return the examples a second of all in their last epoch."""
    sockets = [socket.socket() for _ in pinned]
    for each in sockets:
        each.bind(("localhost", 0))
    addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    running = []
    for number, core in enumerate(pinned):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
        if together and len(pinned) > 1:
            task = {"type": "worker", "index": number}
            environment["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        logs = folder / f"logs-{number}"
        command = ["taskset", "-c", str(core), sys.executable, __file__, "--one", str(folder / "rows"), str(logs)]
        running.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate()[1] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError("\n".join(errors))
    counted = pinned[:1] if together else pinned  # the chief counts the examples of all workers
    return sum(last(folder / f"logs-{number}/history.csv") for number in range(len(counted)))


def one(rows: str, logs: str) -> None:
    """Train in this process."""
    import keras
    import tensorflow as tf

    from pipeline.training import strategy
    from pipeline.training.decoding import Decoder
    from pipeline.training.input_pipeline import read
    from pipeline.training.loop import Fit
    from pipeline.training.settings import Settings

    settings = Settings(
        label="y",
        objective="auc",
        epochs=EPOCHS,
        batch_size=BATCH_SIZE,
        patience=EPOCHS,
        schedule="constant",
        warmup_epochs=0.0,
        seed=1,
    )
    distribution = strategy.choose("auto")
    spec = {"x": tf.io.FixedLenFeature([COLUMNS], tf.float32), "y": tf.io.FixedLenFeature([1], tf.int64)}
    splits = [read([f"{rows}/*"], Decoder(spec, "y"), cache="memory", on_cpu=True) for _ in range(2)]
    assert all(split.examples for split in splits)  # loaded before the first step
    with distribution.strategy.scope():
        inputs = {"x": keras.Input((COLUMNS,), name="x")}
        hidden = inputs["x"]
        for _ in range(2):
            hidden = keras.layers.Dense(WIDTH, "relu")(hidden)
        model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
        model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    Fit(model, splits[0], splits[1], settings, distribution, seed=1, logs=logs).run()


def write(folder: Path) -> None:
    """Write rows of numbers, and a label that follows from them."""
    import numpy as np
    import tensorflow as tf

    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "rows")) as writer:
        for row in np.random.default_rng(1).normal(size=(EXAMPLES, COLUMNS)).astype("float32"):
            feature = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=row)),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(row[0] * row[1] > 0)])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def last(file: Path) -> float:
    """Read the examples a second of the last epoch."""
    with file.open() as lines:
        return float(list(csv.DictReader(lines))[-1]["examples_per_second"])


if __name__ == "__main__":
    sys.exit(main())
