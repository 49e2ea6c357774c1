"""Our pushed model of digits against scikit-learn's support vector classifier, on the same images of the test split.

    python benchmarks/digits.py

The model is the one that ``python local_runner.py --pipeline digits`` pushed last; it is asked through its SavedModel,
with the PNG files as they are. The rival gets the same pixels of the train split, once with the C and gamma that are
best on the eval split, by which ours stops early, and once with those that are best on the test split itself, which
ours has not seen. Exits 1 when ours is below the better one.
"""

import io
import itertools
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image
from rich.console import Console
from rich.table import Table
from sklearn.svm import SVC

from pipeline.data.tfrecord_files import read_records

OUTPUT = Path(__file__).resolve().parent.parent / "output/digits"
LABEL = "digit"
CS = (0.3, 1, 3, 10, 30, 100)
GAMMAS = (0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)  # pixels from 0 to 1


def main() -> int:
    """Print the table; return the exit code."""
    splits = {split: read(split) for split in ("train", "eval", "test")}
    images, labels = splits["test"]
    ours, version = ask_pushed_model(images, labels)
    scores = [
        (*(float(model.score(pixels(splits[split][0]), splits[split][1])) for split in ("eval", "test")), c, gamma)
        for c, gamma in itertools.product(CS, GAMMAS)
        for model in [fit(splits["train"], c, gamma)]
    ]
    table = Table("model", "accuracy", "wrong", title=f"{len(labels)} images of the test split", title_justify="left")
    rows = [(f"ours, pushed version {version}", ours)]
    for place, split in enumerate(("eval", "test")):
        best = max(scores, key=lambda score: score[place])
        rows.append((f"SVC best on {split}: C {best[2]:g}, gamma {best[3]:g}", best[1]))
    for name, value in rows:
        table.add_row(name, f"{value:.4f}", str(round((1 - value) * len(labels))))
    rival = rows[-1][1]
    console = Console()
    console.print(table)
    passed = ours >= rival
    console.print(f"must reach: ours at least the rival's {rival:.4f}: {'reached' if passed else 'misses its target'}")
    return 0 if passed else 1


def read(split: str) -> tuple[list[bytes], np.ndarray]:
    """Return the images of a split as the last run dealt them, and their digits [images]."""
    runs = sorted((OUTPUT / "artifacts/ExampleGen/examples").glob("[0-9]*"), key=lambda path: int(path.name))
    if not runs:
        sys.exit("no examples: python local_runner.py --pipeline digits first")
    images, labels = [], []
    for file in sorted((runs[-1] / f"Split-{split}").iterdir()):
        for block in read_records(str(file), 1000):
            for record in block:
                feature = tf.train.Example.FromString(bytes(record)).features.feature
                images.append(feature["image"].bytes_list.value[0])
                labels.append(feature[LABEL].int64_list.value[0])
    return images, np.array(labels)


def pixels(images: list[bytes]) -> np.ndarray:
    """Return pixels from 0 to 1, [images, pixels]."""
    return np.array([np.asarray(Image.open(io.BytesIO(image)).convert("L")).ravel() for image in images]) / 255


def fit(train: tuple[list[bytes], np.ndarray], c: float, gamma: float) -> SVC:
    """Return a classifier of the train split."""
    return SVC(C=c, gamma=gamma).fit(pixels(train[0]), train[1])


def ask_pushed_model(images: list[bytes], labels: np.ndarray) -> tuple[float, str]:
    """Return the accuracy of the model pushed last, and its version."""
    versions = sorted((OUTPUT / "serving/digits").glob("[0-9]*"), key=lambda path: int(path.name))
    if not versions:
        sys.exit("no pushed model: python local_runner.py --pipeline digits first")
    answers = tf.saved_model.load(str(versions[-1])).signatures["serving_default"](image=tf.constant(images))
    return float(np.mean(answers["label"].numpy().astype(int) == labels)), versions[-1].name


if __name__ == "__main__":
    sys.exit(main())
