"""Does the model wait for its examples? Our input pipeline against examples held in memory, and against TFX's own.

    python benchmarks/input_pipeline.py

On the transformed flights of the last ``make run``, a small network (embeddings of 8, layers of 64 and 32) is trained

- by our loop from the real TFRecord shards,
- by our loop from one batch held in memory, which is as fast as it can be fed,
- by Keras' ``Model.fit`` from the ``tf_dataset_factory`` that TFX hands to a ``run_fn``.

The first two alternate, first epochs whole, later ones by halves and with several models, because where its buffers
happen to lie makes one compiled step up to a tenth faster than another. Ratios are medians over the pairs. The time of
a first epoch starts when the step is compiled, and counts the waiting for data that is still being loaded by then. What
must be reached is in the last lines; exits 1 when it is not.
"""

import dataclasses
import logging
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
import tensorflow_transform as tft
from rich.console import Console
from rich.table import Table
from tfx.components.util import examples_utils, tfxio_utils
from tfx.proto import example_gen_pb2
from tfx.types import standard_artifacts
from tfx_bsl.public import tfxio

from pipeline.training import Features, strategy
from pipeline.training.decoding import Decoder
from pipeline.training.input_pipeline import Split, read
from pipeline.training.loop import Fit
from pipeline.training.rows import Rows
from pipeline.training.settings import Settings
from pipeline.training.steps import Steps
from pipeline.training.strategy import Part

ROOT = Path(__file__).resolve().parent.parent
LABEL = "late"
BATCH_SIZES = (512, 2048, 4096)
PAIRS = 5
MODELS, ROUNDS = 10, 3
FIRST_EPOCH, LATER_EPOCHS = 0.7, 0.95
TIMES_TFX = {512: 6.0, 4096: 10.0}
SETTINGS = Settings(
    label=LABEL,
    objective="auc",
    epochs=1,
    batch_size=0,
    patience=1,
    schedule="constant",
    warmup_epochs=0.0,
    strategy="one_device",
    seed=1,
)


@dataclasses.dataclass
class OneBatch:
    """A split that gives the same batch again and again, for as many steps as the real one has examples for."""

    rows: Rows
    examples: int
    chunk: tf.Tensor
    cache: str = "memory"

    @classmethod
    def of(cls, split: Split, batch_size: int) -> "OneBatch":
        """Takes the first batch of a split whose batches are packed ahead: nothing is left to do for a step."""
        chunk = next(iter(split.training(batch_size, Part(), seed=1)))
        return cls(split.rows, split.examples, tf.repeat(chunk[:1], len(chunk), axis=0))

    def training(self, batch_size: int, part: Part, seed: int, first_step: int = 0) -> tf.data.Dataset:
        """The batch, endlessly."""
        return tf.data.Dataset.from_tensors(self.chunk).repeat()


def main() -> int:
    """Prints the table; returns the exit code."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    transforms = sorted((ROOT / "output/flights/artifacts/Transform/transform_graph").glob("[0-9]*"), key=_number)
    if not transforms:
        sys.exit("no transformed flights: make run first")
    transform_output = tft.TFTransformOutput(str(transforms[-1]))
    examples = transforms[-1].parent.parent / "transformed_examples" / transforms[-1].name
    table = Table("batch", title="Examples per second, in thousands", title_justify="left")
    for column in ("memory", "first epoch", "ratio", "later epochs", "ratio", "TFX and fit", "later epochs / TFX"):
        table.add_column(column, justify="right")
    misses = []
    for batch_size in BATCH_SIZES:
        data = open_split(transform_output, examples)
        held = OneBatch.of(open_split(transform_output, examples, on_cpu=False), batch_size)
        firsts = [
            (
                first_epoch(transform_output, examples, batch_size),
                first_epoch(transform_output, examples, batch_size, held),
            )
            for _ in range(PAIRS)
        ]
        laters = later_epochs(transform_output, data, held, batch_size)
        theirs = train_with_tfx(transform_output, examples, batch_size)
        ratio_first = statistics.median(fed / memory for fed, memory in firsts)
        ratio_later = statistics.median(fed / memory for fed, memory in laters)
        first, _ = map(statistics.median, zip(*firsts, strict=True))
        later, memory = map(statistics.median, zip(*laters, strict=True))
        times = later / theirs
        table.add_row(
            f"{batch_size:,}",
            f"{memory / 1000:.0f}",
            f"{first / 1000:.0f}",
            f"{ratio_first:.2f}",
            f"{later / 1000:.0f}",
            f"{ratio_later:.2f}",
            f"{theirs / 1000:.0f}",
            f"{times:.1f}",
        )
        if ratio_first < FIRST_EPOCH:
            misses.append(f"batch {batch_size}: first epoch {ratio_first:.2f}, must be {FIRST_EPOCH}")
        if ratio_later < LATER_EPOCHS:
            misses.append(f"batch {batch_size}: later epochs {ratio_later:.2f}, must be {LATER_EPOCHS}")
        if times < TIMES_TFX.get(batch_size, 0):
            misses.append(f"batch {batch_size}: {times:.1f} times TFX, must be {TIMES_TFX[batch_size]}")
    console = Console()
    console.print(table)
    console.print(
        f"must reach: {FIRST_EPOCH} of memory in the first epoch and {LATER_EPOCHS} in the later ones; "
        + ", ".join(f"{times:g} times TFX's at batch {size}" for size, times in TIMES_TFX.items())
        + f": {'falls short: ' + '; '.join(misses) if misses else 'reached'}"
    )
    return 1 if misses else 0


def build_model(features: Features) -> keras.Model:
    """A small network, so that feeding it is what counts."""
    inputs = features.inputs()
    parts = [inputs[name] for name in features.numbers]
    for name, size in features.categories.items():
        parts.append(keras.layers.Flatten()(keras.layers.Embedding(size, 8)(inputs[name])))
    hidden = keras.layers.Concatenate()(parts)
    for width in (64, 32):
        hidden = keras.layers.Dense(width, "relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return model


def open_split(
    transform_output: tft.TFTransformOutput, examples: Path, name: str = "train", on_cpu: bool = True
) -> Split:
    """A split of the real shards, as ``training.run`` opens it on a CPU."""
    spec = transform_output.transformed_feature_spec()
    return read([f"{examples}/Split-{name}/*"], Decoder(spec, LABEL), classes=2, on_cpu=on_cpu)


def first_epoch(
    transform_output: tft.TFTransformOutput, examples: Path, batch_size: int, held: OneBatch | None = None
) -> float:
    """Examples per second in the first epoch of a training, from the shards or from a batch that is held in memory."""
    distribution = strategy.choose("one_device")
    split: Any = held or open_split(transform_output, examples)
    evaluate = open_split(transform_output, examples, "eval")
    with distribution.strategy.scope():
        model = build_model(Features.of(transform_output, LABEL))
    settings = dataclasses.replace(SETTINGS, batch_size=batch_size)
    return Fit(model, split, evaluate, settings, distribution, seed=1).run()["examples_per_second"][0]


def later_epochs(
    transform_output: tft.TFTransformOutput, data: Split, held: OneBatch, batch_size: int
) -> list[tuple[float, float]]:
    """Pairs of examples per second, from the shards and from memory, in turn, with several models."""
    return [pair for _ in range(MODELS) for pair in _pairs(transform_output, data, held, batch_size)]


def _pairs(
    transform_output: tft.TFTransformOutput, data: Split, held: OneBatch, batch_size: int
) -> list[tuple[float, float]]:
    distribution = strategy.choose("one_device")
    count = data.examples // batch_size // 2
    with distribution.strategy.scope():
        model = build_model(Features.of(transform_output, LABEL))
        model.optimizer.build(model.trainable_variables)
    feeds = []
    settings = dataclasses.replace(SETTINGS, schedule="constant", warmup_epochs=0.0, epochs=1, steps_per_call=count)
    for split in (data, held):
        feed = Steps(model, split.rows, distribution, settings)
        feed.feed(split.training(batch_size, Part(), seed=1))
        feeds.append(feed)
    rates: list[tuple[float, float]] = []
    for turn in range(2 * ROUNDS + 2):
        measured = []
        for feed in feeds if turn % 2 else feeds[::-1]:
            started = time.perf_counter()
            feed.train(count)
            measured.append(count * batch_size / (time.perf_counter() - started))
        fed, memory = measured if turn % 2 else measured[::-1]
        rates.append((fed, memory))
    return rates[2:]  # the first epoch


def train_with_tfx(transform_output: tft.TFTransformOutput, examples: Path, batch_size: int) -> float:
    """Examples per second of ``Model.fit`` on the dataset that TFX makes, in the second epoch."""
    artifact = standard_artifacts.Examples()
    examples_utils.set_payload_format(artifact, example_gen_pb2.FORMAT_TF_EXAMPLE)
    batches = tfxio_utils.get_tf_dataset_factory_from_artifact([artifact], [])(
        [f"{examples}/Split-train/*"],
        tfxio.TensorFlowDatasetOptions(batch_size=batch_size, label_key=LABEL),
        transform_output.transformed_metadata.schema,
    ).repeat()
    rows = read([f"{examples}/Split-train/*"], Decoder(transform_output.transformed_feature_spec(), LABEL)).examples
    steps = rows // batch_size
    model = build_model(Features.of(transform_output, LABEL))
    ends = []
    model.fit(
        batches,
        steps_per_epoch=steps,
        epochs=2,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: ends.append(time.perf_counter()))],
    )
    return steps * batch_size / (ends[1] - ends[0])


def _number(path: Path) -> int:
    return int(path.name)


if __name__ == "__main__":
    sys.exit(main())
