"""Simple models on small tables: they learn what is there, whatever the types, gaps and labels."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.datasets import load_diabetes, load_iris
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression
from sklearn.metrics import root_mean_squared_error

from pipeline.quality.baselines import measure, rows_to_fit

RANDOM = np.random.default_rng(3)


def halves(columns: dict[str, object]) -> tuple[pa.Table, pa.Table]:
    table = pa.table(columns)
    table = table.take(np.random.default_rng(1).permutation(table.num_rows))
    return table.slice(0, table.num_rows // 2), table.slice(table.num_rows // 2)


def two_classes(rows: int = 2_000) -> dict[str, object]:
    """A label that follows from a number's distance to 0, and from a text: the former no linear model finds."""
    size, kind = RANDOM.normal(size=rows), RANDOM.integers(0, 3, rows)
    return {
        "size": np.where(RANDOM.random(rows) < 0.1, np.nan, size),
        "kind": [[b"red", b"green", None][code] for code in kind],
        "nothing": pa.nulls(rows),
        "late": ((np.abs(size) > 1) ^ (kind == 0)).astype(np.int64),
    }


def test_of_two_classes_boosting_finds_what_a_linear_model_does_not():
    results = measure(*halves(two_classes()), "late", 2)
    assert list(results) == ["constant", "linear", "boosting"]
    assert results["constant"]["auc"] == 0.5
    assert 0.55 < results["linear"]["auc"] < 0.8
    assert results["boosting"]["auc"] > 0.9
    assert results["boosting"]["auc_precision_recall"] > results["constant"]["auc_precision_recall"]


def test_labels_that_were_shuffled_teach_nothing():
    columns = two_classes()
    columns["late"] = RANDOM.permutation(columns["late"])
    results = measure(*halves(columns), "late", 2)
    assert all(abs(metrics["auc"] - 0.5) < 0.06 for metrics in results.values())


def test_of_several_classes_accuracy_and_log_loss_are_those_of_the_frequencies():
    iris = load_iris()
    train, test = halves({**dict(zip("abcd", iris.data.T, strict=True)), "kind": iris.target})
    results = measure(train, test, "kind", 3)
    frequencies = np.bincount(train.column("kind"), minlength=3) / train.num_rows
    labels = test.column("kind").to_numpy()
    assert results["constant"]["accuracy"] == pytest.approx((labels == frequencies.argmax()).mean())
    assert results["constant"]["log_loss"] == pytest.approx(-np.log(frequencies[labels]).mean())
    assert results["linear"]["accuracy"] > 0.9
    assert results["boosting"]["accuracy"] > 0.9


def test_a_class_that_is_in_no_row_of_train_is_never_answered():
    train = pa.table({"a": [0.0, 1.0] * 30, "kind": [0, 2] * 30})
    test = pa.table({"a": [0.0, 1.0, 1.0], "kind": [0, 1, 2]})
    assert measure(train, test, "kind", 3)["boosting"]["accuracy"] == pytest.approx(2 / 3)


def test_of_numbers_the_errors_are_in_the_unit_of_the_label():
    columns, labels = load_diabetes(return_X_y=True)
    train, test = halves({**{f"c{place}": values for place, values in enumerate(columns.T)}, "y": labels})
    results = measure(train, test, "y", 0)
    given = [(table.drop_columns("y").to_pandas(), table.column("y").to_numpy()) for table in (train, test)]
    for name, model in (("constant", DummyRegressor()), ("linear", LinearRegression())):
        errors = root_mean_squared_error(given[1][1], model.fit(*given[0]).predict(given[1][0]))
        assert results[name]["rmse"] == pytest.approx(errors, rel=0.01)
    assert results["boosting"]["rmse"] < results["constant"]["rmse"]


def test_a_test_split_of_one_class_has_no_auc():
    train, test = halves(two_classes(200))
    only = test.filter(np.asarray(test.column("late")) == 1)
    assert measure(train, only, "late", 2) == {"constant": {}, "linear": {}, "boosting": {}}


@pytest.mark.parametrize("classes", [0, 2])
def test_rows_without_a_label_do_not_count(classes):
    columns = two_classes()
    gaps = {**columns, "late": pa.array(columns["late"], mask=RANDOM.random(2_000) < 0.2)}
    whole = {name: pa.array(values).filter(pa.array(gaps["late"]).is_valid()) for name, values in gaps.items()}
    given = [pa.table(table) for table in (gaps, whole)]
    assert measure(given[0], given[0], "late", classes) == measure(given[1], given[1], "late", classes)


def test_one_class_in_train_leaves_the_constant():
    columns = two_classes(200)
    train, test = pa.table({**columns, "late": np.zeros(200, np.int64)}), pa.table(columns)
    assert list(measure(train, test, "late", 2)) == ["constant"]


def test_without_columns_there_is_the_constant_alone():
    train, test = (table.select(["late"]) for table in halves(two_classes(200)))
    assert list(measure(train, test, "late", 2)) == ["constant"]


def test_a_column_with_ten_thousand_different_texts_and_one_of_unknown_ones_are_taken():
    rows = 10_000
    columns = {"id": [f"n{place}".encode() for place in range(rows)], "late": np.arange(rows) % 2}
    results = measure(*halves(columns), "late", 2)
    assert abs(results["boosting"]["auc"] - 0.5) < 0.05


def test_wide_tables_are_learnt_from_fewer_rows():
    assert rows_to_fit(20, images=False) > rows_to_fit(500, images=False) >= 1_000


@pytest.mark.slow
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_row_that_weighs_2_is_a_row_that_is_there_twice_whatever_the_unit(classes):
    columns = two_classes()
    del columns["nothing"]
    size = columns["size"] = np.nan_to_num(columns["size"])
    if classes != 2:
        noisy = size + RANDOM.normal(size=len(size))
        columns["late"] = np.digitize(noisy, [-0.5, 0.5]) if classes else noisy
    often = np.where(columns["late"] > 0, 3, RANDOM.integers(1, 3, len(columns["late"])))
    train, test = halves({**columns, "often": often})
    results = measure(train, test, "late", classes, "often")
    times = [np.repeat(np.arange(table.num_rows), table.column("often").to_numpy()) for table in (train, test)]
    repeated = [table.drop_columns("often").take(rows) for table, rows in zip((train, test), times, strict=True)]
    expected = measure(*repeated, "late", classes)
    for name, metrics in expected.items():
        # Scales of columns are those of rows, and so are the 20 of a leaf: boosting fits repeated rows more closely.
        rel = {"constant": 1e-9, "linear": 0.01, "boosting": 0.15}[name]
        assert results[name] == pytest.approx(metrics, rel=rel)
    scaled = [
        table.set_column(table.num_columns - 1, "often", [table.column("often").to_numpy() * 1e-3])
        for table in (train, test)
    ]
    for name, metrics in measure(*scaled, "late", classes, "often").items():
        assert metrics == pytest.approx(results[name], rel=1e-6)
    if classes != 2:  # an AUC hardly depends on how often each class is there
        plain = measure(train.drop_columns("often"), test.drop_columns("often"), "late", classes)
        assert plain["constant"] != pytest.approx(expected["constant"], rel=1e-3)
