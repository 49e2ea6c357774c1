"""A column of weights, from `new --weight` to the gates, on a public table."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from sklearn.datasets import load_diabetes

from tests.e2e.run import call, copy_repository

pytestmark = [pytest.mark.slow, pytest.mark.long]
SURE = """
from dataclasses import replace

CONFIG = replace(CONFIG, evaluation=replace(CONFIG.evaluation, coverage=0.8))
"""


def said(clone: Path, *command: str) -> str:
    done = call(clone, *command)
    assert done.code == 0, done.text
    return done.text


def test_a_weight_counts_in_the_test_metric_as_often_as_the_row_was_there_and_nobody_is_asked_for_it(tmp_path: Path):
    clone = copy_repository(tmp_path / "clone")
    frame = load_diabetes(as_frame=True, scaled=False).frame
    # Weights that go with the label: without them, all metrics are others.
    frame["visits"] = np.where(frame["target"] > 200, 4, np.where(frame["s5"] > 4.6, 1, 2))
    frame.to_csv(clone / "data/diabetes.csv", index=False)

    made = said(
        clone,
        *("-m", "pipeline", "new", "diabetes", "--data", "data/diabetes.csv", "--label", "target"),
        *("--weight", "visits"),
    )
    assert "visits: 1 to 4" in made
    with (clone / "configs/diabetes.py").open("a") as config:
        config.write(SURE)
    ran = said(clone, "local_runner.py", "--pipeline", "diabetes", "--tuning", "off")

    verdict = json.loads((clone / "output/diabetes/verdict.json").read_text())
    examples = next((clone / "output/diabetes/artifacts/ExampleGen/examples").iterdir())
    files = sorted(map(str, examples.glob("Split-test/*")))
    records = [record.numpy() for record in tf.data.TFRecordDataset(files, "GZIP")]
    rows = [tf.train.Example.FromString(record).features.feature for record in records]
    weights, labels = (np.array([row[name].float_list.value[0] for row in rows]) for name in ("visits", "target"))
    model = tf.saved_model.load(str(clone / verdict["pushed_to"]))
    answers = model.signatures["predict"](tf.constant(records))["prediction"].numpy()
    repeated = np.repeat(np.square(answers - labels), weights.astype(int))
    assert verdict["metrics"]["rmse"] == pytest.approx(np.sqrt(repeated.mean()), rel=1e-4)
    assert verdict["metrics"]["rmse"] != pytest.approx(np.sqrt(np.square(answers - labels).mean()), rel=0.01)
    assert verdict["metrics"]["example_count"] == len(rows)

    # Intervals hold for rows, whatever these weigh.
    served = {name: values.numpy() for name, values in model.signatures["predict"](tf.constant(records)).items()}
    within = (served["prediction_low"] <= labels) & (labels <= served["prediction_high"])
    assert f"note: intervals for 80 % of the rows: {100 * within.mean():.1f} % reached on test" in ran
    assert 60 < 100 * within.mean() < 95

    assert "visits" not in model.signatures["serving_default"].structured_input_signature[1]
    answered = said(
        clone,
        *("-m", "pipeline", "predict", "--config", "configs/diabetes.py", "--data", "data/diabetes.csv"),
        *("--to", "answers.parquet"),
    )
    assert "442 rows" in answered
    assert len(pd.read_parquet(clone / "answers.parquet")) == len(frame)
    (report,) = clone.glob("output/diabetes/runs/*/report.html")
    assert "Rows count by their visits" in report.read_text()
