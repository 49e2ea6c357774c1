"""Infer the label of a table: its classes, or that it is a number."""

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data import labels
from pipeline.data.table import one_array
from pipeline.errors import UserError
from pipeline.scaffold.texts import MOST, Place, Texts, amounts_of, row_number
from pipeline.settings.config import Label
from pipeline.settings.names import shortened
from pipeline.settings.notations import PLAIN_NUMBER
from pipeline.settings.tasks import Task

# Below this, one of the splits would hardly have any.
ROWS_OF_A_CLASS = 20
MOST_CLASSES = 100
CLASSES_OF_NUMBERS = 10


class LabelColumn(NamedTuple):
    """An inferred label."""

    label: Label
    values: np.ndarray  # numbers of classes, int64, or numbers, float64, [rows]
    note: str = ""  # on words that are read as another spelling of a class


def label_of(name: str, column: pa.ChunkedArray, task: Task | None, place: Place = row_number) -> LabelColumn:
    """Infer the label."""
    array = one_array(column)
    missing = array.null_count
    if missing:
        row = place(pc.index(pc.is_null(array), True).as_py())
        raise UserError(
            f"the label {name!r} is missing in {missing:,} of {len(array):,} rows, first in {row}; a model learns "
            "from rows with a label: leave these out"
        )
    numbers = _numbers(array)
    if numbers is not None and not np.isfinite(numbers).all():
        wrong = np.flatnonzero(~np.isfinite(numbers))
        raise UserError(
            f"the label {name!r} is {numbers[wrong[0]]} in {len(wrong):,} of {len(array):,} rows, first in "
            f"{place(int(wrong[0]))}; expected finite numbers: correct these rows, or leave them out"
        )
    words = _words(array)
    spellings = _spellings(words) if numbers is None else {}
    if spellings:
        found = pc.index_in(words, pa.array(list(spellings), words.type))
        words = pc.coalesce(pa.array(list(spellings.values()), words.type).take(found), words)
    if numbers is None and task in (None, "regression"):
        _check_numbers(name, words, task, place)
    counts = sorted(((item["values"], item["counts"]) for item in pc.value_counts(words).to_pylist()), key=_in_order)
    if len(counts) == 1:
        also = "".join(f" or {word!r}" for word in spellings)
        raise UserError(
            f"the label {name!r} is {counts[0][0]!r}{also} in all of {len(array):,} rows; a model learns from labels "
            "that differ"
        )
    if task is None:
        few = len(counts) <= CLASSES_OF_NUMBERS and numbers is not None and bool((numbers == np.floor(numbers)).all())
        task = "binary" if len(counts) == 2 else "multiclass" if numbers is None or few else "regression"
    if task == "regression":
        if numbers is None:
            raise UserError(
                f"the label {name!r} is text such as {counts[0][0]!r}; regression expects numbers{_of_amounts(words)}"
            )
        return LabelColumn(Label(name, classes=()), numbers)
    if (task == "binary") != (len(counts) == 2):
        raise UserError(f"the label {name!r} has {len(counts):,} different values, but --task is {task}")
    if len(counts) > MOST_CLASSES:
        raise UserError(
            f"the label {name!r} has {len(counts):,} different values, such as {counts[0][0]!r} and {counts[1][0]!r}; "
            f"expected at most {MOST_CLASSES} classes, or numbers{_of_amounts(words)}"
        )
    rare = [(word, count) for word, count in counts if count < ROWS_OF_A_CLASS]
    if rare:
        listed = ", ".join(f"{word!r} ({count})" for word, count in rare[:5])
        raise UserError(
            f"the label {name!r} has too few rows of {listed}; each class needs at least {ROWS_OF_A_CLASS}, for train, "
            "eval and test: leave these rows out, or give them to another class"
        )
    label = Label(name, classes=tuple(word for word, _ in counts), spellings=spellings)
    return LabelColumn(label, np.asarray(labels.encode(words, label.numbers)[0]), _note(array, label))


def _spellings(words: pa.Array) -> dict[str, str]:
    """Return the words that differ from a more frequent one only in case or spaces, with that word.

    More than two single letters are different classes, as of handwriting.
    """
    by_meaning: dict[str, list[str]] = {}
    for item in sorted(pc.value_counts(words).to_pylist(), key=lambda item: (-item["counts"], item["values"])):
        by_meaning.setdefault(labels.folded(item["values"]), []).append(item["values"])
    if len(by_meaning) > 2 and all(len(meaning) == 1 for meaning in by_meaning):
        return {}
    return {word: first for first, *others in by_meaning.values() for word in others}


def _note(array: pa.Array, label: Label) -> str:
    """Return the words, as they stand in the data, that are read as another spelling of a class, with their rows."""
    if not pa.types.is_string(array.type) and not pa.types.is_large_string(array.type):
        return ""
    read: dict[str, list[str]] = {}
    for item in pc.value_counts(array).to_pylist():
        word = item["values"].strip()
        meant = label.spellings.get(word, word)
        if item["values"] != meant:
            read.setdefault(meant, []).append(f"{item['values']!r} ({item['counts']:,} rows)")
    return "; ".join(f"{shortened(words, 8)} read as {meant!r}" for meant, words in read.items())


def _check_numbers(name: str, words: pa.Array, task: Task | None, place: Place) -> None:
    """Raise a UserError for a label of numbers, except a few, that names these."""
    texts = Texts.of(words.cast(pa.large_string()), place)
    plain = texts.matching(PLAIN_NUMBER)
    bare = pc.replace_substring_regex(texts.words.filter(pa.array(plain)), r"^\+", "")
    values = np.unique(np.array(bare.cast(pa.float64())))
    quantity = task == "regression" or len(values) > CLASSES_OF_NUMBERS or (values != np.floor(values)).any()
    share = texts.rows(plain) / len(words)
    odd = ~plain & (texts.absent | quantity)
    if share == 1 or share < MOST or not (plain | odd).all():
        return
    raise UserError(
        f"the label {name!r} is not a number in {texts.rows(odd):,} of {len(words):,} rows: {texts.named(odd)}; "
        "expected one in every row: correct these rows, or leave them out"
    )


def _in_order(word_and_count: tuple[str, int]) -> tuple[bool, float, str]:
    """Sort numbers by size, then words by the alphabet: no before yes, False before True, 9 before 10."""
    word = word_and_count[0]
    number = float(word) if re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?", word) else None
    return (number is None, number or 0.0, word)


def _of_amounts(words: pa.Array) -> str:
    """Return a remedy if all words are amounts; else ""."""
    if not amounts_of(Texts.of(words.cast(pa.large_string()))).fits.all():
        return ""
    return ". These are amounts, which are read of other columns only: write the label as 1234.5 in the file"


def _numbers(array: pa.Array) -> np.ndarray | None:
    if pa.types.is_boolean(array.type):
        return None
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = pc.utf8_trim_whitespace(array)
    try:
        return np.asarray(array.cast(pa.float64()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _words(array: pa.Array) -> pa.Array:
    if pa.types.is_boolean(array.type):
        return pc.if_else(array, "True", "False")
    if pa.types.is_floating(array.type):
        whole = pc.all(pc.equal(array, pc.floor(array))).as_py()
        return (array.cast(pa.int64()) if whole else array).cast(pa.string())
    return pc.utf8_trim_whitespace(array.cast(pa.string()))
