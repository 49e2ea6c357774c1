"""The text of a pipeline's own files, made of what its data is."""

from __future__ import annotations

import math
import string
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.scaffold.columns import Table
from pipeline.tasks import Task

TEMPLATE = Path(__file__).with_name("module.txt")
# Steps of a training that small models on small data are done after.
STEPS = 1500
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
    """The module file."""
    label = table.label
    answers = {
        "binary": f"the probability that {label.name} is {label.classes[-1] if label.classes else ''}",
        "multiclass": f"which {label.name} it is",
        "regression": f"how much {label.name} is",
    }
    parts = OUTPUTS[label.task]
    values = {
        "name": name,
        "answer": answers[label.task],
        "codes": _tuple([column.name for column in table.features if column.is_code]),
        "minimum_count": str(5 if table.rows.num_rows > 2000 else 2),
        "classes": str(len(label.classes)),
        "mean": _rounded(float(table.values.mean()), 4),
        "spread": _rounded(float(table.values.std()), 4),
    }
    values |= {key: string.Template(text).substitute(values) for key, text in parts.items()}
    return string.Template(TEMPLATE.read_text(encoding="utf-8")).substitute(values)


def config_text(name: str, data: str, table: Table) -> str:
    """The config."""
    label, rows = table.label, table.rows.num_rows
    batch_size = 2 ** round(math.log2(min(2048, max(16, rows * 0.8 / 50))))
    epochs = min(60, max(5, math.ceil(STEPS * batch_size / (0.8 * rows))))
    gate, why, checks = _gate(table)
    head = f"    label=Label({_text(label.name)}"
    classes = _tuple(list(label.classes), len(head) + len(", classes=),"))
    listing: list[str] = []
    if "\n" in classes:
        listing, classes = [f"CLASSES = {classes}"], "CLASSES"
    argument = "" if label.classes == ("0", "1") else f", classes={classes}"
    slices = [column.name for column in table.features if column.kind == "text" and 2 <= column.distinct <= 10][:2]
    names = ["Data", *(["DataChecks"] if checks else []), "Evaluation", "Gate", "Label", "PipelineConfig", "Training"]
    lines = [
        f'"""Predicts {label.name} from {Path(data).name}: WHAT the pipeline does. Yours to edit."""',
        "",
        f"from pipeline.config import {', '.join([*names, 'Tuning'])}",
        "",
        *listing,
        "CONFIG = PipelineConfig(",
        f"    name={_text(name)},",
        "    # Rows are dealt to train, eval and test by their hash, 8:1:1; where time matters, take a TimeSplit.",
        f"    data=Data({_text(data)}),",
        f"{head}{argument}),",
        f"    schema={_text(f'schema/{name}/schema.pbtxt')},",
        f"    module={_text(f'models/{name}.py')},",
        f"    tuning=Tuning(trials=4, epochs={max(3, epochs // 3)}),",
        f"    training=Training(epochs={epochs}, batch_size={batch_size}, patience=5),",
        "    evaluation=Evaluation(",
        f"        # {why} Say here what the model has to reach.",
        f"        gates=({gate},),",
        *([f"        slices={_tuple(slices)},"] if slices else []),
        "    ),",
        *([f"    data_checks={checks},"] if checks else []),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _gate(table: Table) -> tuple[str, str, str]:
    """A first gate, the reason for it, and data checks where the usual ones would not do."""
    label, values = table.label, table.values
    if label.task == "regression":
        spread = _rounded(float(values.std()), 3)
        drop = _rounded(0.05 * float(values.std()), 1)
        return f'Gate("rmse", ceiling={spread}, max_drop={drop})', "What always answering the mean comes to.", ""
    shares = np.bincount(values, minlength=len(label.classes)) / len(values)
    if label.task == "multiclass":
        most = label.classes[int(shares.argmax())]
        floor = f"{shares.max():.2f}"
        return f'Gate("accuracy", floor={floor}, max_drop=0.02)', f"What always answering {most} comes to.", ""
    share = float(shares[1])
    checks = ""
    if not 0.02 <= share <= 0.98:
        low, high = (share / 4, min(1.0, 4 * share)) if share < 0.5 else (1 - 4 * (1 - share), 1 - (1 - share) / 4)
        checks = f"DataChecks(label_share=({_rounded(max(0.0, low), 2)}, {_rounded(high, 4)}))"
    return 'Gate("auc", floor=0.55, max_drop=0.02)', "Chance comes to 0.5.", checks


def _text(value: str) -> str:
    """A Python string, as ruff writes it."""
    literal = repr(value)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in literal else literal


def _tuple(values: list[Any], before: int = 12) -> str:
    """A tuple as ruff writes it, a line a value where it does not fit into one; ``before`` stand before it."""
    items = [_text(str(value)) for value in values]
    one_line = f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if before + len(one_line) <= 118:
        return one_line
    return "\n".join(["(", *(f"    {item}," for item in items), ")"])


def _rounded(value: float, digits: int) -> str:
    """A number of so many significant digits, as Python writes it."""
    return repr(float(f"{value:.{digits}g}"))
