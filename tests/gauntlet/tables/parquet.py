"""Parquet files as other programs write them."""

import datetime
import decimal
import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

from tests.gauntlet.tables.table import Content, labelled, people, scaled, split_in_two, table


@table("wanted", "two", file="{name}.parquet")
def parquet_types() -> Content:
    """Nullable numbers, categoricals, dates, times, decimals, booleans, a dictionary column, float16's cousins."""
    frame, score, rng = people(1500)
    rows = len(frame)
    day = pd.Series(np.datetime64("2023-01-01") + rng.integers(0, 700, rows).astype("timedelta64[D]"))
    gap = rng.random(rows) < 0.1
    count, flag, price = rng.integers(0, 900, rows), rng.random(rows) < 0.5, rng.uniform(0, 99, rows)
    score = score + scaled(count) + scaled(flag) + scaled(price) + scaled(day.astype("int64"))
    return pa.table(
        {
            **{name: pa.array(frame[name]) for name in frame},
            "count": pa.array(count, mask=gap),
            "small": pa.array(rng.integers(-100, 100, rows), pa.int8()),
            "unsigned": pa.array(rng.integers(0, 2**40, rows).astype(np.uint64)),
            "flag": pa.array(flag, mask=np.roll(gap, 1)),
            "sure": pa.array(flag),
            "price": pa.array([decimal.Decimal(f"{value:.2f}") for value in price], pa.decimal128(9, 2)),
            "grade": pa.array(rng.choice(["a", "b", "c"], rows)).dictionary_encode(),
            "day": pa.array([value.date() for value in day], pa.date32()),
            "moment": pa.array(day, pa.timestamp("us")),
            "zoned": pa.array(day.dt.tz_localize("Europe/Berlin"), pa.timestamp("us", tz="Europe/Berlin")),
            "clock": pa.array([datetime.time(int(hour), 30) for hour in rng.integers(0, 24, rows)], pa.time64("us")),
            "large": pa.array(rng.choice(["x", "y"], rows).tolist(), pa.large_string()),
            "single": pa.array(rng.normal(size=rows), pa.float32()),
            "nothing": pa.nulls(rows),
            "wanted": pa.array(split_in_two(score)),
        }
    )


@table("wanted", "two", file="{name}.parquet")
def parquet_pandas() -> Content:
    """As pandas writes a filtered frame: Int64, boolean, category, string, and its index as a column."""
    frame, score, rng = people(2000)
    kids = pd.Series(rng.integers(0, 5, 2000)).astype("Int64").where(rng.random(2000) > 0.1)
    frame = frame.assign(
        region=frame["region"].astype("category"),
        kids=kids,
        member=pd.Series(rng.random(2000) < 0.5).astype("boolean").where(rng.random(2000) > 0.1),
        town=pd.Series(rng.choice(["Ulm", "Bonn"], 2000)).astype("string"),
        since=pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, 2000), unit="D"),
        wanted=score > 0,
    )
    return frame[frame["age"] > 30]


@table("wanted", "number", reach=0.6, file="{name}")
def parquet_folder() -> Content:
    """A folder of three Parquet files; the label is a decimal."""
    frame, score, _ = people(1500)
    frame["wanted"] = [decimal.Decimal(f"{value:.3f}") for value in score]
    return {f"part-{number}.parquet": _as_parquet(frame[number::3]) for number in range(3)}


@table("wanted", "two", reach=0.93, file="{name}")
def parquet_partitions() -> Content:
    """Folders of a partition column, as in github.com/apache/datafusion/issues/17049; the label depends on it."""
    frame, score, _ = people(1500)
    frame["wanted"] = split_in_two(score)
    parts = frame.groupby("region")
    return {f"region={name}": {"part-0.parquet": _as_parquet(part.drop(columns="region"))} for name, part in parts}


@table("wanted", "several", reach=0.6, file="{name}.parquet")
def parquet_category_label() -> Content:
    """A label of pandas's type category."""
    frame = labelled(["low", "mid", "high"])
    return frame.assign(wanted=frame["wanted"].astype("category"))


@table("wanted", "two", file="{name}.parquet", expected="refused: details.*struct", advice="--leave-out")
def parquet_struct() -> Content:
    """A column of structs, as Spark writes JSON; left out, it does not stop anything."""
    frame = labelled(["lost", "won"])
    details = pa.array([{"color": "red", "size": place} for place in range(len(frame))])
    return pa.Table.from_pandas(frame).append_column("details", details)


def _as_parquet(frame: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    frame.reset_index(drop=True).to_parquet(file)
    return file.getvalue()
