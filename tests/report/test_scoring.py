"""Permutation importance, of a model that is a function of one feature."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.report.scoring import _importance


class Signature:
    """Answers the feature "x", or 0.5 where a row has none."""

    structured_input_signature = ((), {"examples": None})
    answers_logits = False

    def __call__(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = [tf.train.Example.FromString(record).features.feature for record in examples.numpy()]
        return {"probability": tf.constant([row["x"].float_list.value[0] if "x" in row else 0.5 for row in rows])}


@pytest.mark.slow
@pytest.mark.parametrize(("others", "repeats"), [(2, 3), (200, 1)])
def test_the_feature_that_decides_matters_and_no_other_however_many_there_are(others, repeats):
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 120).astype(float)
    rows = []
    for place, label in enumerate(labels):
        row = tf.train.Example()
        row.features.feature["y"].int64_list.value.append(int(label))
        if place % 10:  # a value may be missing
            row.features.feature["x"].float_list.value.append(label)
        for number in range(others):
            row.features.feature[f"other_{number}"].bytes_list.value.append(b"text %d" % place)
        rows.append(row)
        row.features.feature["unused"].float_list.value.append(label)
    taken = {"x", "y", *(f"other_{number}" for number in range(others))}
    scores = _importance(Signature(), [row.SerializeToString() for row in rows], labels, None, {"y"}, "binary", taken)
    assert scores["importance_repeats"] == repeats
    assert len(scores["importance"]) == others + 1
    assert next(iter(scores["importance"])) == "x"
    assert scores["importance"]["x"][0] > 0.3
    assert {loss for name, (loss, _) in scores["importance"].items() if name != "x"} == {0.0}
