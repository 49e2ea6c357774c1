"""A table of the gauntlet, the register of all, and parts to make tables of."""

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

Content: TypeAlias = "pd.DataFrame | pa.Table | bytes | Mapping[str, Content]"

# What hostile cells would write if any of them ran.
MARKER = Path(tempfile.gettempdir()) / "gauntlet_hostile_text_ran"


@dataclass(frozen=True)
class Asked:
    """A file for predict of a model that was trained on a table, and what must come of it."""

    file: str
    make: Callable[[], Content]
    expected: str = "alike"
    """"alike": the answers for the table; "empty": no answers; "warned: REGEX", "refused: REGEX"; or several of these:
    "alike or refused: REGEX"."""

    def write(self, folder: Path) -> Path:
        """Write the file there; return it."""
        _write(self.make(), folder / self.file)
        return folder / self.file


@dataclass(frozen=True)
class Table:
    """A table, how a newcomer asks for it, and what must come of it."""

    name: str
    label: str
    kind: str
    """The label: "two", "several" or "number"."""
    make: Callable[[], Content]
    expected: str = "pushed"
    """"pushed", "refused: REGEX of the sentence of new", "stopped: REGEX of the output of a run that fails", or several
    of these: "pushed or refused: REGEX"."""
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
    options: tuple[str, ...] = ()
    """More arguments of new."""
    says: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Regular expressions that the output of "new", "run" or "predict" must match, if it is accepted."""
    edit: tuple[str, str] = ()
    """Text in the config that new writes, and its replacement."""
    module: Mapping[str, str] | None = None
    """Replacements in modules/plain.py, which is run with a plain config in place of the files that new writes."""
    classes: tuple[str, ...] = ("no", "yes")
    """Classes in that config."""
    asked: tuple["Asked", ...] = ()
    """More files for predict."""
    source: str = ""
    """Public report of such a problem."""

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
        TABLES[name] = Table(name, label, kind, make, **settings)
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
