"""Does a model of images wait for them? Our input pipeline against decoding alone, memory, and Keras' own.

    python benchmarks/images.py

JPEG files of 320 x 320 pixels, cut at random from the two photos that scikit-learn brings, are decoded to 128 x 128:

- images per second from the shards into memory, which is the first epoch, against decoding alone on all cores;
- images per second trained from memory, which are the later epochs, against one batch that is held;
- seconds of a whole training, against keras.utils.image_dataset_from_directory and fit with the same model and batches,
  as its documentation has it and with cache();
- memory of a process that trains on a set of ten times what it may keep, against one of twice as much: it is flat.

Pairs alternate; ratios are medians. What must be reached is in the last lines; exits 1 when it is not.
"""

import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from PIL import Image
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_sample_images

from pipeline.data.image_checks import facts_of
from pipeline.settings.image_data import Images
from pipeline.training import decode_image, input_pipeline, strategy
from pipeline.training.decoding import Decoder
from pipeline.training.input_pipeline import Split, read
from pipeline.training.loop import Fit
from pipeline.training.settings import Settings
from pipeline.training.steps import Steps
from pipeline.training.strategy import Part

IMAGES, FILE_SIZE, SIZE, BATCH, EPOCHS, PAIRS = 1600, 320, 128, 64, 4, 5
# All images so many times in a first epoch: its start, half a second for the graphs, counts as in one of ten seconds.
ROUNDS = 3
FIRST, LATER, AHEAD, GROWTH = 0.9, 0.95, 1.0, 1.1
LIMIT, TIMES = 64 << 20, 10
SPEC = {"image": tf.io.FixedLenFeature([1], tf.string), "photo": tf.io.FixedLenFeature([1], tf.int64)}
SETTINGS = Settings(
    label="photo",
    objective="loss",
    epochs=EPOCHS,
    batch_size=BATCH,
    patience=EPOCHS,
    schedule="constant",
    warmup_epochs=0.0,
    strategy="one_device",
    classes=("china", "flower"),
)


def main() -> int:
    """Prints the table; returns the exit code."""
    if sys.argv[1:2] == ["--memory-of"]:
        print(peak_memory(Path(sys.argv[2]), int(sys.argv[3])))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = write(folder)
        firsts = [(first_epoch(folder), decoded_alone(records)) for _ in range(PAIRS)]
        laters = later_epochs(folder)
        ours = [whole_training(folder) for _ in range(2)]
        plain = [with_keras(folder, cached=False) for _ in range(2)]
        cached = [with_keras(folder, cached=True) for _ in range(2)]
        smaller, larger = (memory_of(folder, times) for times in (2, TIMES))
    table = Table("", title="Images", title_justify="left")
    for column in ("ours", "other", "ratio", "must be"):
        table.add_column(column, justify="right")
    misses = []

    def row(text: str, mine: float, other: float, ratio: float, least: float, unit: str, at_most: bool = False) -> None:
        bound = f"{'at most' if at_most else 'at least'} {least:g}" if least else ""
        table.add_row(text, f"{mine:,.0f} {unit}", f"{other:,.0f} {unit}", f"{ratio:.2f}", bound)
        if least and (ratio > least if at_most else ratio < least):
            misses.append(f"{text}: {ratio:.2f}")

    for text, pairs, least in (
        ("first epoch / decoding alone", firsts, FIRST),
        ("later epochs / one batch held", laters, LATER),
    ):
        mine, other = map(statistics.median, zip(*pairs, strict=True))
        row(text, mine, other, statistics.median(mine / other for mine, other in pairs), least, "images/s")
    row("image_dataset_from_directory / whole training", min(ours), min(plain), min(plain) / min(ours), AHEAD, "s")
    row("the same with cache() / whole training", min(ours), min(cached), min(cached) / min(ours), 0, "s")
    row("memory, set of ten times the limit / twice", larger, smaller, larger / smaller, GROWTH, "MB", True)
    console = Console(width=120)
    console.print(table)
    console.print(photo_costs())
    console.print("reached" if not misses else f"falls short: {'; '.join(misses)}")
    return 1 if misses else 0


def photo_costs() -> Table:
    """Return what one core does with a whole photo, for docs/images.md."""
    stream = io.BytesIO()
    Image.fromarray(load_sample_images().images[0]).save(stream, "JPEG", quality=95)
    photo = stream.getvalue()
    graph = tf.function(lambda encoded: decode_image(encoded, 224, 224), [tf.TensorSpec([], tf.string)])
    table = Table("", title=f"A photo of 640 x 427 pixels, {len(photo) / 1e3:.0f} KB", title_justify="left")
    table.add_column("ms of one core", justify="right")
    works = {
        "facts and check (ExampleGen)": lambda: facts_of(photo, Images()),
        "decode to 224 x 224 (training)": lambda: graph(tf.constant(photo)),
    }
    for text, work in works.items():
        work()
        started = time.process_time()
        for _ in range(100):
            work()
        table.add_row(text, f"{10 * (time.process_time() - started):.1f}")
    return table


def write(folder: Path) -> list[bytes]:
    """Write the images as shards and as a folder for each class; returns the files' contents."""
    photos = load_sample_images().images
    random = np.random.default_rng(1)
    contents, labels = [], []
    for number in range(IMAGES):
        photo = photos[number % 2]
        top, left = (random.integers(0, extent - FILE_SIZE) for extent in photo.shape[:2])
        stream = io.BytesIO()
        Image.fromarray(photo[top : top + FILE_SIZE, left : left + FILE_SIZE]).save(stream, "JPEG", quality=90)
        contents.append(stream.getvalue())
        labels.append(number % 2)
        path = folder / "images" / SETTINGS.classes[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[-1])
    (folder / "shards").mkdir()
    for shard in range(4):
        with tf.io.TFRecordWriter(str(folder / f"shards/{shard}")) as writer:
            for content, label in list(zip(contents, labels, strict=True))[shard::4]:
                features = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                    "photo": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return contents


def decode(features):
    """JPEG → pixels."""
    return {"image": decode_image(features["image"], SIZE, SIZE)}


def open_split(folder: Path, cache: str = "memory", pattern: str = "shards/*", rounds: int = 1) -> Split:
    """Open the shards as ``training.run`` does on a CPU, each so many times."""
    decoder = Decoder(SPEC, "photo", decode)
    files = rounds * [str(folder / pattern)]
    return read(files, decoder, classes=2, cache=cache, on_cpu=True, scratch=str(folder))


def decoded_alone(contents: list[bytes]) -> float:
    """Images per second that all cores decode when nothing else is to do."""
    images = tf.data.Dataset.from_tensor_slices(contents).repeat(ROUNDS)
    decoded = images.map(lambda one: decode_image(one, SIZE, SIZE), tf.data.AUTOTUNE, deterministic=False).batch(BATCH)
    started = time.perf_counter()
    for _ in decoded:
        pass
    return ROUNDS * len(contents) / (time.perf_counter() - started)


def first_epoch(folder: Path) -> float:
    """Images per second from the shards into memory."""
    started = time.perf_counter()
    examples = open_split(folder, rounds=ROUNDS).examples
    return examples / (time.perf_counter() - started)


def build_model() -> keras.Model:
    """A small convolutional network, so that feeding it counts."""
    keras.utils.set_random_seed(1)
    inputs = {"image": keras.Input((SIZE, SIZE, 3), dtype="uint8", name="image")}
    hidden = keras.layers.Rescaling(1 / 255)(inputs["image"])
    for filters in (16, 32, 64):
        hidden = keras.layers.Conv2D(filters, 3, 2, activation="relu")(hidden)
    hidden = keras.layers.GlobalAveragePooling2D()(hidden)
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def later_epochs(folder: Path) -> list[tuple[float, float]]:
    """Pairs of images per second trained from memory, and from one batch that is held."""
    distribution = strategy.choose("one_device")
    with distribution.strategy.scope():
        model = build_model()
        model.optimizer.build(model.trainable_variables)
    split = open_split(folder)
    # The packed rows of one batch, copied, as if the next one had been ready all the time.
    other = open_split(folder)
    other.rows.matrix.assign(other.rows.matrix[:BATCH])  # type: ignore[attr-defined]
    held = tf.data.Dataset.from_tensors(tf.tile(tf.range(BATCH)[tf.newaxis], [32, 1])).repeat()
    steps = IMAGES // BATCH
    feeds = []
    for rows, chunks in ((split.rows, split.training(BATCH, Part(), 1)), (other.rows, held)):
        feed = Steps(model, rows, distribution, Settings(**{**vars(SETTINGS), "steps_per_call": steps}))
        feed.feed(chunks)
        feeds.append(feed)
    pairs = []
    for _ in range(2 * PAIRS):
        measured = []
        for feed in feeds:
            started = time.perf_counter()
            feed.train(steps)
            measured.append(steps * BATCH / (time.perf_counter() - started))
        pairs.append((measured[0], measured[1]))
    return pairs[2:]


def whole_training(folder: Path) -> float:
    """Seconds of a training by our loop, loading and compiling included."""
    started = time.perf_counter()
    fit(folder, open_split(folder))
    return time.perf_counter() - started


def fit(folder: Path, split: Split, epochs: int = EPOCHS) -> None:
    """Trains on a split; judges on a few images, as Keras does below."""
    distribution = strategy.choose("one_device")
    with distribution.strategy.scope():
        model = build_model()
    Fit(model, split, split, Settings(**{**vars(SETTINGS), "epochs": epochs}), distribution, seed=1).run()


def with_keras(folder: Path, cached: bool) -> float:
    """Seconds of a training by Keras."""
    started = time.perf_counter()
    images = keras.utils.image_dataset_from_directory(
        folder / "images", image_size=(SIZE, SIZE), batch_size=BATCH, seed=1, verbose=False
    )
    images = images.map(lambda pixels, label: ({"image": tf.cast(pixels, tf.uint8)}, label))
    if cached:
        images = images.cache()
    build_model().fit(images, epochs=EPOCHS, validation_data=images, verbose=0)
    return time.perf_counter() - started


def memory_of(folder: Path, times: int) -> float:
    """Peak megabytes of a process of its own."""
    command = [sys.executable, __file__, "--memory-of", str(folder), str(times)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def peak_memory(folder: Path, copies: int) -> float:
    """Trains on images of so many times the limit, which are streamed; returns the peak in MB."""
    input_pipeline.BYTES_SHUFFLED = LIMIT
    (folder / "many").mkdir(exist_ok=True)
    source = tf.data.TFRecordDataset([str(folder / "shards/0")])
    share = LIMIT // (SIZE * SIZE * 3)
    for copy in range(TIMES):
        path = folder / f"many/{copy}"
        path.unlink(missing_ok=True)
        if copy < copies:
            with tf.io.TFRecordWriter(str(path)) as writer:
                for record in source.repeat().take(share):
                    writer.write(record.numpy())
    fit(folder, open_split(folder, "none", "many/*"), epochs=2)
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
