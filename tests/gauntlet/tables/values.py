"""Values that are not what they seem."""

import numpy as np
import pandas as pd

from tests.gauntlet.tables.table import Content, people, scaled, split_in_two, table, with_gaps


@table("wanted", "two", reach=0.8)
def tract_codes() -> Content:
    """229 neighbouring codes beyond 2**24 that pandas wrote as floats, with gaps; float32 holds 1 of 1,000 apart."""
    rng = np.random.default_rng(11)
    codes = 17031080000 + np.arange(229)
    effect = rng.normal(size=229)
    which = rng.integers(0, 229, 8000)
    score = effect[which] + 0.3 * rng.normal(size=8000)
    tract = pd.Series(codes[which].astype(float)).where(rng.random(8000) > 0.05)
    return pd.DataFrame({"tract": tract, "noise": rng.normal(size=8000).round(3), "wanted": split_in_two(score)})


@table("wanted", "two", reach=0.9)
def money() -> Content:
    """$1,200.50, € 3.50, 12% and -$5: the label depends on nothing else."""
    rng = np.random.default_rng(12)
    rows = 2000
    price, fee, rate, change = (
        rng.lognormal(7, 1, rows),
        rng.uniform(1, 9, rows),
        rng.uniform(0, 60, rows),
        rng.normal(size=rows),
    )
    score = scaled(np.log(price)) + scaled(fee) + scaled(rate) + scaled(change) + 0.2 * rng.normal(size=rows)
    return pd.DataFrame(
        {
            "price": [f"${value:,.2f}" for value in price],
            "fee": [f"€ {value:.2f}" for value in fee],
            "rate": with_gaps([f"{value:.0f}%" for value in rate], rng),
            "change": [f"{'-' if value < 0 else ''}${abs(value) * 100:.0f}" for value in change],
            "wanted": split_in_two(score),
        }
    )


@table("wanted", "two", reach=0.9)
def german_numbers() -> Content:
    """1.234,5: a point for thousands, a comma for decimals."""
    rng = np.random.default_rng(13)
    rows = 2000
    first, second = rng.lognormal(7, 1.5, rows), rng.normal(0, 50, rows)
    score = scaled(np.log(first)) + scaled(second) + 0.2 * rng.normal(size=rows)

    def text(value: float) -> str:
        return f"{value:,.1f}".translate(str.maketrans(",.", ".,"))

    return pd.DataFrame({"umsatz": map(text, first), "saldo": map(text, second), "wanted": split_in_two(score)})


@table("wanted", "two", reach=0.85)
def dates() -> Content:
    """Dates and times in six ways of writing; one column of six is a plain number."""
    rng = np.random.default_rng(14)
    rows = 3000
    start = np.datetime64("2022-01-01T00:00:00")
    moments = [pd.Series(start + rng.integers(0, 3 * 365 * 86400, rows).astype("timedelta64[s]")) for _ in range(5)]
    iso, american, german, stamp, zoned = moments
    clock = rng.integers(0, 24 * 60, rows)
    plain = rng.normal(size=rows).round(3)
    parts = [scaled(moment.astype("int64")) for moment in moments]
    score = sum(parts) + scaled(clock) + plain + 0.2 * rng.normal(size=rows)
    return pd.DataFrame(
        {
            "iso": iso.dt.strftime("%Y-%m-%d"),
            "american": american.dt.strftime("%m/%d/%Y"),
            "german": with_gaps(german.dt.strftime("%d.%m.%Y").to_list(), rng),
            "stamp": stamp.dt.strftime("%Y-%m-%d %H:%M:%S"),
            "zoned": zoned.dt.strftime("%Y-%m-%dT%H:%M:%S+01:00"),
            "clock": [f"{minute // 60:02d}:{minute % 60:02d}" for minute in clock],
            "plain": plain,
            "wanted": split_in_two(score),
        }
    )


@table("wanted", "two")
def booleans_as_text() -> Content:
    """yes/no, TRUE/FALSE, True/False with gaps, Y/N, t/f, 0/1."""
    rng = np.random.default_rng(15)
    rows = 1000
    pairs = {"a": "no yes", "b": "FALSE TRUE", "c": "False True", "d": "N Y", "e": "f t", "f": "0 1", "g": "off on"}
    score = 0.2 * rng.normal(size=rows)
    columns: dict[str, object] = {}
    for name, words in pairs.items():
        which = rng.integers(0, 2, rows)
        score += scaled(which)
        values = np.array(words.split(), dtype=object)[which]
        columns[name] = with_gaps(values, rng) if name == "c" else values
    return pd.DataFrame({**columns, "wanted": split_in_two(score)})


@table("wanted", "two", reach=0.9)
def missing_words() -> Content:
    """Missing numbers spelled in eleven ways, in columns of floats and of whole numbers."""
    rng = np.random.default_rng(16)
    rows = 2000
    words = ["NA", "N/A", "n/a", "null", "NULL", "None", "nan", "NaN", "-", "?", ""]
    floats, wholes, dashes = (
        rng.normal(5, 2, rows).round(2),
        rng.integers(0, 5000, rows),
        rng.normal(size=rows).round(3),
    )
    score = scaled(floats) + scaled(wholes) + scaled(dashes) + 0.2 * rng.normal(size=rows)
    return pd.DataFrame(
        {
            "floats": with_gaps(floats, rng, words),
            "wholes": with_gaps(wholes, rng, words),
            "dashes": with_gaps(dashes, rng, "-", 0.05),
            "wanted": split_in_two(score),
        }
    )


@table("wanted", "two", expected="pushed or refused: ratio")
def infinities() -> Content:
    """Infinities among floats, as pandas writes a division by zero."""
    frame, score, rng = people(1000)
    ratio = rng.normal(size=1000).round(3)
    ratio[::100], ratio[1::100] = np.inf, -np.inf
    return frame.assign(ratio=ratio, wanted=split_in_two(score))


@table("wanted", "two", expected="pushed or refused: giant")
def giants() -> Content:
    """1e300 and 1e-300: beyond float32."""
    frame, score, rng = people(1000)
    giant = np.array([f"{value:.3f}" for value in rng.normal(size=1000)], dtype=object)
    giant[::50], giant[1::50] = "1e300", "1e-300"
    return frame.assign(giant=giant, wanted=split_in_two(score))


@table("wanted", "two", reach=0.9)
def epochs() -> Content:
    """Seconds, milliseconds and fractions of a second since 1970: the label depends on their order."""
    rng = np.random.default_rng(17)
    rows = 2000
    seconds, millis, exact = (rng.integers(0, 30 * 86400, rows) + 1_700_000_000 for _ in range(3))
    score = scaled(seconds) + scaled(millis) + scaled(exact) + 0.2 * rng.normal(size=rows)
    return pd.DataFrame(
        {
            "seconds": seconds,
            "millis": millis * 1000 + rng.integers(0, 1000, rows),
            "exact": [
                f"{value}.{micro:06d}" for value, micro in zip(exact, rng.integers(0, 1_000_000, rows), strict=True)
            ],
            "wanted": split_in_two(score),
        }
    )


@table("wanted", "two")
def whole_numbers_with_gaps() -> Content:
    """Whole numbers and gaps: written 3.0 by pandas in one column, 3 in another."""
    frame, score, rng = people(1000)
    kids, rooms = rng.integers(0, 6, 1000), rng.integers(0, 6, 1000)
    score = score + kids - rooms
    return frame.assign(
        kids=pd.Series(kids.astype(float)).where(rng.random(1000) > 0.1),
        rooms=with_gaps(rooms, rng),
        wanted=split_in_two(score),
    )


@table("wanted", "two", slow=True)
def giant_text() -> Content:
    """A text of 10 MB in one row."""
    frame, score, rng = people(1000)
    notes = rng.choice(["good", "bad", "so so"], 1000).astype(object)
    notes[500] = "x" * 10_000_000
    return frame.assign(notes=notes, wanted=split_in_two(score))


@table("wanted", "two")
def useless_columns() -> Content:
    """A constant, ids in numbers and text, an empty column, free text, one without values in the last rows."""
    frame, score, rng = people(1000)
    words = ["customer", "said", "the", "price", "was", "too", "high", "and", "left", "for", "good", "again"]
    return frame.assign(
        constant="DE",
        constant_number=7,
        row=np.arange(1000),
        uuid=[f"{value:032x}" for value in rng.integers(0, 2**62, 1000)],
        empty="",
        remarks=[" ".join(rng.choice(words, 8)) for _ in range(1000)],
        ends_early=[str(place % 7) if place < 700 else "" for place in range(1000)],
        wanted=split_in_two(score),
    )


@table("wanted", "two", reach=0.75)
def many_categories() -> Content:
    """5,000 shops in 30,000 rows, and 300 towns that tell much."""
    rng = np.random.default_rng(18)
    rows = 30_000
    effect = rng.normal(size=300)
    town, shop = rng.integers(0, 300, rows), rng.integers(0, 5000, rows)
    score = effect[town] + 0.5 * rng.normal(size=rows)
    return pd.DataFrame(
        {
            "town": [f"town {one}" for one in town],
            "shop": [f"shop-{one:05d}" for one in shop],
            "wanted": split_in_two(score),
        }
    )


@table("wanted", "two", reach=0.9, tuning=True)
def ids() -> Content:
    """Codes such as 00123, 1e5 beside 100000, and hexadecimal ones: text, though some look like numbers; tuner on."""
    rng = np.random.default_rng(19)
    rows = 3000
    zip_codes = [f"{value:05d}" for value in rng.choice(20_000, 40, replace=False)]
    likes = ["1e5", "100000", "1e05", "1E5", "3a7", "100000.0", "2e3", "2000", "0x10", "16"]
    hexes = [f"{value:04x}" for value in rng.choice(65536, 40, replace=False)]
    score = 0.3 * rng.normal(size=rows)
    columns = {}
    for name, values in {"zip": zip_codes, "lot": likes, "hex": hexes}.items():
        which = rng.integers(0, len(values), rows)
        columns[name] = np.array(values, dtype=object)[which]
        score += rng.permutation(scaled(np.arange(len(values))))[which]
    return pd.DataFrame({**columns, "wanted": split_in_two(score)})


@table("wanted", "two", expected="refused: refund paid", advice="--leave-out")
def leak() -> Content:
    """A column that is known after the label only, and tells it."""
    frame, score, rng = people(1000)
    wanted = split_in_two(score)
    refund = np.where(wanted == "yes", rng.uniform(1, 100, 1000).round(2), 0.0)
    return frame.assign(**{"refund paid": refund, "wanted": wanted})
