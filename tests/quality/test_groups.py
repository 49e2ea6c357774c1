"""Rows of eval and test that are as good as known from train; the tables are made of random numbers."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pipeline.data.examples import as_lists
from pipeline.data.table import Rows
from pipeline.quality.findings import Finding
from pipeline.quality.groups import similar_rows
from pipeline.settings.gates import DataChecks
from pipeline.settings.tasks import Task

SPLITS = ("train", "eval", "test")


def found(
    frame: pd.DataFrame, by: str | None = None, task: Task = "binary", limit: float = 0.1, **settings: object
) -> list[Finding]:
    """Return what is found in a table with the label "y", each row or each value of ``by`` in a random split."""
    random = np.random.RandomState(1)
    places = random.choice(3, len(frame), p=(0.8, 0.1, 0.1))
    if by:
        coded = pd.factorize(frame[by])[0]
        places = places[coded]
    parts = {}
    for place, split in enumerate(SPLITS):
        table = pa.Table.from_pandas(frame[places == place], preserve_index=False)
        parts[split] = as_lists(Rows(table, np.arange(len(table))), split)
    classes = 0 if task == "regression" else 2
    settings = {"unused": (), **settings}
    return list(similar_rows(parts, "y", classes, checks=DataChecks(max_similar_rows=limit), **settings))


def patients(
    number: int = 300, rows: int = 10, noise: float = 0.01, columns: int = 2, in_order: bool = False, seed: int = 0
) -> pd.DataFrame:
    """Return rows of patients whose label is a coin for each of them."""
    random = np.random.RandomState(seed)
    patient = np.repeat(np.arange(number), rows)
    values = random.randn(number, columns)[patient] + noise * random.randn(len(patient), columns)
    labels = random.randint(0, 2, number)
    frame = pd.DataFrame({f"x{at}": values[:, at] for at in range(columns)})
    return frame.assign(patient=10_000 + patient, y=(np.sort(labels) if in_order else labels)[patient])


def cities(columns_of_rows: bool, effect: float) -> pd.DataFrame:
    random = np.random.RandomState(0)
    city = np.repeat(np.arange(500), 20)
    chance = 1 / (1 + np.exp(-effect * random.randn(500)[city]))
    frame = pd.DataFrame({"city": [f"city {at}" for at in city], "north": random.randn(500)[city]})
    if columns_of_rows:
        frame["size"] = random.exponential(90, len(city))
    return frame.assign(east=random.randn(500)[city], y=(random.rand(len(city)) < chance).astype(int))


def sensors() -> pd.DataFrame:
    random = np.random.RandomState(0)
    state = np.cumsum(0.1 * random.randn(100, 50), axis=1)
    frame = pd.DataFrame({"sensor": [f"s{at}" for at in np.repeat(np.arange(100), 50)]})
    frame["time"] = 1_600_000_000 + 3600 * np.tile(np.arange(50), 100)
    frame["celsius"] = (20 + state + random.randn(100, 1)).round(1).ravel()
    return frame.assign(y=(state.ravel() > 0).astype(int))


def models() -> pd.DataFrame:
    """Return rows of a category that tells the label, some values in many rows, as models of aircraft do."""
    random = np.random.RandomState(0)
    model = np.minimum(random.zipf(1.5, 5_000), 300)
    frame = pd.DataFrame({"model": [f"m{at}" for at in model], "year": random.randint(1960, 2020, 5_000)})
    return frame.assign(seats=random.randint(2, 400, 301)[model], y=random.randint(0, 2, 301)[model])


def purchases() -> pd.DataFrame:
    random = np.random.RandomState(0)
    user = np.repeat(np.arange(1000), 10)
    frame = pd.DataFrame({"user": user, "age": random.randint(18, 80, 1000)[user]})
    return frame.assign(amount=random.exponential(30, 10_000).round(2), y=random.randint(0, 2, 10_000))


def categories() -> pd.DataFrame:
    random = np.random.RandomState(0)
    frame = pd.DataFrame({name: random.choice(list("abcde"), 5_000) for name in ("one", "two", "three", "four")})
    return frame.assign(code=frame.sum(axis=1), y=(frame.one < "c").astype(int))


def quantities() -> pd.DataFrame:
    random = np.random.RandomState(0)
    age, amount = random.randint(18, 90, 5_000), random.exponential(100, 5_000).round()
    return pd.DataFrame({"age": age, "amount": amount, "square": age**2, "y": (age > 50).astype(int)})


@pytest.mark.parametrize(
    "frame",
    [
        patients(),
        patients(noise=0.1),
        patients(columns=20, noise=0.05),
        patients(rows=2, number=1500),
        # Rows of one patient that differ, with one label; patients in the order of the label.
        patients(40, 6, noise=2, columns=5),
        patients(noise=1, columns=5, in_order=True),
        patients().assign(patient=lambda frame: "p" + frame.patient.astype(str)),
        patients().assign(y=lambda frame: frame.y ^ (np.random.RandomState(2).rand(len(frame)) < 0.1)),
    ],
    ids=["near", "less near", "wide", "pairs", "label", "in order", "text", "noisy label"],
)
def test_a_column_of_groups_that_splits_share_is_found_with_the_line_that_splits_by_it(frame):
    (one,) = found(frame)
    assert (one.kind, one.split, one.feature) == ("similar_rows", "eval, test", "patient")
    assert 'write into Data(...): split_by=HashSplit("patient")' in one.remedy
    assert "set lifecycle_stage: DISABLED for patient" in one.remedy
    assert found(frame, by="patient") == []
    assert found(frame, limit=1.0) == []


def test_a_column_of_groups_is_found_where_no_model_reads_it_and_where_files_are_splits():
    (one,) = found(patients(), unused=("patient",), by_files=True)
    assert one.feature == "patient"
    assert one.remedy.startswith("put all rows of a value into the files of one split;")


def test_groups_of_a_number_as_the_label_are_found():
    frame = patients(columns=5, noise=0.02).assign(y=lambda frame: frame.patient * 7_919 % 307 + 0.1 * frame.x0)
    (one,) = found(frame, task="regression")
    assert one.feature == "patient"


@pytest.mark.parametrize(
    "frame",
    [
        patients(),
        patients(columns=20, noise=0.03),
        patients().assign(row=np.arange(3000)),
        pd.concat([patients(400, 2, columns=6), patients(2000, 1, columns=6, seed=1)]),
    ],
    ids=["near", "wide", "numbered", "some rows"],
)
def test_near_equal_rows_without_a_column_of_groups_are_found_with_their_share_and_two_of_them(frame):
    (one,) = found(frame.drop(columns="patient"))
    assert (one.feature, one.split) == ("", "eval, test")
    assert "% are near-equal to a row of train and mostly have its label" in one.found
    ((example, count),) = one.values
    assert count == 2
    mine, theirs = (dict(part.split("=") for part in row.split(", ")) for row in example.split(" and in train "))
    assert float(mine["x0"]) == pytest.approx(float(theirs["x0"]), abs=0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: cities(True, 1.0),
        lambda: cities(False, 1.0),
        lambda: cities(False, 1.0).drop(columns="city"),
        sensors,
        lambda: sensors().drop(columns="time"),
        purchases,
        models,
        categories,
        quantities,
        lambda: patients().assign(y=np.random.RandomState(3).randint(0, 2, 3000)),
    ],
    ids=[
        "cities",
        "plain cities",
        "no city",
        "sensors",
        "no time",
        "users",
        "models",
        "categories",
        "quantities",
        "own label",
    ],
)
def test_plain_categories_dense_numbers_and_labels_of_their_own_are_no_finding(make: Callable[[], pd.DataFrame]):
    assert found(make()) == []


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_small_tables_of_measurements_are_no_finding(name: str):
    from sklearn import datasets

    bunch: Mapping[str, pd.DataFrame] = getattr(datasets, f"load_{name}")(as_frame=True)
    frame = bunch["frame"].rename(columns={"target": "y"})
    assert found(frame.assign(y=(frame.y > 0).astype(int))) == []
