"""Module files written for stock TFX run unchanged: one as its documentation writes them, and those it ships."""

import csv
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import palmerpenguins
import pandas as pd
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits
from tfx import examples

from tests.e2e.run import copy_repository, edit, run

pytestmark = pytest.mark.slow

SHIPPED = Path(examples.__path__[0])
TAXI_ROWS = 3_000


def test_a_stock_module_and_a_csv_file_run_unchanged(tmp_path: Path, few_flights: Path):
    clone = copy_repository(tmp_path / "clone")
    stock_module = clone / "models/stock.py"
    shutil.copy(Path(__file__).parent / "stock_module.py", stock_module)
    (clone / "configs/small.py").write_text(
        (clone / "configs/small.py").read_text()
        + 'CONFIG = replace(CONFIG, module="models/stock.py", schema=None, tuning=Tuning())\n'
    )
    flights = tmp_path / "flights.csv"
    pd.concat([pd.read_parquet(file) for file in sorted(few_flights.glob("*/*.parquet"))]).to_csv(flights, index=False)

    # Nothing has ever been searched there, so there are no best values to reuse.
    reuse = run(clone, "--data", flights, "--tuning", "reuse")
    assert reuse.code == 1
    assert "LastSearch failed: tuning mode 'reuse' found no earlier search in this output folder" in reuse.text

    first = run(clone, "--data", flights, preloaded=False)

    assert first.code == 0, first.text
    assert {"Tuner", "Trainer"} <= first.ran
    assert "ReviewedSchema" not in first.states
    model = tf.saved_model.load(str(clone / first.pushed_to))
    assert list(model.signatures) == ["serving_default"]
    splits = {path.name for path in (clone / "output/flights/artifacts/ExampleGen/examples/1").glob("Split-*")}
    assert splits == {"Split-train", "Split-eval", "Split-test"}
    log = (clone / f"output/flights/logs/{first.run_id}.log").read_text()
    assert "steps of 64 examples for" in log  # the module's own batch size
    assert "pipeline.progress.training: epoch 1 of 1" in log
    assert "pipeline.progress.search: trial 2 of 2" in log

    second = run(clone, "--data", flights)
    assert (second.code, second.ran) == (0, set()), second.text

    # Without the steps, Keras would go on for ever.
    edit(
        stock_module,
        "        train_dataset,\n        steps_per_epoch=fn_args.train_steps,\n",
        "        train_dataset,\n",
    )
    endless = run(clone, "--data", flights, "--tuning", "off", preloaded=False)
    assert endless.code == 1
    assert (
        "Trainer failed: Model.fit would never end: its training data repeats for ever and steps_per_epoch is not set; "
        "pass steps_per_epoch=fn_args.train_steps\n  at   models/stock.py, line "
    ) in endless.text
    assert (clone / first.pushed_to).is_dir()


def penguins(folder: Path) -> Path:
    """Measures and species as TFX's copy of the data has them: from 0 to 1, and 0, 1 or 2."""
    rows = palmerpenguins.load_penguins().dropna(subset=["bill_length_mm"])
    rows = rows.rename(columns=lambda name: name.replace("bill_", "culmen_"))
    measures = ["culmen_length_mm", "culmen_depth_mm", "flipper_length_mm", "body_mass_g"]
    rows[measures] = (rows[measures] - rows[measures].min()) / (rows[measures].max() - rows[measures].min())
    rows["species"] = rows["species"].astype("category").cat.codes
    # Of each a dozen that hardly differ: the module passes over its rows once, and after as few steps as there are of
    # 342, at the lower of its two learning rates, which its search without a seed may choose, chance decides.
    rows = rows.loc[rows.index.repeat(12)]
    rows[measures] += np.random.default_rng(0).normal(0, 0.002, (len(rows), len(measures)))
    rows[["species", *measures]].to_csv(folder / "penguins.csv", index=False)
    return folder / "penguins.csv"


def reviews(folder: Path) -> Path:
    """Texts of reviews and whether they praise."""
    shutil.copy(SHIPPED / "imdb/data/imdb_small_with_labels.txt", folder / "reviews.csv")
    return folder / "reviews.csv"


def trips(folder: Path) -> Path:
    """Some taxi trips and their tips."""
    with (SHIPPED / "chicago_taxi_pipeline/data/simple/data.csv").open() as file:
        (folder / "trips.csv").write_text("".join(line for _, line in zip(range(TAXI_ROWS + 1), file, strict=False)))
    return folder / "trips.csv"


def digits(folder: Path) -> Path:
    """Images of handwritten digits, 28 by 28, as TFX's example takes them."""
    found = load_digits()
    images = np.kron(found.images / 16 - 0.5, np.ones((3, 3)))  # of 8 by 8 pixels
    images = np.pad(images, ((0, 0), (2, 2), (2, 2)), constant_values=-0.5)
    with tf.io.TFRecordWriter(str(folder / "digits.tfrecord.gz"), "GZIP") as writer:
        for image, digit in zip(images, found.target, strict=True):
            example = tf.train.Example()
            example.features.feature["image_floats"].float_list.value.extend(image.reshape(-1))
            example.features.feature["image_class"].int64_list.value.append(int(digit))
            writer.write(example.SerializeToString())
    return folder / "digits.tfrecord.gz"


@pytest.mark.parametrize(
    ("module", "data", "settings", "outputs"),
    [
        pytest.param(
            "penguin/penguin_utils_keras.py",
            penguins,
            'Label("species", ("0", "1", "2")), evaluation=Evaluation((Gate("accuracy", 0.3),), logits=True)',
            3,
            marks=pytest.mark.long,
        ),
        pytest.param(
            "imdb/imdb_utils_native_keras.py",
            reviews,
            'Label("label"), evaluation=Evaluation((Gate("calibration", 0, max_drop=None),), logits=True)',
            1,
            marks=pytest.mark.long,
        ),
        pytest.param(
            "mnist/mnist_utils_native_keras.py",
            digits,
            'Label("image_class", tuple("0123456789")), evaluation=Evaluation((Gate("accuracy", 0.5),), logits=True)',
            10,
            marks=pytest.mark.long,
        ),
        pytest.param(
            "chicago_taxi_pipeline/taxi_utils.py",
            trips,
            'Label("tips", ()), evaluation=Evaluation((Gate("rmse", ceiling=9.0),))',
            1,
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_modules_that_tfx_ships_run_unchanged(
    module: str, data: Callable[[Path], Path], settings: str, outputs: int, tmp_path: Path
):
    clone = copy_repository(tmp_path / "clone")
    (clone / "data").mkdir(exist_ok=True)
    copy = clone / "models" / Path(module).name
    shutil.copy(SHIPPED / module, copy)
    rows = data(clone / "data")
    (clone / "configs/shipped.py").write_text(
        "from pipeline.config import Data, Evaluation, Gate, Label, PipelineConfig\n"
        f'CONFIG = PipelineConfig("shipped", Data("data/{rows.name}"), module="models/{copy.name}", label={settings})\n'
    )

    done = run(clone, config="configs/shipped.py", preloaded=False)

    assert done.code == 0, done.text
    assert ("Tuner" in done.ran) == ("tuner_fn" in copy.read_text())
    assert ("No Tuner: " in done.text) != ("Tuner" in done.ran)
    answers = clone / "answers.csv"
    predict = ["-m", "pipeline", "predict", "--config", "configs/shipped.py", "--data", rows, "--to", answers]
    asked = subprocess.run([sys.executable, *predict], cwd=clone, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr
    with answers.open() as file:
        header, *lines = csv.reader(file)
    assert len(lines) > 90
    assert len(header) == outputs
    assert np.isfinite(np.array(lines, float)).all()
