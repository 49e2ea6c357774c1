"""Files for predict that say the same as the table of training in another spelling, or that only look alike."""

import io
import json

import numpy as np
import pandas as pd

from tests.gauntlet.tables.table import Asked, Content, scaled, split_in_two, table

ROWS = 1200


def _frame() -> pd.DataFrame:
    rng = np.random.default_rng(121)
    opened = pd.Series(
        np.datetime64("2023-01-01T00:00:00") + rng.integers(0, 700 * 86400, ROWS).astype("timedelta64[s]")
    )
    depth, steps = rng.normal(20, 5, ROWS), rng.integers(0, 5000, ROWS)
    zips = rng.integers(0, 12, ROWS)
    region, member, price = rng.integers(0, 4, ROWS), rng.random(ROWS) < 0.5, rng.lognormal(7, 1, ROWS)
    effects = [depth, steps, rng.normal(size=12)[zips], region, 3 * member, np.log(price), opened.astype("int64")]
    score = sum(scaled(effect) for effect in effects) + 0.2 * rng.normal(size=ROWS)
    return pd.DataFrame(
        {
            "depth": depth.round(2),
            "steps": steps,
            "zip": np.array([f"0{2100 + 13 * place}" for place in range(12)])[zips],
            "region": np.array(["north", "south", "east", "west"])[region],
            "member": member,
            "price": [f"${value:,.2f}" for value in price],
            "opened": opened,
            "wanted": split_in_two(score),
        }
    )


def _text() -> pd.DataFrame:
    frame = _frame()
    return frame.assign(member=frame["member"].map({True: "True", False: "False"}), opened=frame["opened"].astype(str))


def _with(**columns) -> pd.DataFrame:
    frame = _text().drop(columns="wanted")
    return frame.assign(**{name: make(frame[name]) for name, make in columns.items()})


def _csv(frame: pd.DataFrame, **settings) -> bytes:
    return frame.to_csv(index=False, **settings).encode()


def _one(column: pd.Series, word: object) -> list:
    return [word if row == 7 else value for row, value in enumerate(column)]


def _json_lines(**kinds) -> bytes:
    frame = _text().drop(columns="wanted")
    rows = frame.assign(**{name: frame[name].map(make) for name, make in kinds.items()}).to_dict("records")
    return "\n".join(json.dumps(row, default=str) for row in rows).encode()


def _parquet(frame: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    frame.to_parquet(file, index=False)
    return file.getvalue()


def _header_again() -> bytes:
    lines = _csv(_with()).splitlines()
    return b"\n".join([*lines[:8], lines[0], *lines[8:]])


TO_BOOL = {"True": True, "False": False}

SAME = (
    Asked("member_10.csv", lambda: _with(member=lambda column: column.map({"True": 1, "False": 0}))),
    Asked(
        "member_yes.csv",
        lambda: _with(member=lambda column: column.map({"True": "yes", "False": "no"})),
        "alike or warned: member",
    ),
    Asked("member_lower.csv", lambda: _with(member=lambda column: column.str.lower())),
    Asked("member.jsonl", lambda: _json_lines(member=TO_BOOL.get)),
    Asked("member_10.jsonl", lambda: _json_lines(member=lambda word: int(word == "True"))),
    Asked("typed.parquet", lambda: _parquet(_frame().drop(columns="wanted")), "alike or refused: opened"),
    Asked("text.parquet", lambda: _parquet(_with())),
    Asked(
        "categories.parquet",
        lambda: _parquet(
            _with(region=lambda column: column.astype("category"), zip=lambda column: column.astype("category"))
        ),
    ),
    Asked("steps_float.csv", lambda: _with(steps=lambda column: column.astype(float))),
    Asked("steps_float.parquet", lambda: _parquet(_with(steps=lambda column: column.astype(float)))),
    Asked(
        "order.csv", lambda: _with()[["opened", "price", "member", "region", "zip", "steps", "depth"]].assign(other="x")
    ),
    Asked("bom.csv", lambda: b"\xef\xbb\xbf" + _csv(_with(), lineterminator="\r\n")),
    Asked(
        "zoned.csv",
        lambda: _with(
            opened=lambda column: (pd.to_datetime(column) + pd.Timedelta(hours=2)).dt.strftime(
                "%Y-%m-%d %H:%M:%S+02:00"
            )
        ),
    ),
    Asked("price_plain.csv", lambda: _with(price=lambda column: column.str.replace("[$,]", "", regex=True))),
)

OTHER = (
    Asked("zip_number.csv", lambda: _with(zip=lambda column: column.astype(int)), "alike or warned: zip"),
    Asked("region_upper.csv", lambda: _with(region=lambda column: column.str.upper()), "warned: (?s)region.*NORTH"),
    Asked("region_spaces.csv", lambda: _with(region=lambda column: column + " "), "alike or warned: region"),
    Asked("depth_gone.csv", lambda: _with(depth=lambda column: ""), "warned or refused: depth"),
    Asked(
        "depth_word.csv",
        lambda: _with(depth=lambda column: _one(column, "unknown")),
        "warned or refused: (?s)depth.*unknown|row 8.*depth",
    ),
    Asked(
        "depth_inf.csv",
        lambda: _with(depth=lambda column: _one(column, "inf")),
        "warned or refused: (?s)depth.*inf|inf.*depth",
    ),
    Asked("depth_missing.csv", lambda: _with(depth=lambda column: _one(column, "")), "warned or refused: (?s)depth"),
    Asked(
        "depth_comma.csv",
        lambda: _with(depth=lambda column: column.astype(str).str.replace(".", ",")),
        "warned or refused: depth",
    ),
    Asked(
        "steps_commas.csv",
        lambda: _with(steps=lambda column: [f"{value:,}" for value in column]),
        "alike or warned or refused: steps",
    ),
    Asked(
        "steps_exponent.csv",
        lambda: _with(steps=lambda column: [f"{value:.3E}" for value in column]),
        "alike or warned or refused: steps",
    ),
    Asked(
        "opened_german.csv",
        lambda: _with(opened=lambda column: pd.to_datetime(column).dt.strftime("%d.%m.%Y %H:%M:%S")),
        "alike or warned or refused: opened",
    ),
    Asked(
        "opened_epoch.csv",
        lambda: _with(opened=lambda column: pd.to_datetime(column).astype("int64") // 10**9),
        "warned or refused: opened",
    ),
    Asked(
        "price_german.csv",
        lambda: _with(price=lambda column: column.str.replace("$", "").str.translate(str.maketrans(",.", ".,"))),
        "alike or warned or refused: price",
    ),
    Asked("name_space.csv", lambda: _with().rename(columns={"depth": "depth "}), "refused: depth"),
    Asked("no_region.csv", lambda: _with().drop(columns="region"), "warned or refused: region"),
    Asked("semicolons.csv", lambda: _csv(_with(), sep=";"), "refused: (?i)semicolon|;|comma"),
    Asked("header_again.csv", _header_again, "refused: (?i)row 8\\b"),
    Asked("header_only.csv", lambda: _with()[:0], "empty"),
    Asked("no_bytes.csv", lambda: b"", "empty or refused: (?i)empty|no header"),
    Asked("no_rows.parquet", lambda: _parquet(_with()[:0]), "empty"),
    Asked("no_lines.jsonl", lambda: b"", "empty"),
    Asked("region_bad.jsonl", lambda: _json_lines(depth=str), "alike or refused: (?s)depth"),
)


@table("wanted", reach=0.85, asked=SAME, source="alteryx/evalml#3498")
def asked_alike() -> Content:
    """Trained on CSV; asked with fourteen files of the same rows."""
    return _text()


@table("wanted", reach=0.85, asked=OTHER, source="pycaret/pycaret#1060")
def asked_otherwise() -> Content:
    """Trained on CSV; asked with files that another program spoiled."""
    return _text()


@table(
    "wanted",
    reach=0.85,
    file="{name}.parquet",
    asked=(
        Asked("text.csv", _with, "alike or refused: opened"),
        Asked("typed.jsonl", lambda: _json_lines(member=TO_BOOL.get), "alike or refused: opened"),
        Asked(
            "member_gaps.parquet",
            lambda: _parquet(_frame().assign(member=lambda frame: frame["member"].astype("boolean"))),
        ),
        Asked(
            "member_int.parquet", lambda: _parquet(_frame().assign(member=lambda frame: frame["member"].astype("int8")))
        ),
        Asked(
            "member_text.parquet",
            lambda: _parquet(_frame().assign(member=lambda frame: frame["member"].astype(str))),
            "alike or warned or refused: member",
        ),
        Asked(
            "steps_float.parquet", lambda: _parquet(_frame().assign(steps=lambda frame: frame["steps"].astype(float)))
        ),
        Asked(
            "steps_small.parquet", lambda: _parquet(_frame().assign(steps=lambda frame: frame["steps"].astype("int16")))
        ),
        Asked(
            "depth_single.parquet",
            lambda: _parquet(_frame().assign(depth=lambda frame: frame["depth"].astype("float32"))),
        ),
        Asked(
            "opened_ns.parquet",
            lambda: _parquet(_frame().assign(opened=lambda frame: frame["opened"].astype("datetime64[ns]"))),
        ),
        Asked(
            "opened_zoned.parquet",
            lambda: _parquet(
                _frame().assign(opened=lambda frame: frame["opened"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"))
            ),
        ),
        Asked(
            "opened_text.parquet",
            lambda: _parquet(_frame().assign(opened=lambda frame: frame["opened"].astype(str))),
            "alike or warned or refused: opened",
        ),
        Asked(
            "zip_number.parquet",
            lambda: _parquet(_frame().assign(zip=lambda frame: frame["zip"].astype(int))),
            "alike or warned or refused: zip",
        ),
        Asked(
            "region.parquet", lambda: _parquet(_frame().assign(region=lambda frame: frame["region"].astype("category")))
        ),
    ),
    source="autogluon/autogluon#601",
)
def asked_parquet() -> Content:
    """Trained on Parquet; asked with CSV, JSON lines, and Parquet of other widths and types."""
    return _frame()


def _ids(kind: str) -> pd.DataFrame:
    rng = np.random.default_rng(122)
    which = rng.integers(0, 40, ROWS)
    effect = rng.normal(size=40)[which]
    shop = pd.Series(700 + which).astype("Int64").where(np.arange(ROWS) != 50).astype(kind)
    frame = pd.DataFrame({"shop_id": shop, "noise": rng.normal(size=ROWS).round(3)})
    return frame.assign(wanted=split_in_two(effect + scaled(frame["noise"]) + 0.2 * rng.normal(size=ROWS)))


@table(
    "wanted",
    reach=0.8,
    asked=(
        Asked("whole.csv", lambda: _ids("Int64")),
        Asked("whole.parquet", lambda: _parquet(_ids("Int64"))),
        Asked("text.parquet", lambda: _parquet(_ids("string")), "alike or warned or refused: shop_id"),
        Asked(
            "other.csv", lambda: _ids("Int64").assign(shop_id=lambda frame: frame["shop_id"] + 5000), "warned: shop_id"
        ),
    ),
    source="pandas-dev/pandas#8596",
)
def asked_ids_as_floats() -> Content:
    """Ids with a gap, which pandas wrote as 701.0; asked with 701, and with unknown ids."""
    return _ids("float")
