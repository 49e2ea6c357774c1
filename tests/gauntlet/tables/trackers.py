"""Tables like those in public reports of values that other tools lose or change silently."""

import csv
import datetime
import decimal
import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tests.gauntlet.tables.table import Content, labelled, people, scaled, split, split_in_two, table


def _csv(frame: pd.DataFrame, **settings) -> str:
    return frame.to_csv(index=False, **settings)


@table("wanted", expected="refused: UTF-16", source="pandas-dev/pandas#24130")
def utf_16() -> Content:
    """UTF-16 with a byte-order mark, as Excel's "Unicode text" is."""
    return _csv(labelled(["lost", "won"], 71)).encode("utf-16")


@table("wanted", reach=0.85, source="pola-rs/polars#14530")
def spaces_after_commas() -> Content:
    """A space after each comma, in the header, too: numbers are numbers."""
    return _csv(labelled(["lost", "won"], 72)).replace(",", ", ").replace(" wanted", "wanted").encode()


@table("wanted", reach=0.85, source="rapidsai/cudf#700")
def spaces_behind_values() -> Content:
    """Fixed-width fields with spaces behind: north, "north " and "north  " are one category; numbers are numbers."""
    frame = labelled(["lost", "won"], 73)
    rng = np.random.default_rng(73)
    for name in ("height", "age", "region"):
        frame[name] = [
            f"{value}{' ' * width}" for value, width in zip(frame[name], rng.integers(0, 40, 600), strict=True)
        ]
    return frame


@table("wanted", expected="refused: (?i)row 1\\b", source="pandas-dev/pandas#14124")
def trailing_commas() -> Content:
    """A comma behind each row but the header: pandas shifts the columns by one."""
    header, *rows = _csv(labelled(["lost", "won"], 74)).splitlines()
    return "\n".join([header, *(f"{row}," for row in rows)]).encode()


@table("wanted", expected="refused: (?i)sep=")
def excel_sep_line() -> Content:
    """sep=, before the header, as Excel writes it."""
    return b"sep=,\r\n" + _csv(labelled(["lost", "won"], 75)).encode()


@table("wanted", expected="refused: (?i)row 601\\b")
def footer() -> Content:
    """(600 rows affected) behind the last row, as SQL Server writes it."""
    return _csv(labelled(["lost", "won"], 76)).encode() + b"\n(600 rows affected)\n"


@table("wanted", reach=0.85, says={"new": ["cm|years"]}, expected="pushed or refused: (?i)row 1\\b")
def units_row() -> Content:
    """A row of units below the header: it must not make the numbers text, nor be a class."""
    header, *rows = _csv(labelled(["lost", "won"], 77)).splitlines()
    return "\n".join([header, "cm,years,,lost", *rows]).encode()


@table("wanted", reach=0.85, source="apache/arrow#35806")
def first_values_late() -> Content:
    """A column whose first value stands in row 500, and one whose last one does."""
    frame, score, rng = people(1000, 78)
    late, early = rng.normal(size=1000), rng.normal(size=1000)
    score = score + np.where(np.arange(1000) < 500, early, late)
    texts = {
        "late": ["" if row < 500 else f"{value:.3f}" for row, value in enumerate(late)],
        "early": ["" if row >= 500 else f"{value:.3f}" for row, value in enumerate(early)],
    }
    return frame.assign(**texts, wanted=split_in_two(score))


@table("wanted", reach=0.85)
def newlines_mixed() -> Content:
    """Line ends of three kinds, and newlines, commas and quotes inside quoted categories."""
    frame = labelled(["lost", "won"], 79)
    frame["region"] = frame["region"].replace({"north": "no\nrth", "south": "so\r\nuth", "east": 'ea"s,t'})
    lines = _csv(frame, lineterminator="\x00", quoting=csv.QUOTE_ALL).split("\x00")
    return "".join(
        f"{line}{chr(10) if place % 2 else chr(13) + chr(10)}" for place, line in enumerate(lines) if line
    ).encode()


@table("wanted", expected="refused: closed", advice="--leave-out")
def leak_by_gaps() -> Content:
    """A date that is missing for one class and only for it."""
    frame, score, rng = people(1000, 83)
    wanted = split_in_two(score)
    day = pd.Series(np.datetime64("2023-01-01") + rng.integers(0, 700, 1000).astype("timedelta64[D]")).dt.strftime(
        "%Y-%m-%d"
    )
    return frame.assign(closed=np.where(wanted == "yes", day, ""), wanted=wanted)


@table("wanted", expected="refused or stopped: (?i)customer")
def leak_by_order() -> Content:
    """Customer numbers in the order of the label, with gaps."""
    frame, score, rng = people(1000, 84)
    frame = frame.assign(wanted=split_in_two(score)).sort_values("wanted", kind="stable").reset_index(drop=True)
    return frame.assign(customer=100_000 + np.cumsum(rng.integers(1, 9, 1000)))


@table("total", "number", expected="refused: (?i)total_eur", advice="--leave-out")
def leak_in_other_currency() -> Content:
    """The number to predict, in another currency, with noise by rounding."""
    frame, score, _ = people(1000, 85)
    total = 500 + 100 * scaled(score)
    return frame.assign(total_eur=(total * 0.92).round(0), total=total.round(2))


@table("wanted", options=("--weight", "w"), expected="refused: (?i)w\\b.*(-1|negative|0 or more)")
def weights_negative() -> Content:
    """One weight of -1."""
    frame = labelled(["lost", "won"], 86)
    return frame.assign(w=[-1.0 if row == 300 else 1.0 for row in range(600)])


@table(
    "wanted", options=("--weight", "w"), expected="refused or stopped: (?i)weight.*won|won.*weight|rows of both classes"
)
def weights_zero_for_a_class() -> Content:
    """All rows of a class have the weight 0."""
    frame = labelled(["lost", "won"], 87)
    return frame.assign(w=[0.0 if word == "won" else 1.0 for word in frame["wanted"]])


@table("wanted", options=("--weight", "w"), expected="pushed or refused: (?i)w\\b.*(missing|no value|row)")
def weights_missing() -> Content:
    """A tenth of the rows have no weight."""
    frame = labelled(["lost", "won"], 88)
    return frame.assign(w=["" if row % 10 == 3 else 1.5 for row in range(600)])


@table("wanted", "number", reach=0.6, expected="pushed or refused: (?i)1,2\\d\\d|row 1\\b|amount|thousand")
def label_with_thousands() -> Content:
    """$1,234.50 to predict."""
    frame, score, _ = people(1000, 89)
    return frame.assign(wanted=[f"${value:,.2f}" for value in 2000 + 300 * score])


@table("wanted", expected="refused: (?i)date|time|classes")
def label_date() -> Content:
    """A date to predict."""
    frame, _, rng = people(1000, 90)
    day = pd.Series(np.datetime64("2023-01-01") + rng.integers(0, 700, 1000).astype("timedelta64[D]"))
    return frame.assign(wanted=day.dt.strftime("%Y-%m-%d"))


@table(
    "wanted", "number", reach=0.6, says={"new": ["wanted: a number|wanted.*number"]}, source="autogluon/autogluon#3017"
)
def label_few_numbers() -> Content:
    """A grade from 1.0 to 6.0 in halves: a quantity, and no eleven classes; either way the note says which."""
    frame, score, _ = people(1000, 91)
    return frame.assign(wanted=np.clip(np.round(2 * (3.5 + score)) / 2, 1, 6))


@table("wanted", "several", reach=0.6, file="{name}.parquet", source="autogluon/autogluon#5652")
def parquet_ordered_category() -> Content:
    """Ordered categories as label and column, with a category that no row has."""
    frame, score, _ = people(1000, 92)
    words = ["low", "mid", "high"]
    grade = pd.Categorical(split(score, words), categories=["none", *words], ordered=True)
    size = pd.Categorical(frame["region"], categories=["west", "east", "north", "south", "nowhere"], ordered=True)
    return frame.assign(region=size, wanted=grade)


@table("wanted", file="{name}.parquet")
def parquet_newer_types() -> Content:
    """Nanoseconds, seconds with a zone, large decimals, durations, string views, fixed binaries, float16, run ends."""
    frame, score, rng = people(1000, 93)
    seconds = rng.integers(1_600_000_000, 1_700_000_000, 1000)
    score = score + scaled(seconds)
    columns = {name: pa.array(frame[name]) for name in frame}
    columns |= {
        "nanos": pa.array(seconds * 1_000_000_000 + 123, pa.timestamp("ns")),
        "zoned": pa.array(seconds * 1000, pa.timestamp("ms", tz="America/New_York")),
        "money": pa.array([decimal.Decimal(int(value)) / 100 for value in seconds], pa.decimal256(50, 2)),
        "took": pa.array([datetime.timedelta(seconds=int(value)) for value in rng.integers(0, 9999, 1000)]),
        "half": pa.array(rng.normal(size=1000).astype(np.float16)),
        "code": pa.array([b"ab", b"cd"] * 500, pa.binary(2)),
        "many": pa.array(["x", "y"] * 500, pa.large_string()).dictionary_encode(),
        "nothing": pa.nulls(1000, pa.int32()),
        "wanted": pa.array(split_in_two(score)),
    }
    return pa.table(columns)


@table("wanted", file="{name}.parquet", source="dask/dask#3454")
def parquet_empty_row_groups() -> Content:
    """Row groups without rows, at the beginning and in the middle."""
    whole = pa.Table.from_pandas(labelled(["lost", "won"], 94), preserve_index=False)
    file = io.BytesIO()
    with pq.ParquetWriter(file, whole.schema) as writer:
        for part in (whole[:0], whole[:200], whole[:0], whole[200:]):
            writer.write_table(part)
    return file.getvalue()


@table("wanted", file="{name}", source="dask/dask#6160")
def parquet_spark_folder() -> Content:
    """As Spark writes: _SUCCESS, .crc files, an empty part, and parts whose integers differ in width."""
    frame = labelled(["lost", "won"], 95)

    def part(rows: pd.DataFrame, kind: str) -> bytes:
        file = io.BytesIO()
        rows.assign(age=rows["age"].astype(kind)).to_parquet(file, index=False)
        return file.getvalue()

    return {
        "_SUCCESS": b"",
        ".part-0.parquet.crc": b"crc\x00",
        "part-0.snappy.parquet": part(frame[:300], "int32"),
        "part-1.snappy.parquet": part(frame[300:], "int64"),
        "part-2.snappy.parquet": part(frame[:0], "int64"),
    }


@table("wanted", file="{name}", expected="refused: (?i)c.csv.*(age|shoe)|(age|shoe).*c.csv")
def column_renamed_in_a_file() -> Content:
    """The third file of three calls a column otherwise."""
    frame = labelled(["lost", "won"], 96)
    parts = [frame[:200], frame[200:400], frame[400:].rename(columns={"age": "shoe"})]
    return {
        name: part.to_csv(index=False).encode() for name, part in zip(("a.csv", "b.csv", "c.csv"), parts, strict=True)
    }


@table(
    "wanted",
    file="{name}",
    reach=0.85,
    expected=r"pushed or refused: (?i)age.*b\.csv|b\.csv.*age",
    source="pandas-dev/pandas#29710",
)
def number_as_text_in_a_file() -> Content:
    """One file of three writes the numbers with a unit: they are read, or named."""
    frame = labelled(["lost", "won"], 97)
    parts = [frame[:200], frame[200:400].assign(age=[f"{value} y" for value in frame["age"][200:400]]), frame[400:]]
    return {
        name: part.to_csv(index=False).encode() for name, part in zip(("a.csv", "b.csv", "c.csv"), parts, strict=True)
    }


@table("wanted", file="{name}.parquet", source="tensorflow/transform#261")
def lists_of_words() -> Content:
    """Lists of words of different length, empty ones and missing ones."""
    rng = np.random.default_rng(98)
    words = np.array(["red", "green", "blue", "gold"])
    score, rows = 0.2 * rng.normal(size=1000), []
    for row in range(1000):
        chosen = words[rng.random(4) < 0.4].tolist()
        score[row] += 1.5 * ("red" in chosen) - 1.5 * ("gold" in chosen)
        rows.append(None if not chosen and row % 2 else chosen)
    return pa.table({"tags": rows, "noise": rng.normal(size=1000), "wanted": split_in_two(score)})


@table("wanted", reach=0.85)
def emoji_categories() -> Content:
    """Categories of emoji, one in two normal forms, and texts of 5,000 characters."""
    frame, score, rng = people(1000, 99)
    mood = rng.choice(["😀", "👩‍👩‍👧", "❤️", "café", "cafe\u0301"], 1000)
    score = score + 1.5 * (mood == "😀") - 1.5 * (mood == "❤️")
    return frame.assign(mood=mood, essay=[f"{'word ' * 900}{one}" for one in mood], wanted=split_in_two(score))


@table("wanted", expected="refused: (?i)zip|gzip|\\.csv")
def zipped() -> Content:
    """A gzip file that is called .csv."""
    import gzip

    return gzip.compress(_csv(labelled(["lost", "won"], 101)).encode())


@table("wanted", "several", reach=0.6, expected="pushed or refused: .")
def boolean_words_with_missing_label() -> Content:
    """Labels true, True, FALSE and Unknown."""
    frame = labelled(["FALSE", "true", "Unknown"], 102, 900)
    return frame.assign(
        wanted=["True" if word == "true" and row % 3 else word for row, word in enumerate(frame["wanted"])]
    )


@table("wanted", reach=0.85, says={"new": [r"(?m)^\s*left out.*Unnamed: 0"]})
def index_written_twice() -> Content:
    """Unnamed: 0, an index that pandas wrote, shuffled."""
    frame = labelled(["lost", "won"], 103)
    return frame.assign(**{"Unnamed: 0": np.random.default_rng(103).permutation(600)})


@table("wanted", reach=0.85, expected=r"pushed or refused: (?i)same|equal|duplicate|alike")
def column_copied() -> Content:
    """The same column three times, once as text with a unit."""
    frame = labelled(["lost", "won"], 104)
    return frame.assign(age_copy=frame["age"], age_float=frame["age"].astype(float))


@table("wanted", file="{name}", reach=0.85, source="apache/arrow#2782")
def parquet_part_without_values() -> Content:
    """Parts in which a column has no value, and so the type null."""
    frame, score, rng = people(900, 106)
    grade = rng.normal(size=900)
    frame = frame.assign(grade=grade.round(3), wanted=split_in_two(score + np.where(np.arange(900) < 300, 0, grade)))

    def part(rows: pd.DataFrame) -> bytes:
        file = io.BytesIO()
        rows.to_parquet(file, index=False)
        return file.getvalue()

    empty = frame[:300].assign(grade=pd.Series([None] * 300, dtype=object))
    return {"a.parquet": part(empty), "b.parquet": part(frame[300:600]), "c.parquet": part(frame[600:])}
