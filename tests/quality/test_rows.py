"""Findings that only the rows tell, on real flights."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from pipeline.data.examples import as_lists, serialize
from pipeline.data.table import Rows
from pipeline.quality import rows, wrong_values
from pipeline.settings.gates import DataChecks

Write = Callable[[str, pd.DataFrame], list[str]]


@pytest.fixture(scope="module")
def flights_of(few_flights: Path) -> dict[str, pd.DataFrame]:
    return {
        split: pd.concat([pq.read_table(file).to_pandas() for file in sorted(few_flights.glob(f"{split}/*.parquet"))])
        for split in ("train", "eval", "test")
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes rows as ExampleGen does; returns the file in a list."""

    def write(name: str, frame: pd.DataFrame) -> list[str]:
        table = pa.Table.from_pandas(frame.reset_index(drop=True), preserve_index=False)
        path = str(tmp_path / f"{name}.gz")
        with tf.io.TFRecordWriter(path, "GZIP") as writer:
            for record in serialize(as_lists(Rows(table, np.arange(len(frame))), path)):
                writer.write(record)
        return [path]

    return write


def shared(files: dict[str, list[str]], frames: dict[str, pd.DataFrame], **limits: float) -> list[str]:
    counts = {split: len(frame) for split, frame in frames.items()}
    return [str(one) for one in rows.repeated_rows(files, counts, DataChecks(**limits))]


@pytest.mark.slow
def test_a_sample_has_the_first_rows_of_each_file_in_equal_parts(flights_of, write, monkeypatch):
    files = write("one", flights_of["train"]) + write("other", flights_of["eval"])
    monkeypatch.setattr(rows, "SAMPLE", 200)
    read = rows.sampled(files)
    assert read.num_rows == 200
    each = [rows.sampled([file]).slice(0, 100) for file in files]
    assert read.equals(pa.concat_tables(each, promote_options="permissive"))


@pytest.mark.slow
def test_rows_of_a_split_that_are_in_an_earlier_one_are_counted(flights_of, write):
    frames = dict(flights_of)
    files = {split: write(split, frame) for split, frame in frames.items()}
    assert shared(files, frames) == []
    frames["test"] = pd.concat([frames["test"], frames["train"][:100]])
    files["test"] = write("more", frames["test"])
    share = 100 * 100 / len(frames["test"])
    assert shared(files, frames) == [
        f"rows of test: {share:.1f} % of {len(frames['test']):,} are in train too; at most 1 % may"
    ]
    assert shared(files, frames, max_shared_rows=0.2) == []


@pytest.mark.slow
def test_rows_of_a_window_are_known_again_in_the_next_run(flights_of, write, tmp_path):
    frames = {"train": flights_of["train"], "test": pd.concat([flights_of["test"], flights_of["train"][:100]])}
    files = {split: write(split, frame) for split, frame in frames.items()}
    counts = {split: len(frame) for split, frame in frames.items()}

    def found(root: str) -> list[str]:
        return [str(one) for one in rows.repeated_rows(files, counts, DataChecks(), root=root)]

    kept = tmp_path / "kept"
    assert found(str(kept)) == found("") != []
    times = {path: path.stat().st_mtime_ns for path in kept.rglob("*.pickle")}
    assert len(times) == 2
    assert found(str(kept)) == found("")
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*.pickle")} == times


def test_the_hash_of_a_row_is_the_same_in_every_process(write, tmp_path):
    file = write("one", pd.DataFrame({"a": [1]}))
    assert rows._hashes(file, 1, None, str(tmp_path / "kept")).tolist() == [8355787375750946273]


def test_a_file_that_is_there_twice_repeats_its_rows(flights_of, write):
    frames = {"train": pd.concat([flights_of["train"], flights_of["train"][:800]])}
    (found,) = shared({"train": write("train", frames["train"])}, frames)
    assert "% of " in found
    assert found.endswith("repeat another row of it; at most 5 % may")


def test_of_very_many_rows_a_fraction_of_the_hashes_tells_the_share(flights_of, write, monkeypatch):
    frames = {**flights_of, "test": pd.concat([flights_of["test"], flights_of["train"][:500]])}
    files = {split: write(split, frame) for split, frame in frames.items()}
    monkeypatch.setattr(rows, "MOST_HASHES", sum(map(len, frames.values())) // 4)
    (found,) = shared(files, frames)
    share = float(re.match(r"rows of test: (\S+) % of ", found)[1])
    assert share == pytest.approx(100 * 500 / len(frames["test"]), rel=0.3)
    assert len(rows._hashes(files["train"], 5, None)) < len(frames["train"]) / 3


def sampled(*files: list[str]) -> pa.Table:
    return pa.concat_tables([rows.sampled(file) for file in files], promote_options="permissive")


def leaking(flights_of: dict[str, pd.DataFrame], write: Write, **columns: Callable[[pd.DataFrame], object]) -> set[str]:
    files = [write(split, flights_of[split].assign(**columns)) for split in ("train", "eval")]
    return {one.feature for one in rows.leaks(sampled(*files), "late", DataChecks())}


def test_a_column_that_knows_the_label_is_found_whatever_its_type_and_order(flights_of, write):
    found = leaking(
        flights_of,
        write,
        minutes=lambda frame: (15.0 * frame["late"] + np.arange(len(frame)) % 14).astype("float32"),
        status=lambda frame: frame["late"].map({0: "landed", 1: "delayed"}),
        inside_out=lambda frame: np.where(frame["late"] == 1, 5, np.arange(len(frame)) % 2 * 10),
        mostly_missing=lambda frame: pd.Series(np.where(frame["late"] == 1, 1.0, np.nan)).astype("float32").to_numpy(),
    )
    assert found == {"minutes", "status", "inside_out", "mostly_missing"}


def test_classes_without_a_row_in_train_are_found(write):
    files = write("one", pd.DataFrame({"kind": [0, 2, 0]})) + write("other", pd.DataFrame({"kind": [2, 4]}))
    (finding,) = rows.missing_classes(files, "kind", ("a", "b", "c", "d", "e"))
    assert str(finding).startswith("kind in train: no row of b, d; ")
    assert list(rows.missing_classes(files, "kind", ("a",))) == []


def test_a_column_that_names_every_row_does_not_know_the_label(flights_of, write):
    found = leaking(
        flights_of,
        write,
        row=lambda frame: [f"row {number}" for number in range(len(frame))],
        number=lambda frame: np.arange(len(frame)) * 7919 % 10007,
    )
    assert found == set()


def test_the_auc_of_a_column_is_that_of_scikit_learn():
    from sklearn.metrics import roc_auc_score

    random = np.random.default_rng(1)
    codes = random.integers(0, 5, 2000)
    label = (random.random(2000) < codes / 6).astype(float)
    area, lowest = rows.column_auc(codes, label)
    expected = roc_auc_score(label, codes)
    assert area == pytest.approx(expected, abs=0.01)
    assert expected - 0.03 < lowest < expected - 0.01


def test_a_column_says_nothing_about_a_label_that_is_always_the_same():
    assert rows.column_auc(np.arange(40) % 3, np.zeros(40)) == (0.5, 0.0)


def test_numbers_that_are_missing_are_a_value_of_their_own_beside_the_largest():
    numbers = [*range(5_000), None]
    codes = rows._coded(pa.chunked_array([pa.array([[number] if number is not None else None for number in numbers])]))
    assert codes[0] == 0
    assert codes[4_999] == codes[:-1].max() > 8
    assert codes[-1] not in codes[:-1]


@pytest.mark.parametrize("count", [60, 20_000])
def test_a_column_that_tells_nearly_all_stops_no_run_by_chance_and_one_that_tells_all_does(count):
    random = np.random.default_rng(3)
    label = np.arange(count) % 2
    frame = {
        "late": label,
        "knows": label * 2.0 + random.random(count),
        "strong": label * 2.5 + random.normal(size=count),
    }
    table = pa.table({name: pa.array(np.asarray(values)[:, None].tolist()) for name, values in frame.items()})
    found = {one.feature for one in rows.leaks(table, "late", DataChecks())}
    assert found == {"knows"}


def test_fifteen_rows_are_too_few_to_find_a_leak_in():
    table = pa.table({"late": [[row % 2] for row in range(40)], "knows": [[row % 2] for row in range(40)]})
    assert list(rows.leaks(table, "late", DataChecks())) == []


def test_columns_without_any_value_are_passed_over(flights_of, write):
    empty = {
        split: frame.assign(nothing=pd.array([None] * len(frame), dtype="string"))
        for split, frame in flights_of.items()
    }
    files = {split: write(split, frame) for split, frame in empty.items()}
    table = sampled(files["train"], files["eval"])
    assert list(rows.leaks(table, "late", DataChecks())) == []
    assert list(rows.leaks(table, "nothing", DataChecks())) == []
    assert wrong_values.count(rows.tables_of(files["train"]), {"nothing": pc.is_valid}) == {"nothing": (0, ())}


def test_wrong_values_come_with_the_rows_that_have_them(flights_of, write):
    files = write("train", flights_of["train"])
    found = wrong_values.count(rows.tables_of(files), {"origin": lambda values: pc.equal(values, b"JFK")})
    count = int((flights_of["train"]["origin"] == "JFK").sum())
    assert found == {"origin": (count, (("JFK", count),))}


@pytest.mark.parametrize("classes", [0, 3])
def test_a_column_that_knows_a_number_or_one_of_several_classes_is_found(write, classes):
    random = np.random.default_rng(1)
    size = random.normal(size=3000)
    label = np.digitize(size, [-0.5, 0.5]) if classes else size.astype("float32")
    frame = pd.DataFrame(
        {
            "label": label,
            "knows": (10 * size + 3).astype("float32"),
            "helps": (size + random.normal(size=3000)).astype("float32"),
            "noise": random.normal(size=3000).astype("float32"),
        }
    )
    table = rows.sampled(write("all", frame))
    assert {one.feature for one in rows.leaks(table, "label", DataChecks(), classes)} == {"knows"}
