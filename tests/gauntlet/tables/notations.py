"""Numbers, dates and durations in notations of other countries and programs, some of them mixed in a column."""

import numpy as np
import pandas as pd

from tests.gauntlet.tables.table import Content, people, scaled, split_in_two, table


@table("wanted", reach=0.9, source="pandas-dev/pandas#54665")
def grouped_thousands() -> Content:
    """1'234.50 (Switzerland), 1 234,5 with a no-break space (France), 1,23,456 (India), (1,200) and 1,200-."""
    rng = np.random.default_rng(80)
    score = 0.2 * rng.normal(size=1300)

    def indian(value: float) -> str:
        head, tail = divmod(int(value), 1000)
        return f"{head // 100},{head % 100:02d},{tail:03d}" if head >= 100 else f"{head},{tail:03d}"

    def signed(value: float) -> str:
        return f"({-value:,.0f})" if value < 0 else f"{value:,.0f}"

    forms = {
        "swiss": lambda value: f"{value:,.2f}".replace(",", "'"),
        "french": lambda value: f"{value:,.1f}".replace(",", "\u202f").replace(".", ","),
        "indian": indian,
        "brackets": lambda value: signed(value - 150_000),
        "behind": lambda value: f"{abs(value - 150_000):,.0f}{'-' if value < 150_000 else ''}",
    }
    columns = {}
    for name, form in forms.items():
        values = rng.uniform(1000, 300_000, 1300)
        score += scaled(values)
        columns[name] = [form(value) for value in values]
    return pd.DataFrame({**columns, "wanted": split_in_two(score)})


@table("wanted", reach=0.85, source="sdv-dev/SDV#2780")
def dates_with_leading_zeros() -> Content:
    """05112025: day, month, year without signs; never a number."""
    rng = np.random.default_rng(81)
    moments = pd.Series(np.datetime64("2015-01-01") + rng.integers(0, 3650, 1300).astype("timedelta64[D]"))
    score = scaled(moments.astype("int64")) + 0.1 * rng.normal(size=1300)
    return pd.DataFrame(
        {"day": moments.dt.strftime("%d%m%Y"), "noise": rng.normal(size=1300), "wanted": split_in_two(score)}
    )


@table("wanted", reach=0.85)
def excel_serial_dates() -> Content:
    """45123.5: days since 1899-12-30; a number that may stay one."""
    rng = np.random.default_rng(82)
    serial = 45_000 + rng.uniform(0, 700, 2000)
    noise = rng.normal(size=2000)
    score = scaled(serial) + 0.5 * noise + 0.1 * rng.normal(size=2000)
    return pd.DataFrame({"opened": serial.round(5), "noise": noise, "wanted": split_in_two(score)})


@table("wanted", reach=0.8, source="autogluon/autogluon#4190")
def sentinels() -> Content:
    """-999 for missing in a number that tells much: an outlier, or a note."""
    rng = np.random.default_rng(105)
    depth, other = rng.normal(size=1300), rng.normal(size=1300)
    score = scaled(depth) + 0.5 * other + 0.1 * rng.normal(size=1300)
    return pd.DataFrame(
        {
            "depth": np.where(rng.random(1300) < 0.1, -999.0, depth.round(3)),
            "other": other,
            "wanted": split_in_two(score),
        }
    )


@table("wanted", reach=0.7, says={"new": [r"(?m)^\s*note\b.*\bshipped\b"]})
def dates_in_two_orders() -> Content:
    """12/31/2023, and in a fifth of the rows 31/12/2023: 04/05 is read wrong, and only a note can say so."""
    rng = np.random.default_rng(107)
    moments = pd.Series(np.datetime64("2022-01-01") + rng.integers(0, 900, 1300).astype("timedelta64[D]"))
    score = scaled(moments.astype("int64")) + 0.1 * rng.normal(size=1300)
    american, other = moments.dt.strftime("%m/%d/%Y"), moments.dt.strftime("%d/%m/%Y")
    shipped = np.where(np.arange(1300) % 5 == 4, other, american)
    return pd.DataFrame({"shipped": shipped, "noise": rng.normal(size=1300), "wanted": split_in_two(score)})


@table(
    "wanted", reach=0.9, expected="pushed or refused: revenue", says={"new": [r"(?m)^\s*(note|amounts)\b.*\brevenue\b"]}
)
def points_for_thousands() -> Content:
    """950, 1.234 and 12.500: whole numbers with points for thousands, and no decimals that would tell."""
    rng = np.random.default_rng(108)
    revenue = rng.integers(100, 9000, 1300)
    noise = rng.normal(size=1300)
    score = scaled(revenue) + noise + 0.1 * rng.normal(size=1300)
    texts = [f"{value:,}".replace(",", ".") for value in revenue]
    return pd.DataFrame({"revenue": texts, "noise": noise, "wanted": split_in_two(score)})


@table("wanted", reach=0.7, says={"new": [r"(?m)^\s*note\b.*\bprice\b"]}, expected="pushed or refused: price")
def currencies_mixed() -> Content:
    """$12.00 and ¥1,800 in one column: one number each is wrong by a factor of 150."""
    rng = np.random.default_rng(109)
    price, other = rng.lognormal(3, 0.5, 1300), rng.normal(size=1300)
    score = scaled(price) + 2 * other + 0.1 * rng.normal(size=1300)
    texts = [f"${value:,.2f}" if row % 3 else f"¥{150 * value:,.0f}" for row, value in enumerate(price)]
    return pd.DataFrame({"price": texts, "other": other.round(3), "wanted": split_in_two(score)})


@table("wanted", reach=0.9, says={"new": [r"(?m)^\s*(note|amounts|numbers)\b.*\brate\b"]})
def percents_and_fractions() -> Content:
    """12% in two thirds of the rows and 0.12 in the others."""
    rng = np.random.default_rng(110)
    rate = rng.uniform(0.01, 0.99, 1300)
    noise = rng.normal(size=1300)
    score = scaled(rate) + noise + 0.1 * rng.normal(size=1300)
    texts = [f"{100 * value:.0f}%" if row % 3 else f"{value:.2f}" for row, value in enumerate(rate)]
    return pd.DataFrame({"rate": texts, "noise": noise, "wanted": split_in_two(score)})


@table("wanted", reach=0.9, says={"new": [r"(?m)^\s*(times|amounts|numbers|note)\b.*\btook\b"]})
def durations_as_text() -> Content:
    """36:15:00 and 1 days 02:03:04: durations beyond a day."""
    rng = np.random.default_rng(111)
    seconds, wait = rng.integers(0, 200_000, 1300), rng.integers(0, 400_000, 1300)
    score = scaled(seconds) + scaled(wait) + 0.1 * rng.normal(size=1300)
    took = [f"{one // 3600}:{one // 60 % 60:02d}:{one % 60:02d}" for one in seconds]
    return pd.DataFrame(
        {"took": took, "wait": pd.to_timedelta(wait, unit="s").astype(str), "noise": rng.normal(size=1300)}
    ).assign(wanted=split_in_two(score))


@table("wanted", reach=0.8)
def json_in_cells() -> Content:
    """JSON and lists of Python in cells."""
    frame, score, rng = people(1000, 112)
    tags = [[f"t{one}" for one in range(8) if rng.random() < 0.3] for _ in range(1000)]
    score = score + 2 * np.array(["t3" in one for one in tags])
    return frame.assign(
        tags=[str(one) for one in tags],
        meta=[f'{{"a": {len(one)}, "b": "x"}}' for one in tags],
        wanted=split_in_two(score),
    )
