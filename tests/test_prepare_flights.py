"""The flights data: right rows, right label, nothing known only afterwards, whole or not at all."""

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.scripts import ROOT, load_script

pytestmark = pytest.mark.slow

KNOWN_ONLY_AFTERWARDS = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}

prepare_flights = load_script("data/prepare_flights.py")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "flights"
    prepare_flights.prepare(folder)
    return folder


@pytest.fixture(scope="module")
def arrived() -> pd.DataFrame:
    """The raw flights that arrived, in file order, as prepare() must keep them within a month."""
    flights = pd.read_csv(prepare_flights.source_folder() / "flights.csv.zip")
    return flights[flights["arr_delay"].notna()]


def test_every_month_lies_in_the_split_of_its_date(prepared):
    files = {str(file.relative_to(prepared)) for file in prepared.rglob("*") if file.is_file()}
    train = {f"train/2013-{month:02}.parquet" for month in range(1, 9)}
    later = {"eval/2013-09.parquet", "eval/2013-10.parquet", "test/2013-11.parquet", "test/2013-12.parquet"}
    assert files == train | later


def test_every_flight_that_arrived_is_one_row(prepared):
    assert sum(pq.read_metadata(file).num_rows for file in prepared.rglob("*.parquet")) == 327_346


def test_all_files_share_the_documented_columns(prepared):
    for file in prepared.rglob("*.parquet"):
        assert pq.read_schema(file).equals(prepare_flights.COLUMNS)
    readme = (ROOT / "data/README.md").read_text()
    assert [name for name in prepare_flights.COLUMNS.names if f"| `{name}` |" not in readme] == []


def test_nothing_known_only_after_departure_is_kept():
    assert not KNOWN_ONLY_AFTERWARDS & set(prepare_flights.COLUMNS.names)


def test_missing_values_are_nulls_and_only_in_strings_and_floats(prepared):
    table = pq.read_table(prepared / "train")
    for field in table.schema:
        column = table[field.name]
        if str(field.type) == "float":
            assert not column.is_nan().to_pandas().any(), f"{field.name} holds NaN"
        elif str(field.type) == "int64":
            assert column.null_count == 0


@pytest.mark.parametrize(("split", "month"), [("train", 1), ("eval", 9), ("test", 12)])
def test_late_means_fifteen_minutes_or_more(prepared, arrived, split, month):
    raw = arrived[arrived["month"] == month]
    rows = pq.read_table(prepared / split / f"2013-{month:02}.parquet").to_pandas()
    assert rows["distance"].tolist() == raw["distance"].tolist()
    assert rows["late"].tolist() == (raw["arr_delay"] >= 15).astype(int).tolist()
    assert {14, 15} <= set(raw["arr_delay"])


def test_a_known_flight_has_its_aircraft_and_the_weather_of_its_hour(prepared):
    # The first flight of the year: United 1545, N14228, EWR to Houston at 05:15; 10:00 UTC in weather.csv.
    first = pq.read_table(prepared / "train" / "2013-01.parquet").slice(0, 1).to_pylist()[0]
    assert (first["carrier"], first["origin"], first["dest"], first["weekday"]) == ("UA", "EWR", "IAH", "Tue")
    assert (first["sched_dep_minute"], first["sched_arr_minute"]) == (5 * 60 + 15, 8 * 60 + 19)
    assert (first["model"], first["year_built"]) == ("737-824", 1999)
    assert first["temp"] == pytest.approx(39.02)
    assert first["wind_dir"] == 260
    assert first["wind_gust"] is None


def test_flights_are_counted_with_the_cancelled_ones(prepared):
    raw = pd.read_csv(prepare_flights.source_folder() / "flights.csv.zip")
    # 8 February 2013: a blizzard; most flights of the day were cancelled.
    scheduled = raw[(raw["month"] == 2) & (raw["day"] == 8) & (raw["origin"] == "JFK")]
    rows = pq.read_table(prepared / "train" / "2013-02.parquet").to_pandas().query("day == 8 and origin == 'JFK'")
    assert len(rows) < len(scheduled)
    assert set(rows["flights_that_day"]) == {len(scheduled)}
    at_seven = rows.query("sched_dep_minute // 60 == 7")
    assert set(at_seven["flights_that_hour"]) == {(scheduled["hour"] == 7).sum()}


def test_weather_before_covers_the_three_hours_before_and_not_the_hour_itself():
    weather = prepare_flights.hourly_weather(prepare_flights.source_folder())
    weather = weather[weather["origin"] == "JFK"].set_index("time_hour")
    hours = [f"2013-02-08T{hour}:00:00Z" for hour in (15, 16, 17)]
    now = weather.loc["2013-02-08T18:00:00Z"]
    assert now["precip_before"] == pytest.approx(weather.loc[hours, "precip"].sum())
    assert now["visib_before"] == weather.loc[hours, "visib"].min()


def test_the_same_input_gives_the_same_bytes(prepared, tmp_path):
    prepare_flights.prepare(tmp_path / "again")
    for file in prepared.rglob("*.parquet"):
        assert file.read_bytes() == (tmp_path / "again" / file.relative_to(prepared)).read_bytes()


def test_an_interrupted_preparation_leaves_nothing(tmp_path, monkeypatch):
    written = []

    def write_two_then_stop(table, path):
        if len(written) == 2:
            raise KeyboardInterrupt
        path.touch()
        written.append(path)

    monkeypatch.setattr(prepare_flights.pq, "write_table", write_two_then_stop)
    with pytest.raises(KeyboardInterrupt):
        prepare_flights.prepare(tmp_path / "flights")
    assert len(written) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_second_preparation_replaces_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_flights.pq, "write_table", lambda table, path: path.write_text(run))
    run = "first"
    prepare_flights.prepare(tmp_path / "flights")
    run = "second"
    prepare_flights.prepare(tmp_path / "flights")
    assert {file.read_text() for file in (tmp_path / "flights").rglob("*.parquet")} == {"second"}
    assert [path.name for path in tmp_path.iterdir()] == ["flights"]


def test_a_folder_with_other_files_is_refused_and_kept(tmp_path):
    (tmp_path / "train").mkdir()
    precious = tmp_path / "train" / "thesis.txt"
    precious.touch()
    with pytest.raises(FileExistsError, match="thesis.txt"):
        prepare_flights.prepare(tmp_path)
    assert precious.exists()


def test_a_missing_package_says_what_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prepare_flights.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["prepare_flights.py", "--output", str(tmp_path / "flights")])
    with pytest.raises(SystemExit, match="run make setup"):
        prepare_flights.main()
