"""Read a table as a client does, and judge the answers for its rows."""

import csv
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.metrics import accuracy_score, roc_auc_score

from tests.gauntlet.outcome import Failure
from tests.gauntlet.tables import Table

ROWS_ASKED = 50
JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
WHOLE = re.compile(r"-?\d+")
# What a client takes for missing in a column that otherwise holds numbers.
MISSING = {"", "NA", "N/A", "n/a", "null", "NULL", "None", "nan", "NaN", "-", "?"}
INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)


def read(path: Path, label: str) -> tuple[list[str], list[tuple[int, dict]]]:
    """Read a table as a client does who has the file and no pipeline.

    Returns:
        The label of every row as text; and of about 50 rows the place and the row without the label, with values as
        JSON has them.
    """
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    if files[0].suffix == ".parquet":
        whole = pa.concat_tables([pq.read_table(file) for file in files])
        truth = [str(value) for value in whole[label].to_pylist()]
        places = _spread(len(truth), range(len(truth)))
        records = whole.take(places).to_pylist()
        return truth, [(place, _without(row, label, place)) for place, row in zip(places, records, strict=True)]
    csv.field_size_limit(2**30)
    cells = pd.concat(
        [pd.read_csv(file, dtype=str, keep_default_na=False, na_filter=False, encoding="utf-8-sig") for file in files],
        ignore_index=True,
    )
    numbers = {name for name in cells if name != label and _is_number(cells[name])}
    lengths = cells.map(len) if len(cells) < 10_000 else None
    short = range(len(cells)) if lengths is None else np.flatnonzero((lengths < 100_000).all(axis=1))
    places = [
        place
        for place in _spread(len(cells), short)
        if not any(INFINITE.fullmatch(cells.at[cells.index[place], name]) for name in numbers)
    ]
    rows = []
    for place in places:
        row = {}
        for name in cells:
            text = cells[name].iat[place]
            if name in numbers:
                text = text.strip()
                row[name] = None if text in MISSING else int(text) if WHOLE.fullmatch(text) else float(text)
            else:
                row[name] = text or None
        rows.append((place, _without(row, label, place)))
    return cells[label].to_list(), rows


def _is_number(column: pd.Series) -> bool:
    """Tell whether all values but missing ones are numbers as JSON writes them."""
    values = [text for text in column.str.strip().unique() if text not in MISSING and not INFINITE.fullmatch(text)]
    return bool(values) and all(JSON_NUMBER.fullmatch(text) for text in values)


def _spread(rows: int, allowed: Sequence[int] | np.ndarray) -> list[int]:
    wanted = np.unique(np.linspace(0, rows - 1, ROWS_ASKED).astype(int))
    return [int(place) for place in wanted if place in set(allowed)]


def _without(row: dict, label: str, place: int) -> dict:
    """Leave out the label, and what is missing in every second row."""
    missing = {name for name, value in row.items() if value is None or (isinstance(value, float) and math.isnan(value))}
    return {
        name: None if name in missing else value
        for name, value in row.items()
        if name != label and not (place % 2 and name in missing)
    }


def judge_answers(table: Table, answers: pd.DataFrame, truth: list[str], metrics: dict[str, float]) -> str:
    """Score the answers for the whole file.

    Returns:
        The metric, for the line that is printed.

    Raises:
        Failure: they are alike, at odds with the run's metrics, or no better than chance.
    """
    if len(answers) != len(truth):
        raise Failure(f"{len(answers)} answers for {len(truth)} rows")
    if table.kind == "number":
        wanted, given = np.array(truth, dtype=float), answers["prediction"].to_numpy(float)
        if np.ptp(given) == 0:
            raise Failure(f"all answers are {given[0]}")
        # Without the hundredth that is furthest off: of a skewed label a single row decides the error of the rest.
        kept = np.argsort(np.abs(wanted - given))[: max(1, int(0.99 * len(wanted)))]
        wanted, given = wanted[kept], given[kept]
        score = float(np.corrcoef(wanted, given)[0, 1] ** 2)
        name, tested = "r2", metrics.get("squared_correlation")
        error, tested_error = float(np.sqrt(np.mean((wanted - given) ** 2))), metrics.get("rmse")
        if tested_error is not None and error > 2 * tested_error + 0.1 * np.std(wanted):
            raise Failure(f"rmse on 99 % of the file is {error:.4g}, the run said {tested_error:.4g}")
    else:
        order = sorted(set(truth), key=_rank)
        keys = [_word(text) for text in truth]
        words = [_word(text) for text in answers["label"]]
        if len(set(words)) < 2:
            raise Failure(f"all answers are {words[0]!r}")
        unknown = set(words) - set(keys)
        if unknown:
            raise Failure(f"answers {sorted(map(str, unknown))[:3]} are no labels of the file: {order[:3]}")
        if table.kind == "two":
            score = float(roc_auc_score([key == _word(order[1]) for key in keys], answers["probability"]))
            name, tested = "auc", metrics.get("auc")
        else:
            score = float(accuracy_score([str(key) for key in keys], [str(word) for word in words]))
            name, tested = "accuracy", metrics.get("accuracy")
            majority = max(keys.count(key) for key in set(keys)) / len(keys)
            if score < majority + 0.1 * (1 - majority):
                raise Failure(f"accuracy {score:.3f}, always the most frequent class {majority:.3f}")
    text = f"{name} {score:.3f}" + (f" (test {tested:.3f})" if tested is not None else "")
    if tested is not None and score < tested - 0.1:
        raise Failure(f"{name} of the answers for the whole file is {score:.3f}, the run said {tested:.3f}")
    if score < table.reach or (tested is not None and tested < table.reach - 0.1):
        raise Failure(f"{text}: a model that reads all columns is above {table.reach}")
    return text


def _word(value: object) -> object:
    """Return the same for a class as the file writes it and as the model answers it."""
    text = (value.decode() if isinstance(value, bytes) else str(value)).strip()
    try:
        return float(text) if JSON_NUMBER.fullmatch(text) else text.casefold() if text in ("True", "False") else text
    except ValueError:
        return text


def _rank(text: str) -> tuple:
    word = _word(text)
    return (0, word, "") if isinstance(word, float) else (1, 0, text)
