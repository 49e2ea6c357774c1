"""Wide and long tables."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

from tests.gauntlet.tables.table import Content, scaled, split_in_two, table


@table("wanted", "two", slow=True)
def wide_numbers() -> Content:
    """500 columns of numbers, of which 20 tell the label."""
    rng = np.random.default_rng(21)
    values = rng.normal(size=(2000, 500)).round(4)
    score = values[:, :400:20].sum(axis=1)
    frame = pd.DataFrame(values, columns=[f"sensor {place}" for place in range(500)])
    return frame.assign(wanted=split_in_two(score, [0, 1]))


@table("wanted", "two", slow=True)
def wide_text() -> Content:
    """100 columns of text, all of which tell a little."""
    rng = np.random.default_rng(22)
    values = rng.integers(0, 5, (2000, 100))
    frame = pd.DataFrame({f"answer {place}": np.array(list("ABCDE"))[values[:, place]] for place in range(100)})
    return frame.assign(wanted=split_in_two(values.sum(axis=1) + rng.normal(size=2000)))


@table("wanted", "two", slow=True, reach=0.85)
def long() -> Content:
    """1,000,000 rows of 10 columns."""
    rng = np.random.default_rng(23)
    rows = 1_000_000
    columns: dict[str, pa.Array] = {}
    score = 0.3 * rng.normal(size=rows)
    for place in range(6):
        values = rng.normal(size=rows).round(4)
        columns[f"x{place}"] = pa.array(values)
        score += values
    for place in range(3):
        which = rng.integers(0, 20, rows)
        columns[f"c{place}"] = pa.array(np.array([f"kind {one}" for one in range(20)])[which])
        score += scaled(which)
    return pa.table({**columns, "wanted": pa.array(np.where(score > 0, "yes", "no"))})
