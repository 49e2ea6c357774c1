"""In training, a row that weighs 2 is a row that is there twice."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from pipeline.training import strategy, tabular
from pipeline.training.decoding import Decoder
from pipeline.training.ensemble import WEIGHTS, balanced, class_weights_of, most_even
from pipeline.training.errors import TrainingError
from pipeline.training.features import Features
from pipeline.training.input_pipeline import Split, read
from pipeline.training.loop import Fit
from pipeline.training.settings import Settings
from tests.training.records import SETTINGS, SPEC, ensemble_of, functional

pytestmark = pytest.mark.slow

ONE_DEVICE = strategy.choose("one_device")
WEIGHED = Decoder({**SPEC, "w": tf.io.FixedLenFeature([1], tf.float32)}, "y", weight="w")
PLAIN = Decoder(SPEC, "y")
RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(240, 2)).astype(np.float32)
Y = (X[:, 0] + RANDOM.normal(size=240) > 0).astype(int)
W = np.where(Y == 1, 3, RANDOM.integers(0, 3, 240))


def write(file: Path, x: np.ndarray, y: np.ndarray, w: np.ndarray | None = None) -> str:
    with tf.io.TFRecordWriter(str(file)) as writer:
        for row in range(len(x)):
            features = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=x[row])),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[y[row]])),
            }
            if w is not None:
                features["w"] = tf.train.Feature(float_list=tf.train.FloatList(value=[w[row]]))
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return str(file)


@pytest.fixture
def weighed(tmp_path: Path) -> list[Split]:
    """Train and eval with weights, over the mean of train as Transform writes them."""
    part = slice(0, 120), slice(120, 240)
    mean = W[part[0]].mean()
    files = [write(tmp_path / f"{at.start}", X[at], Y[at], W[at] / mean) for at in part]
    return [read([file], WEIGHED, classes=2, cache="memory", on_cpu=True) for file in files]


@pytest.fixture
def repeated(tmp_path: Path) -> list[Split]:
    """The same rows, each as often as it weighs."""
    part = slice(0, 120), slice(120, 240)
    files = [
        write(tmp_path / f"r{at.start}", *(np.repeat(values[at], W[at], axis=0) for values in (X, Y))) for at in part
    ]
    return [read([file], PLAIN, classes=2, cache="memory", on_cpu=True) for file in files]


def network(committee: bool, metrics: str) -> keras.Model:
    keras.utils.set_random_seed(1)
    with ONE_DEVICE.strategy.scope():
        model = functional()
        if committee:
            inputs = {"x": keras.Input((2,), name="x")}
            hidden = tabular.SharedDense(4, 8, "relu")(inputs["x"])
            model = tabular.Committee(inputs, tabular.MemberDense(4, 1, "sigmoid")(hidden))
        given = {metrics: [keras.metrics.AUC(name="auc"), keras.metrics.BinaryAccuracy(name="accuracy")]}
        model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", **given)
    return model


def settings(rows: int, **changes) -> Settings:
    return dataclasses.replace(SETTINGS, epochs=3, batch_size=rows, steps_per_call=1, **changes)


@pytest.mark.parametrize(
    ("parts", "committee"),
    [(2, True), (1, False), *(pytest.param(*other, marks=pytest.mark.long) for other in ((1, True), (2, False)))],
)
def test_full_batches_learn_and_measure_the_same(weighed, repeated, committee, parts):
    found = {}
    for name, splits, metrics in (("weighed", weighed, "weighted_metrics"), ("repeated", repeated, "metrics")):
        model = network(committee, metrics)
        rows = splits[0].examples
        size = rows // parts if name == "weighed" else rows
        accumulate = parts if name == "weighed" else 1
        weight = "w" if name == "weighed" else None
        history = Fit(model, *splits, settings(size, accumulate=accumulate, weight=weight), ONE_DEVICE, seed=1).run()
        found[name] = (history, model.get_weights())
    (history, learnt), (expected, right) = found.values()
    for name in ("loss", "val_loss", "auc", "val_auc", "accuracy", "val_accuracy"):
        assert history[name] == pytest.approx(expected[name], rel=1e-5), name
    for one, other in zip(learnt, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_evaluation_in_batches_gives_the_weighted_mean_of_the_whole(weighed):
    model = network(False, "weighted_metrics")
    losses = []
    for size in (120, 50):
        fit = Fit(model, *weighed, settings(size, weight="w"), ONE_DEVICE, seed=1)
        losses.append(fit._evaluate_split()["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_metrics_that_keras_would_not_weigh_are_refused(weighed):
    with pytest.raises(TrainingError, match=r"compile them as weighted_metrics=\[...\]"):
        Fit(network(True, "metrics"), *weighed, settings(40, weight="w"), ONE_DEVICE, seed=1)


def test_trees_and_what_members_lose_follow_the_weights(weighed, repeated):
    features = Features(numbers={"x": 2}, categories={})
    trees = settings(40, members="trees", classes=("no", "yes"))
    of_weighed = ensemble_of(None, WEIGHED, features, *weighed, dataclasses.replace(trees, weight="w"))
    of_repeated = ensemble_of(None, PLAIN, features, *repeated, trees)
    values = {"x": tf.constant(X)}
    share = np.average(Y, weights=W)
    for one in (of_weighed, of_repeated):
        assert np.average(one.trees(values)[:, 0], weights=W) == pytest.approx(share, abs=0.05)
    assert np.mean(Y) < share - 0.15
    # What is said to be lost on eval is of its weighed rows, their classes as frequent as in train.
    train, judged = (np.bincount(Y[at], W[at]) / W[at].sum() for at in (slice(0, 120), slice(120, 240)))
    counted = W[120:] * (train / judged)[Y[120:]]
    loss = log_loss(Y[120:], of_weighed.trees({"x": tf.constant(X[120:])})[:, 0], sample_weight=counted)
    assert float(of_weighed.found.split()[1]) == pytest.approx(loss, rel=1e-3)
    assert float(of_weighed.found.split()[1]) != pytest.approx(
        log_loss(Y[120:], of_weighed.trees({"x": tf.constant(X[120:])})[:, 0]), rel=0.02
    )


def test_the_members_weights_are_those_of_repeated_rows_and_no_surer_for_weights_in_another_unit():
    noise = RANDOM.normal(size=500)
    losses = np.stack([1 + (1 - part) * (0.3 + noise) for part in WEIGHTS])
    assert most_even(losses, np.full(500, 7.0)) == pytest.approx(most_even(losses))
    rows = RANDOM.permutation(500) < 100
    assert most_even(losses, rows * 1.0) == pytest.approx(most_even(losses[:, rows]))


RARE = (X[:, 0] + 0.5 * RANDOM.normal(size=240) > 1).astype(int)


@pytest.fixture
def rare(tmp_path: Path) -> list[Split]:
    """Rows of which few are of the second class."""
    files = [write(tmp_path / f"{at}", X[at : at + 120], RARE[at : at + 120]) for at in (0, 120)]
    return [read([file], PLAIN, classes=2, cache="memory", on_cpu=True) for file in files]


def test_balanced_weights_are_scikit_learns_and_of_rows_with_weights_those_of_repeated_rows(weighed):
    expected = compute_class_weight("balanced", classes=np.arange(2), y=RARE)
    np.testing.assert_allclose(balanced(np.bincount(RARE)), expected)
    repeated = compute_class_weight("balanced", classes=np.arange(2), y=np.repeat(Y[:120], W[:120]))
    np.testing.assert_allclose(balanced(np.bincount(Y[:120].astype(int), W[:120] / 7)), repeated)
    np.testing.assert_allclose(class_weights_of(weighed[0], 2), repeated, rtol=1e-6)
    assert balanced(np.array([1, 0, 2, 0])).tolist() == [3 / 4, 1, 3 / 8, 1]


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.long), 2])
def test_balanced_changes_the_loss_as_weights_of_the_classes_do_and_no_metric(rare, tmp_path, accumulate):
    of_class = balanced(np.bincount(RARE[:120]))
    files = [
        write(tmp_path / f"w{at}", X[at : at + 120], RARE[at : at + 120], of_class[RARE[at : at + 120]])
        for at in (0, 120)
    ]
    weighed = [read([file], WEIGHED, classes=2, cache="memory", on_cpu=True) for file in files]
    models = network(True, "metrics"), network(True, "weighted_metrics")
    given = settings(60 // accumulate, accumulate=accumulate)
    changed = dataclasses.replace(given, class_weight="balanced", classes=("no", "yes"))
    found = Fit(models[0], *rare, changed, ONE_DEVICE, seed=1).run()
    expected = Fit(models[1], *weighed, dataclasses.replace(given, weight="w"), ONE_DEVICE, seed=1).run()
    for name in ("loss", "val_loss"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)
    for one, other in zip(models[0].get_weights(), models[1].get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    answers = models[0].predict({"x": X[120:]}, verbose=0)[:, 0]
    assert found["val_accuracy"][-1] == pytest.approx(np.mean((answers > 0.5) == RARE[120:]))
    assert found["val_accuracy"] != expected["val_accuracy"]


def test_labels_that_augment_makes_soft_count_as_the_classes_that_they_were(rare):
    losses = []
    for soften in (None, lambda features, label: (features, tf.cast(label, tf.float32) * 0.98 + 0.01)):
        changed = settings(120, class_weight="balanced", classes=("no", "yes"))
        losses.append(
            Fit(network(False, "metrics"), *rare, changed, ONE_DEVICE, seed=1, augment=soften).run()["loss"][0]
        )
    assert losses[0] == pytest.approx(losses[1], rel=0.03)


def test_trees_see_each_class_as_often(rare):
    trees = settings(40, members="trees", classes=("no", "yes"))
    features = Features(numbers={"x": 2}, categories={})
    found = ensemble_of(None, PLAIN, features, *rare, dataclasses.replace(trees, class_weight="balanced"))
    plain = ensemble_of(None, PLAIN, features, *rare, trees)
    train = {"x": tf.constant(X[:120])}
    weights = compute_sample_weight("balanced", RARE[:120])
    assert np.average(found.trees(train)[:, 0], weights=weights) == pytest.approx(0.5, abs=0.03)
    assert np.mean(plain.trees(train)[:, 0]) == pytest.approx(RARE[:120].mean(), abs=0.03)
    assert RARE[:120].mean() < 0.3
