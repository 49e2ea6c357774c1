"""Trees beside a network: what the eval split says decides how much each counts."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.training.ensemble import WEIGHTS, answering, most_even, with_shares_of
from pipeline.training.errors import TrainingError
from pipeline.training.features import Features
from pipeline.training.input_pipeline import read
from pipeline.training.trees import Columns
from tests.training.processes import cluster, finish, logs, run, start
from tests.training.records import DECODER, SETTINGS, ensemble_of, write

FEATURES = Features(numbers={"x": 2}, categories={})
BOTH = dataclasses.replace(SETTINGS, members="both", classes=("no", "yes"))


@pytest.fixture
def splits(tmp_path):
    return [read([write(tmp_path / name, 400, seed=seed)], DECODER) for name, seed in (("train", 1), ("eval", 2))]


def network(weight: float) -> keras.Model:
    """Answers by whether the first number is above 0, the surer the larger the weight: right of the records' label."""
    inputs = {"x": keras.Input((2,), name="x")}
    answer = keras.layers.Dense(1, "sigmoid", use_bias=False)
    model = keras.Model(inputs, answer(inputs["x"]))
    answer.set_weights([np.array([[weight], [0.0]], np.float32)])
    return model


@pytest.mark.slow
def test_trees_count_for_nearly_all_beside_a_network_that_is_wrong(splits):
    ensemble = ensemble_of(network(-5.0), DECODER, FEATURES, *splits, BOTH)
    assert ensemble.weight > 0.85  # 400 rows of the eval split


@pytest.mark.slow
def test_a_network_that_is_right_is_left_alone_or_nearly(splits):
    ensemble = ensemble_of(network(1000.0), DECODER, FEATURES, *splits, BOTH)
    assert ensemble is None or ensemble.weight < 0.15


@pytest.mark.parametrize(("rows", "weight"), [(40, 0.5), (200_000, 0.95)])
def test_only_what_is_no_chance_moves_the_weights_from_a_half(rows, weight):
    # The more trees count the less is lost, by a hundredth of what the rows differ by.
    noise = np.random.default_rng(1).normal(size=rows)
    losses = np.stack([1 + (1 - part) * (0.01 + noise) for part in WEIGHTS])
    assert most_even(losses) == pytest.approx(weight, abs=0.051)


def test_a_few_rows_that_one_member_knows_perfectly_do_not_silence_the_other():
    losses = np.stack([(1 - part) * np.full(65, 0.01) for part in WEIGHTS])
    assert 0.5 < most_even(losses) < 0.75
    assert most_even(np.repeat(losses, 200, axis=1)) > 0.98


def test_rows_of_the_eval_split_count_as_often_as_their_class_stands_in_the_train_split():
    train, labels = np.repeat([0, 1, 2], [60, 30, 10]), np.repeat([0, 1], [9, 1])
    weights = with_shares_of(train, None, labels, None)
    np.testing.assert_allclose(weights, [0.6 / 0.9] * 9 + [0.3 / 0.1])
    np.testing.assert_allclose(with_shares_of(labels, None, labels, None), 1.0)
    # A row of weight 3 is three rows, in either split.
    thrice = np.where(labels == 1, 3.0, 1.0)
    weights = with_shares_of(train, None, labels, thrice)
    assert weights[-1] / weights.sum() == pytest.approx(0.3 / (0.6 + 0.3))
    # Of two members that rank rows alike, the one that answers the shares of the train split is not taken for worse.
    knows_shares, knows_eval = np.full(10, 0.3), np.full(10, 0.1)
    by_member = [-(weights * np.log(np.where(labels == 1, p, 1 - p))).mean() for p in (knows_shares, knows_eval)]
    assert by_member[0] < by_member[1]


@pytest.mark.slow
def test_both_answer_with_the_weighted_mean(splits):
    model = network(0.3)
    ensemble = ensemble_of(model, DECODER, FEATURES, *splits, BOTH)
    features = {"x": tf.constant([[0.2, 1.0], [-0.4, 2.0], [3.0, 3.0]])}
    ensemble.weight = 0.25
    expected = 0.25 * ensemble.trees(features) + 0.75 * model(features)
    np.testing.assert_allclose(answering(model, DECODER, ensemble)(features), expected, rtol=1e-6)


@pytest.mark.slow
def test_trees_alone_do_not_ask_the_network(splits):
    ensemble = ensemble_of(network(1.0), DECODER, FEATURES, *splits, dataclasses.replace(BOTH, members="trees"))
    answers = answering(None, DECODER, ensemble)({"x": tf.constant([[2.0, 1.0], [-2.0, 1.0]])})
    assert answers[0, 0] > 0.9 > 0.1 > answers[1, 0]


def test_trees_do_not_get_what_they_are_to_do_without():
    features = Features(numbers={"x": 2, "y": 1}, categories={"day": 9, "dest": 5}, places={"dest": 2})
    assert Columns(features.without(("day", "y"))).names == ["dest", "x"]
    assert features.without(()) == features
    assert features.without(("derived_no_more",)) == features


def test_lists_alone_are_nothing_for_trees(splits):
    lists = Features(numbers={}, categories={"x": 9}, padded=frozenset({"x"}))
    assert ensemble_of(network(1.0), DECODER, lists, *splits, BOTH) is None
    with pytest.raises(TrainingError, match='training.members is "trees", and the model has no numbers and no categ'):
        ensemble_of(network(1.0), DECODER, lists, *splits, dataclasses.replace(BOTH, members="trees"))


def test_a_class_without_a_train_row_is_said(splits):
    three = dataclasses.replace(BOTH, members="trees", classes=("a", "b", "c"))
    with pytest.raises(TrainingError, match="a class has no row in the train split"):
        ensemble_of(network(1.0), DECODER, FEATURES, *splits, three)


def served(folder, rows: int = 3) -> np.ndarray:
    """Return the exported model's answers to rows without anything, each of their own number."""
    signature = tf.saved_model.load(str(folder / "serving")).signatures["serving_default"]
    columns = {
        name: tf.fill([rows], "") if spec.dtype == tf.string else tf.cast(tf.range(rows), spec.dtype)
        for name, spec in signature.structured_input_signature[1].items()
    }
    return signature(**columns)["probability"].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("members", ["both", pytest.param("trees", marks=pytest.mark.long)])
def test_a_training_with_trees_is_exported_and_a_later_one_starts_from_its_network(transformed, tmp_path, members):
    first, second = tmp_path / "first", tmp_path / "second"
    said = run(transformed, first, settings={"members": members, "epochs": 1})
    assert "Trees: " in said
    assert ((served(first) > 0) & (served(first) < 1)).all()
    # Its answers in training, by which the Evaluator checks the export, are there too.
    (recorded,) = first.glob("Trainer/model_run/7/predictions_of_eval.float32")
    assert len(np.fromfile(recorded, np.float32)) > 100
    if members == "trees":
        assert not list(first.rglob("history.csv"))  # no network was trained
        return
    assert "Members, loss on the eval split, its classes as frequent as in train: network " in said
    again = {"members": members, "epochs": 1, "warm_start": True}
    said = run(transformed, second, settings=again, base_model=str(first / "serving"))
    assert f"Starting from the weights of {first / 'serving'}" in said


@pytest.mark.long
@pytest.mark.slow
def test_two_workers_fit_trees_and_export_one_model(transformed, tmp_path):
    folders = [tmp_path / "chief", tmp_path / "worker"]
    job = {"settings": {"members": "both", "epochs": 1, "batch_size": 32, "strategy": "multi_worker"}}
    workers = [
        start(transformed, folder, environment, **job) for folder, environment in zip(folders, cluster(2), strict=True)
    ]
    assert finish(*workers) == [0, 0], logs(folders[0]) + logs(folders[1])
    assert "Members, loss on the eval split, its classes as frequent as in train: network " in logs(folders[0])
    assert ((served(folders[0]) > 0) & (served(folders[0]) < 1)).all()
    assert not (folders[1] / "serving").exists()
