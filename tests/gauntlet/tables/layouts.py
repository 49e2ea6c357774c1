"""Files and folders that are not laid out as one table."""

import io

import numpy as np
import pandas as pd
import pyarrow as pa

from tests.gauntlet.tables.table import Content, labelled, people, scaled, split_in_two, table


def _parquet(frame: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    frame.reset_index(drop=True).to_parquet(file)
    return file.getvalue()


def _lines(frame: pd.DataFrame) -> list[str]:
    return frame.to_csv(index=False).splitlines()


@table("wanted", expected=r"pushed or refused: (?i)row 301\b.*header|header.*row 301\b")
def header_again() -> Content:
    """The header once more in row 301, as concatenated exports have it."""
    lines = _lines(labelled(["lost", "won"], 51))
    return "\n".join([*lines[:301], lines[0], *lines[301:]]).encode()


@table("wanted", expected=r"pushed or refused: (?i)row 51\b.*header|header.*row 51\b")
def header_every_50_rows() -> Content:
    """Exports of 50 rows, each with its header: the label's name is no class."""
    header, *rows = _lines(labelled(["lost", "won"], 52))
    return "\n".join(
        line for place, row in enumerate(rows) for line in ([] if place % 50 else [header]) + [row]
    ).encode()


@table("wanted", "number", expected=r"pushed or refused: (?i)row 301\b.*header|header.*row 301\b")
def header_again_number() -> Content:
    """The header once more; the label is a number."""
    frame, score, _ = people(600, 53)
    lines = _lines(frame.assign(wanted=score.round(2)))
    return "\n".join([*lines[:301], lines[0], *lines[301:]]).encode()


@table("wanted", file="{name}", reach=0.85, says={"new": ["region"]}, source="apache/arrow#8741")
def parquet_partitions() -> Content:
    """Parquet in folders region=north: the column that tells most stands in the path only."""
    frame, _, rng = people(1500, 54)
    effect = frame["region"].map({"north": -3.0, "south": 0.0, "east": 1.5, "west": 4.0}).to_numpy()
    frame["wanted"] = split_in_two(effect + scaled(frame["age"]) + 0.2 * rng.normal(size=1500))
    return {
        f"region={region}": {"part-0.parquet": _parquet(part.drop(columns="region"))}
        for region, part in frame.groupby("region")
    }


@table(
    "wanted", file="{name}", expected=r"pushed or refused: (?i)2024|folder|nested", says={"new": ["(?i)2024|600 rows"]}
)
def nested_folders() -> Content:
    """CSV files in a folder and in folders below it: all are read, or the ones that are not are named."""
    lines = _lines(labelled(["lost", "won"], 55))
    parts = ["\n".join([lines[0], *lines[1 + 200 * n : 201 + 200 * n]]).encode() for n in range(3)]
    return {"a.csv": parts[0], "2023": {"b.csv": parts[1]}, "2024": {"c.csv": parts[2]}}


@table(
    "wanted", file="{name}", expected=r"pushed or refused: (?i)more\.CSV|extra\.txt", says={"new": [r"(?i)extra\.txt"]}
)
def other_files_in_folder() -> Content:
    """more.CSV and extra.txt in a folder of CSV files: read, or named as not read."""
    lines = _lines(labelled(["lost", "won"], 56))
    parts = ["\n".join([lines[0], *lines[1 + 200 * n : 201 + 200 * n]]).encode() for n in range(3)]
    return {"a.csv": parts[0], "more.CSV": parts[1], "extra.txt": parts[2]}


@table("wanted", expected="refused: (?i)comment|#")
def comment_first() -> Content:
    """Two lines of # comment before the header."""
    return b"# exported 2026-01-01\n# by the plant\n" + labelled(["lost", "won"], 57).to_csv(index=False).encode()


@table("wanted ", expected="refused: 'wanted'")
def label_with_space() -> Content:
    """--label 'wanted ', where the column is called wanted."""
    return labelled(["lost", "won"], 58)


def _nested(column: pa.Array, name: str = "col") -> pa.Table:
    frame = labelled(["lost", "won"], 59)
    return pa.Table.from_pandas(frame).append_column(name, column)


@table("wanted", file="{name}.parquet", expected="refused: col", advice="--leave-out")
def nested_struct() -> Content:
    """A struct, which the advice leaves out."""
    return _nested(pa.array([{"a": row, "b": "x"} for row in range(600)]))


@table("wanted", file="{name}.parquet", options=("--leave-out", "col"))
def nested_map_left_out() -> Content:
    """A map, left out from the beginning."""
    return _nested(pa.array([[("a", row)] for row in range(600)], pa.map_(pa.string(), pa.int64())))


@table("wanted", file="{name}.parquet", options=("--leave-out", "col"))
def nested_lists_left_out() -> Content:
    """Lists of lists with nulls, left out."""
    return _nested(pa.array([[[1, None], None, [row]] for row in range(600)]))


@table("wanted", file="{name}.parquet", expected="pushed or refused: col", options=("--leave-out", "col"))
def uint64_left_out() -> Content:
    """Unsigned integers beyond 2**63, left out."""
    return _nested(pa.array([2**63 + row for row in range(600)], pa.uint64()))


@table("wanted", options=("--leave-out", "huge"))
def huge_number_left_out() -> Content:
    """A number beyond float32 in a CSV column that is left out."""
    frame = labelled(["lost", "won"], 60)
    return frame.assign(huge=[f"{1 + row / 7:.3f}e{300 if row == 44 else 2}" for row in range(600)])


def _patients(coin: bool) -> pd.DataFrame:
    rng = np.random.default_rng(61)
    patient = np.repeat(np.arange(150), 8)
    values = rng.normal(size=(150, 2))[patient] + 0.01 * rng.normal(size=(1200, 2))
    sick = rng.random(150)[patient] > 0.5 if coin else values.sum(axis=1) > 0
    frame = pd.DataFrame({"patient": 10_000 + 7 * patient, "a": values[:, 0], "b": values[:, 1]})
    return frame.assign(sick=np.where(sick, "yes", "no"))


@table(
    "sick",
    source="pycaret/pycaret#2259",
    expected=r"stopped: HashSplit\(.patient.\)",
    says={"new": [r"HashSplit\(.patient.\)"]},
)
def group_leak() -> Content:
    """150 patients of eight near-equal rows each, and a coin for each patient."""
    return _patients(coin=True)


@table("sick", expected=r"refused or stopped: (?i)near|equal|duplicate|alike", options=("--leave-out", "patient"))
def group_leak_without_id() -> Content:
    """The same, and the column that names the group is left out."""
    return _patients(coin=True)


@table(
    "patient_sick", reach=0.85, edit=('.csv")', '.csv", split_by=HashSplit("patient"))'), says={"new": ["HashSplit"]}
)
def group_split() -> Content:
    """Patients whose values tell the label, split by patient as the note says."""
    return _patients(coin=False).rename(columns={"sick": "patient_sick"})


def _three(**parts: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {f"{name}.csv": part for name, part in parts.items()}


def _by_file(name: str) -> tuple[str, str]:
    """Return the edit of a config that makes a split of each file."""
    splits = {split: f"{split}.csv" for split in ("train", "eval", "test")}
    return f'Data("{name}")', f'Data("{name}", splits={splits!r})'


@table("wanted", "several", file="{name}", edit=_by_file("class_in_eval_only"), expected="stopped: rare")
def class_in_eval_only() -> Content:
    """A class that no row of train has."""
    frame = labelled(["lost", "won", "rare"], 62, 1500)
    common = frame[frame["wanted"] != "rare"]
    rest = pd.concat([common[600:], frame[frame["wanted"] == "rare"]]).sample(frac=1, random_state=62)
    return _three(train=common[:600], eval=rest[:400], test=rest[400:])


@table("wanted", file="{name}", edit=_by_file("eval_of_one_class"), expected=r"stopped: wanted in eval: label")
def eval_of_one_class() -> Content:
    """All rows of eval have one class, as in a file that is sorted by it."""
    frame = labelled(["lost", "won"], 63, 1500)
    lost = frame[frame["wanted"] == "lost"]
    rest = frame.drop(lost.index[:300])
    return _three(train=rest[:800], eval=lost[:300], test=rest[800:])


@table("wanted", file="{name}", edit=_by_file("column_in_train_only"), expected="stopped: grade")
def column_in_train_only() -> Content:
    """A column that has values in train and none in eval and test."""
    frame, score, rng = people(1500, 64)
    grade = rng.normal(size=1500)
    frame = frame.assign(grade=grade.round(3), wanted=split_in_two(score + 2 * grade))
    return _three(train=frame[:900], eval=frame[900:1200].assign(grade=""), test=frame[1200:].assign(grade=""))


@table("wanted", file="{name}", edit=_by_file("spelling_in_train_only"), expected="stopped: (?i)region")
def spelling_in_train_only() -> Content:
    """Categories in small letters in train, and in capitals in eval and test."""
    frame = labelled(["lost", "won"], 65, 1500)
    capitals = frame.assign(region=frame["region"].str.upper())
    return _three(train=frame[:900], eval=capitals[900:1200], test=capitals[1200:])


@table(
    "wanted",
    file="{name}",
    edit=_by_file("rows_in_two_splits"),
    expected="stopped: in train too",
)
def rows_in_two_splits() -> Content:
    """Every row of test is one of train."""
    rng = np.random.default_rng(66)
    frame = pd.DataFrame(rng.normal(size=(900, 3)).round(4), columns=["a", "b", "c"])
    frame["wanted"] = np.where(rng.random(900) > 0.5, "won", "lost")
    return _three(train=frame, eval=frame[:300], test=frame[300:600])
