"""The text of a pipeline's own files, made of what its data is.

Text from the data (names of columns, classes, paths) stands in literals only, and what is written is compared,
statement by statement, with the same files of harmless data: no cell of a table becomes code.
"""

from __future__ import annotations

import ast
import math
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.scaffold.table import SHARES, Table
from pipeline.settings.config import SPLITS
from pipeline.settings.names import shortened
from pipeline.settings.tasks import Task

TEMPLATE = Path(__file__).with_name("module.txt")
Literal = Callable[[str], str]
# Steps of a training that small models on small data are done after.
STEPS = 1500
SMALL_SEARCH = 5_000
SQUARED_ERROR = '''

def squared_error(label, answer):
    """Squared errors of answers [batch, 1], in standard deviations of the label."""
    return keras.ops.mean(keras.ops.square((label - answer) / SPREAD), axis=-1)
'''
# What differs in a module file by what the label is.
OUTPUTS: dict[Task, dict[str, str]] = {
    "binary": {
        "label": "inputs[label]",
        "constants": "",
        "output": 'layers.Dense(1, "sigmoid", dtype="float32")(hidden)',
        "loss": '"binary_crossentropy"',
        "metrics": 'keras.metrics.AUC(name="auc")',
        "functions": "",
    },
    "multiclass": {
        "label": "inputs[label]",
        "constants": "CLASSES = $classes  # as many as label.classes in configs/$name.py\n",
        "output": 'layers.Dense(CLASSES, "softmax", dtype="float32")(hidden)',
        "loss": '"sparse_categorical_crossentropy"',
        "metrics": 'keras.metrics.SparseCategoricalAccuracy(name="accuracy")',
        "functions": "",
    },
    "regression": {
        "label": "tf.cast(inputs[label], tf.float32)",
        "constants": "# Mean and standard deviation of the label when this file was written: where the answers of a "
        "new model lie.\n# They need not follow the data.\nMEAN, SPREAD = $mean, $spread\n",
        "output": 'layers.Rescaling(SPREAD, MEAN, dtype="float32")(layers.Dense(1, dtype="float32")(hidden))',
        "loss": "squared_error",
        "metrics": 'keras.metrics.RootMeanSquaredError(name="rmse")',
        "functions": SQUARED_ERROR,
    },
}


def module_text(name: str, table: Table) -> str:
    """Return the text of the module file."""
    return _checked(lambda literal: _module(name, table, literal))


def config_text(name: str, data: str, table: Table) -> str:
    """Return the text of the config, for data at a path."""
    return _checked(lambda literal: _config(name, data, table, literal))


def _checked(render: Callable[[Literal], str]) -> str:
    """The text with the data's own words, whose statements are those of the same text without them."""
    text = render(_literal)
    if _statements(text) != _statements(render(lambda word: '"' + "x" * (len(_literal(word)) - 2) + '"')):
        raise AssertionError("text from the data became code; this is an error in pipeline/scaffold/files.py")
    return text


def _statements(text: str) -> str:
    """A module's syntax tree with all its constants left out."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = None
    return ast.dump(tree)


def _module(name: str, table: Table, literal: Literal) -> str:
    label = table.label
    parts = OUTPUTS[label.task]
    outputs = {key: f"{key}_" if label.name == key else key for key in ("categories", "numbers", "missing")}
    values = {
        **outputs,
        "name": name,
        "codes": _tuple([column.name for column in table.features if column.role == "code"], literal),
        "times": _mapping({one.name: one.form for one in table.features if one.role == "time"}, literal),
        "amounts": _mapping({one.name: one.form for one in table.features if one.role == "amount"}, literal),
        "origins": _mapping({one.name: one.origin for one in table.features if one.origin}, literal),
        "minimum_count": str(5 if table.rows.num_rows > 2000 else 2),
        "classes": str(len(label.classes)),
        "mean": _rounded(float(table.values.mean()), 4),
        "spread": _rounded(float(table.values.std()), 4),
    }
    values |= {key: string.Template(text).substitute(values) for key, text in parts.items()}
    return string.Template(TEMPLATE.read_text(encoding="utf-8")).substitute(values)


def _config(name: str, data: str, table: Table, literal: Literal) -> str:
    label, rows = table.label, table.rows.num_rows
    batch_size = 2 ** round(math.log2(min(2048, max(16, rows * 0.8 / 50))))
    epochs = min(60, max(5, math.ceil(STEPS * batch_size / (0.8 * rows))))
    gate, why, checks = _gate(table)
    head = f"    label=Label({literal(label.name)}"
    classes = _tuple(label.classes, literal, len(head) + len(", classes=),"))
    listing: list[str] = []
    if "\n" in classes:
        listing, classes = [f"CLASSES = {classes}"], "CLASSES"
    argument = "" if label.classes == ("0", "1") else f", classes={classes}"
    slices = [column.name for column in table.features if column.role == "category" and 2 <= column.distinct <= 10][:2]
    usual = table.shares == SHARES[0]
    names = [
        *("Data", "Evaluation", "Gate", "Label", "PipelineConfig", "Training", "Tuning"),
        *(["DataChecks"] if checks else []),
        *([] if usual else ["HashSplit"]),
    ]
    dealt = ":".join(str(share) for share in table.shares.values())
    shares = ", ".join(f'"{split}": {share}' for split, share in table.shares.items())
    source = [f"    data=Data({literal(data)}),"]
    if not usual:
        source = [
            "    data=Data(",
            f"        {literal(data)},",
            f"        split_by=HashSplit(shares={{{shares}}}),",
            "    ),",
        ]
    lines = [
        f'"""WHAT the pipeline {name} does. Yours to edit."""',
        "",
        f"from pipeline.config import {', '.join(sorted(names))}",
        "",
        *listing,
        "CONFIG = PipelineConfig(",
        f'    name="{name}",',
        f"    # Rows are dealt to train, eval and test by their hash, {dealt}; where time matters, take a TimeSplit.",
        *source,
        f"{head}{argument}),",
        f'    schema="schema/{name}/schema.pbtxt",',
        f'    module="models/{name}.py",',
        # Of few rows, a longer search finds what chance has made of the eval split.
        f"    tuning=Tuning(trials={4 if rows >= SMALL_SEARCH else 3}, epochs={max(3, epochs // 3)}),",
        f"    training=Training(epochs={epochs}, batch_size={batch_size}, patience=5),",
        "    evaluation=Evaluation(",
        f"        # {why} Say here what the model has to reach.",
        f"        gates=({gate},),",
        *([f"        slices={_tuple(slices, literal)},"] if slices else []),
        "    ),",
        *([f"    data_checks={checks},"] if checks else []),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _gate(table: Table) -> tuple[str, str, str]:
    """A first gate, the reason for it, and data checks where the usual ones would not do."""
    label = table.label
    by_split = [table.values[table.places == place] for place in range(len(SPLITS))]
    train, test = by_split[0], by_split[-1]
    if label.task == "regression":
        ceiling = _rounded(float(np.sqrt(np.mean((test - train.mean()) ** 2))), 3)
        drop = _rounded(0.05 * float(table.values.std()), 1)
        return f'Gate("rmse", ceiling={ceiling}, max_drop={drop})', "What always answering the mean comes to.", ""
    if label.task == "multiclass":
        most = int(np.bincount(train, minlength=len(label.classes)).argmax())
        floor = f"{(test == most).mean():.2f}"
        why = "What always answering the most frequent class comes to."
        return f'Gate("accuracy", floor={floor}, max_drop=0.02)', why, ""
    shares = [float(values.mean()) for values in by_split]
    checks = ""
    if not (min(shares) >= 0.02 and max(shares) <= 0.98):
        low, high = min(shares), max(shares)
        low = low / 4 if low < 0.5 else 1 - 4 * (1 - low)
        high = 4 * high if high < 0.5 else 1 - (1 - high) / 4
        checks = f"DataChecks(label_share=({_rounded(max(0.0, low), 2)}, {_rounded(min(1.0, high), 4)}))"
    return 'Gate("auc", floor=0.55, max_drop=0.02)', "Chance comes to 0.5.", checks


def summary(table: Table) -> Iterator[tuple[str, str]]:
    """Yield what was found, a line for each kind of column: the kind, and the columns."""
    label, values = table.label, table.values
    if label.task == "regression":
        what = f"{label.name}: a number, {values.min():g} to {values.max():g}, {values.mean():.4g} on average"
    else:
        shares = np.bincount(values, minlength=len(label.classes)) / len(values)
        each = [f"{word} ({100 * share:.3g} %)" for word, share in zip(label.classes, shares, strict=True)]
        what = f"{label.name}: {'two' if len(each) == 2 else len(each)} classes, {shortened(each, 8)}"
    yield "label", what
    kinds = {"category": "text", "number": "numbers", "code": "codes", "time": "times", "amount": "amounts"}
    for role, kind in kinds.items():
        names = [column.name for column in table.features if column.role == role]
        if names:
            yield kind, shortened(names, 12)
    out = [f"{column.name} ({column.left_out})" for column in table.columns if column.left_out]
    if out:
        yield "left out", shortened(out, 12)
    notes = [f"{column.name} ({column.note})" for column in table.features if column.note]
    if notes:
        yield "note", shortened(notes, 12)


def _literal(value: str) -> str:
    """A Python string, as ruff writes it."""
    literal = repr(value)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in literal else literal


def _tuple(values: Sequence[str], literal: Literal, before: int = 12) -> str:
    """A tuple as ruff writes it, a line a value where it does not fit into one; ``before`` stand before it."""
    items = [literal(value) for value in values]
    one_line = f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if before + len(one_line) <= 118:
        return one_line
    return "\n".join(["(", *(f"    {item}," for item in items), ")"])


def _mapping(values: Mapping[str, str | int], literal: Literal) -> str:
    """A dictionary as ruff writes it, of text or numbers by text."""
    items = [
        f"{literal(key)}: {literal(value) if isinstance(value, str) else f'{value:_}'}" for key, value in values.items()
    ]
    one_line = f"{{{', '.join(items)}}}"
    return one_line if len(one_line) <= 106 else "\n".join(["{", *(f"    {item}," for item in items), "}"])


def _rounded(value: float, digits: int) -> str:
    """A number of so many significant digits, as Python writes it."""
    return repr(float(f"{value:.{digits}g}"))
