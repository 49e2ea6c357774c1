"""Columns most of whose values are dates or numbers, and labels in several spellings."""

import numpy as np
import pandas as pd

from tests.gauntlet.tables.table import Content, labelled, people, scaled, split_in_two, table

ODD_DATES = {
    "nat": "NaT",
    "unknown": "unknown",
    "tbd": "TBD",
    "never": "never",
    "zero": "0000-00-00",
    "impossible": "2023-02-30",
    "far": "9999-12-31",
    "blank": "   ",
}


def _moments(rng: np.random.Generator, rows: int) -> pd.Series:
    start = np.datetime64("2022-01-01T00:00:00")
    return pd.Series(start + rng.integers(0, 3 * 365 * 86400, rows).astype("timedelta64[s]"))


@table("wanted", reach=0.93, says={"new": [rf"(?m)^\W*times\b.*\b{name}\b" for name in ODD_DATES]})
def dates_odd_words() -> Content:
    """Eight columns of dates, one value of each of which is no date."""
    rng = np.random.default_rng(31)
    score = 0.2 * rng.normal(size=1300)
    columns = {}
    for place, (name, word) in enumerate(ODD_DATES.items()):
        moments = _moments(rng, 1300)
        score += scaled(moments.astype("int64"))
        texts = moments.dt.strftime("%Y-%m-%d").to_list()
        texts[37 + place] = word
        columns[name] = texts
    return pd.DataFrame({**columns, "wanted": split_in_two(score)})


@table("wanted", reach=0.93, says={"new": ["TBD", "noon"]})
def date_some_odd_words() -> Content:
    """A date column with 6 % of TBD, and times of day with 24:00 and noon: the note names the words."""
    rng = np.random.default_rng(32)
    moments, minutes = _moments(rng, 1300), rng.integers(0, 24 * 60, 1300)
    score = scaled(moments.astype("int64")) + scaled(minutes) + 0.1 * rng.normal(size=1300)
    due = np.where(rng.random(1300) < 0.06, "TBD", moments.dt.strftime("%m/%d/%Y"))
    clock = [f"{minute // 60:02d}:{minute % 60:02d}" for minute in minutes]
    clock[5], clock[70] = "24:00", "noon"
    return pd.DataFrame({"due": due, "clock": clock, "wanted": split_in_two(score)})


@table(
    "wanted",
    reach=0.9,
    says={
        "new": [
            rf"(?m)^\s*(times|note)\b.*\b{name}\b"
            for name in ("month", "american", "short", "basic", "dots", "offsets")
        ]
    },
)
def date_notations() -> Content:
    """Six notations: 04-Mar-2023, Mar 4, 2023, 3/4/23, 20230304T101112Z, 2023.03.04, mixed UTC offsets."""
    rng = np.random.default_rng(33)
    forms = ["%d-%b-%Y", "%b %-d, %Y", "%-m/%-d/%y", "%Y%m%dT%H%M%SZ", "%Y.%m.%d", "%Y-%m-%dT%H:%M:%S"]
    score = 0.2 * rng.normal(size=1500)
    columns = {}
    for name, form in zip(["month", "american", "short", "basic", "dots", "offsets"], forms, strict=True):
        moments = _moments(rng, 1500)
        score += scaled(moments.astype("int64"))
        columns[name] = moments.dt.strftime(form)
    columns["offsets"] += rng.choice(["+02:00", "+01:00", "Z", "-0500"], 1500)
    return pd.DataFrame({**columns, "wanted": split_in_two(score)})


@table("wanted", reach=0.93, says={"new": ["unknown", "see note", "tbc"]})
def number_odd_words() -> Content:
    """Numbers, amounts and percents, each with one odd word, and blanks: the note names the words."""
    rng = np.random.default_rng(34)
    score = 0.2 * rng.normal(size=1300)
    columns = {}
    for place, (name, form, word) in enumerate(
        [
            ("plain", "{:.2f}", "unknown"),
            ("price", "${:.2f}", "see note"),
            ("rate", "{:.1f}%", "tbc"),
            ("gap", "{:.2f}", "  "),
        ]
    ):
        values = rng.normal(50, 9, 1300)
        score += scaled(values)
        texts = [form.format(value) for value in values]
        texts[41 + place] = word
        columns[name] = texts
    return pd.DataFrame({**columns, "wanted": split_in_two(score)})


@table("wanted", reach=0.93)
def censored() -> Content:
    """Numbers with 12 % of <0.5 and a few >1000; as pyarrow or R read them, text."""
    rng = np.random.default_rng(35)
    lead, count = rng.lognormal(0.5, 0.8, 1300), rng.lognormal(5, 1, 1300)
    score = scaled(np.log(lead)) + scaled(np.log(count)) + 0.1 * rng.normal(size=1300)
    return pd.DataFrame(
        {
            "lead": ["<0.5" if value < np.quantile(lead, 0.12) else f"{value:.3f}" for value in lead],
            "count": [">1000" if value > 1000 else "< 20" if value < 20 else f"{value:.1f}" for value in count],
            "wanted": split_in_two(score),
        }
    )


@table("wanted", reach=0.93)
def units() -> Content:
    """50.3 kg, 12mg/L, 37.2 °C, 1,200 km: numbers with one unit each."""
    rng = np.random.default_rng(36)
    score = 0.2 * rng.normal(size=1300)
    columns = {}
    for name, form in {"mass": "{:.1f} kg", "iron": "{:.1f}mg/L", "heat": "{:.1f} °C", "way": "{:,.0f} km"}.items():
        values = rng.normal(1400 if name == "way" else 60, 300 if name == "way" else 12, 1300)
        score += scaled(values)
        columns[name] = [form.format(value) for value in values]
    return pd.DataFrame({**columns, "wanted": split_in_two(score)})


@table("wanted", reach=0.7, expected="pushed or refused: (?i)dose.*(mg|unit)", says={"new": [r"(?i)dose.*\bm?g\b"]})
def units_mixed() -> Content:
    """500 mg and 0.5 g in one column: as one number each it is wrong by a thousand."""
    rng = np.random.default_rng(37)
    dose, other = rng.uniform(100, 2000, 1300), rng.normal(size=1300)
    score = scaled(dose) + 2 * scaled(other) + 0.1 * rng.normal(size=1300)
    texts = [f"{value:.0f} mg" if place % 3 else f"{value / 1000:.3f} g" for place, value in enumerate(dose)]
    return pd.DataFrame({"dose": texts, "other": other.round(3), "wanted": split_in_two(score)})


@table("wanted", reach=0.7, says={"new": [r"reading.*\b6\d(\.\d)? ?%.*(broken|no signal|jammed)"]})
def number_many_odd_words() -> Content:
    """A column of which two thirds are numbers: the note names the share and an example of the others."""
    rng = np.random.default_rng(38)
    reading, other = rng.normal(size=1300), rng.normal(size=1300)
    score = 0.3 * reading + scaled(other) + 0.1 * rng.normal(size=1300)
    words = rng.choice(["broken", "no signal", "jammed"], 1300)
    texts = [words[row] if row % 3 == 0 else f"{value:.3f}" for row, value in enumerate(reading)]
    return pd.DataFrame({"reading": texts, "other": other.round(3), "wanted": split_in_two(score)})


@table("ppm", "number", expected=r"refused: (?s)<4\.0.*row 3\b|row 3\b.*<4\.0")
def label_censored() -> Content:
    """A number to predict, with <4.0: the first one stands in row 3."""
    frame, score, _ = people(1000, 39)
    ppm = 20 + 9 * scaled(score)
    ppm[2] = 1
    return frame.assign(ppm=["<4.0" if value < 4 else f"{value:.1f}" for value in ppm])


@table("weight", "number", reach=0.6, expected=r"pushed or refused: \d+\.\d kg.*row 1\b")
def label_with_unit() -> Content:
    """A number to predict, written 50.3 kg."""
    frame, score, _ = people(1000, 40)
    return frame.assign(weight=[f"{value:.1f} kg" for value in 50 + 9 * score])


@table(
    "wanted",
    expected=r"pushed or refused: (?i)yes",
    says={"new": [r"(?m)^\s*note\b.*\byes\b"]},
)
def label_spellings() -> Content:
    """The classes yes, Yes, YES with a space, no and No: one note, or the mapping."""
    frame = labelled(["no", "yes"], 41, 1000)
    ways = {"yes": ["yes", "yes", "yes", "Yes", "YES "], "no": ["no", "no", "No", "no", "no"]}
    return frame.assign(wanted=[ways[word][row % 5] for row, word in enumerate(frame["wanted"])])


@table("wanted", reach=0.9)
def excel_errors() -> Content:
    """#DIV/0! and #N/A in a fifth of the numbers: missing, as Excel means them."""
    rng = np.random.default_rng(43)
    margin, other = rng.normal(size=1300), rng.normal(size=1300)
    score = np.where(np.arange(1300) % 5 == 0, 0, 2 * margin) + other + 0.1 * rng.normal(size=1300)
    words = np.array(["#DIV/0!", "#N/A", "#VALUE!", "#REF!"])
    texts = [words[row // 5 % 4] if row % 5 == 0 else f"{value:.3f}" for row, value in enumerate(margin)]
    return pd.DataFrame({"margin": texts, "other": other.round(3), "wanted": split_in_two(score)})


@table("wanted", reach=0.9)
def minus_signs() -> Content:
    """The minus sign U+2212 and the full-width one in place of the hyphen."""
    rng = np.random.default_rng(44)
    first, second = rng.normal(0, 50, 1300), rng.normal(0, 50, 1300)
    score = scaled(first) + scaled(second) + 0.1 * rng.normal(size=1300)
    return pd.DataFrame(
        {
            "first": [f"{value:.1f}".replace("-", "\u2212") for value in first],
            "second": [f"{value:.1f}".replace("-", "\uff0d") for value in second],
            "wanted": split_in_two(score),
        }
    )


@table("wanted", reach=0.7, says={"new": [r"(?m)^\s*(amounts|numbers|note)\b.*\bviews\b"]})
def thousands_by_letter() -> Content:
    """950, 12.3k and 4.5M: a number by its letter, or a note; never the number before the letter alone."""
    rng = np.random.default_rng(45)
    views, other = rng.lognormal(11, 2.5, 1300), rng.normal(size=1300)
    score = 0.5 * scaled(np.log(views)) + other + 0.1 * rng.normal(size=1300)
    texts = [f"{one:.0f}" if one < 1e3 else f"{one / 1e3:.1f}k" if one < 1e6 else f"{one / 1e6:.1f}M" for one in views]
    return pd.DataFrame({"views": texts, "other": other.round(3), "wanted": split_in_two(score)})
