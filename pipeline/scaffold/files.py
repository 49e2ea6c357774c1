"""Write the text of a pipeline's own files, by what its data is.

Text from the data (names of columns, classes, paths) stands in literals only, and what is written is compared,
statement by statement, with the same files of harmless data: no cell of a table becomes code.
"""

import ast
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.quality import groups
from pipeline.quality.schema_text import drop_unused_domains, inferred_from, to_text
from pipeline.quality.serving_skew import statistics_of
from pipeline.scaffold.columns import CHARACTER
from pipeline.scaffold.table import SHARES, Table
from pipeline.settings.config import SPLITS, Label
from pipeline.settings.gates import DataChecks
from pipeline.settings.names import shortened
from pipeline.settings.notations import AMOUNT, DATES

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
Literal = Callable[[str], str]
# Steps of a training that small models on small data are done after.
STEPS = 1500
SMALL_SEARCH = 5_000
# Rows of which embeddings of numbers learn chance, and rare values of categories are worth knowing.
FEW_ROWS = 2_000
LONGEST_LINE = 120


def module_text(name: str, table: Table) -> str:
    """Return the text of the module file."""
    return checked(lambda literal: _module(name, table, literal))


def config_text(name: str, data: str, table: Table) -> str:
    """Return the text of the config, for data at a path."""
    return checked(lambda literal: _config(name, data, table, literal))


def schema_text(table: Table, keep: Collection[str]) -> str:
    """Return the text of the schema: no label and weight in serving; columns left out are disabled."""
    label = table.label
    schema = inferred_from([statistics_of(table.split(split)) for split in SPLITS], label.name, label.weight)
    columns = {column.name: column for column in table.columns}
    for feature in schema.feature:
        column = columns.get(feature.name)
        if column and column.left_out:
            feature.lifecycle_stage = schema_pb2.DISABLED
        if column and (column.left_out or column.form or column.role in ("text", "sequence")):
            # Future dates, prices and words will differ, and values of an unused column need no review.
            if domain := feature.WhichOneof("domain_info"):
                feature.ClearField(domain)
        if column and feature.type == schema_pb2.BYTES and not column.left_out:
            if column.form in DATES:
                feature.time_domain.string_format = column.form
            elif column.form:
                sign = "." if column.role == "time" else column.form  # whole numbers since 1970 are amounts of time
                feature.annotation.tag.append(f"{AMOUNT}{sign} {column.unit}".rstrip())
        if column and column.gaps and feature.HasField("shape"):
            # Every row has a text, but some of them mean that there is no value: requests may lack it.
            feature.value_count.min = feature.value_count.max = 1
            feature.presence.ClearField("min_fraction")
        if feature.name in keep:
            feature.annotation.tag.append("leak: ignore")
        if feature.name == label.name and label.classes:
            feature.int_domain.min, feature.int_domain.max = 0, len(label.classes) - 1
    drop_unused_domains(schema)
    return to_text(schema)


def with_groups(table: Table, keep: Collection[str], config: str) -> tuple[Table, list[tuple[str, str]]]:
    """Return the table without a column that names groups of similar rows, and the line that warns of such rows."""
    part = min(1, groups.SAMPLE / table.rows.num_rows)
    rows = {name: table.split(name) for name in SPLITS}
    rows = {name: of_split.slice(0, math.ceil(part * len(of_split))) for name, of_split in rows.items()}
    unused = {column.name for column in table.columns if column.left_out} | {table.label.weight or table.label.name}
    found = next(groups.similar_rows(rows, table.label.name, len(table.label.classes), unused, DataChecks()), None)
    if found is None:
        return table, []
    if not found.feature:
        return table, [("warning", f"{found}; the run would stop there: {found.remedy}")]
    shares = f", shares={dict(table.shares)}".replace("'", '"') if table.shares != SHARES[0] else ""
    line = f"split_by=HashSplit({groups.literal(found.feature)}{shares})"
    text = f"{found}; the run would stop there. In {config} import HashSplit and write into Data(...): {line}"
    others = [column.name for column in table.features if column.name != found.feature]
    if found.feature in keep or not others:
        return table, [("warning", text)]
    columns = tuple(
        replace(column, left_out="names groups of rows") if column.name == found.feature else column
        for column in table.columns
    )
    return replace(table, columns=columns), [("warning", f"{text}; no model reads the column")]


def checked(render: Callable[[Literal], str]) -> str:
    """Render the text, and check that its statements do not depend on the data's words."""
    text = render(_literal)
    if _statements(text) != _statements(render(lambda word: '"' + "x" * (len(_literal(word)) - 2) + '"')):
        raise AssertionError("text from the data became code; this is an error in pipeline/scaffold/files.py")
    return text


def _statements(text: str) -> str:
    """Return a module's syntax tree without its constants."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = None
    return ast.dump(tree)


def _module(name: str, table: Table, literal: Literal) -> str:
    features, label = table.features, table.label
    # A column of that name is the label's.
    outputs = {key: f"{key}_" if label.name == key else key for key in ("categories", "numbers")}
    roles = {column.role for column in features}
    amounts = [column for column in features if column.form and column.role in ("amount", "code")]
    helpers = {
        "amount": bool(amounts),
        "calendar": "time" in roles,
        "censored": any(column.censored for column in amounts),
    }
    imports = [*(name for name, used in helpers.items() if used), "number", "quantile_transform", "text"]
    outputs["sequence"] = "sequence_of_" if label.name.startswith("sequence_") else "sequence_"
    return TEMPLATES.get_template("module.py.j2").render(
        **outputs,
        name=name,
        imports=", ".join(imports),
        task=label.task,
        metrics="weighted_metrics" if label.weight else "metrics",
        codes=tuple_text([column.name for column in features if column.role == "code"], literal),
        texts=tuple_text([column.name for column in features if column.role == "text"], literal),
        sequences=tuple_text([column.name for column in features if column.role == "sequence"], literal),
        character=CHARACTER,
        times=mapping_text({column.name: column.form for column in features if column.role == "time"}, literal),
        amounts=mapping_text({column.name: column.form for column in amounts}, literal),
        units=mapping_text({column.name: column.unit for column in amounts if column.unit}, literal),
        coded_amounts=any(column.role == "code" for column in amounts),
        censored=tuple_text([column.name for column in amounts if column.censored], literal),
        origins=mapping_text({column.name: column.origin for column in features if column.origin}, literal),
        minimum_count=2 if table.rows.num_rows <= FEW_ROWS else 5,
        few_rows=table.rows.num_rows <= FEW_ROWS,
        classes=len(label.classes),
        mean=rounded(float(table.values.mean()), 4),
        spread=rounded(float(table.values.std()), 4),
    )


def _config(name: str, data: str, table: Table, literal: Literal) -> str:
    rows = table.rows.num_rows
    batch_size = 2 ** round(math.log2(min(2048, max(16, rows * 0.8 / 50))))
    parts = [table.places == place for place in range(len(SPLITS))]
    weights = None if table.weights is None else table.weights[parts[-1]]
    slices = [column.name for column in table.features if column.role == "category" and 2 <= column.distinct <= 10][:2]
    return render_config(
        name,
        table.label,
        [table.values[part] for part in parts],
        weights,
        literal,
        more_names=["HashSplit"] if table.shares != SHARES[0] else [],
        images=False,
        shares=table.shares,
        data=_data(data, table, literal),
        # With few rows, a longer search overfits the eval split.
        trials=4 if rows >= SMALL_SEARCH else 3,
        epochs=min(60, max(5, math.ceil(STEPS * batch_size / (0.8 * rows)))),
        batch_size=batch_size,
        places=max((column.places for column in table.features), default=0),
        slices=tuple_text(slices, literal),
    )


def _data(path: str, table: Table, literal: Literal) -> list[str]:
    """Return the arguments of ``Data``."""
    arguments = [literal(path)]
    if table.shares != SHARES[0]:
        shares = ", ".join(f'"{split}": {share}' for split, share in table.shares.items())
        arguments.append(f"split_by=HashSplit(shares={{{shares}}})")
    if table.leave_out:
        arguments.append(f"leave_out={tuple_text(table.leave_out, literal, 19)}")
    if table.repeated:
        arguments.append(f"max_bad_rows={table.max_bad_rows}")
    return arguments


def render_config(
    name: str,
    label: Label,
    by_split: Sequence[np.ndarray],
    weights: np.ndarray | None,
    literal: Literal,
    more_names: Sequence[str],
    **values: Any,
) -> str:
    """Return the text of a config; see ``gate_of`` for the label's values and weights."""
    gate, why, checks = gate_of(label, by_split, weights)
    names = ["Data", "Evaluation", "Gate", "Label", "PipelineConfig", "Training", "Tuning", *more_names]
    weight = f", weight={literal(label.weight)}" if label.weight else ""
    return TEMPLATES.get_template("config.py.j2").render(
        name=name,
        names=names_text(sorted([*names, *(["DataChecks"] if checks else [])])),
        label=literal(label.name),
        zero_or_one=label.classes == ("0", "1"),
        two=len(label.classes) == 2,
        weight=weight,
        spellings=mapping_text(label.spellings, literal) if label.spellings else "",
        classes=tuple_text(label.classes, literal, len(f"    label=Label({literal(label.name)}, classes={weight}),")),
        gate=gate,
        why=why,
        checks=checks,
        **values,
    )


def gate_of(label: Label, by_split: Sequence[np.ndarray], of_test: np.ndarray | None) -> tuple[str, str, str]:
    """Return a first gate, the reason for it, and data checks if the default ones do not fit.

    ``by_split`` has the label in train, eval and test, each [rows]; ``of_test`` the weights of test, None for equal.
    """
    train, test = by_split[0], by_split[-1]
    if label.task == "regression":
        ceiling = rounded(float(np.sqrt(np.average((test - train.mean()) ** 2, weights=of_test))), 3)
        drop = rounded(0.05 * float(np.concatenate(by_split).std()), 1)
        return f'Gate("rmse", ceiling={ceiling}, max_drop={drop})', "What always answering the mean comes to.", ""
    if label.task == "multiclass":
        most = int(np.bincount(train, minlength=len(label.classes)).argmax())
        floor = f"{np.average(test == most, weights=of_test):.2f}"
        why = "What always answering the most frequent class comes to."
        return f'Gate("accuracy", floor={floor}, max_drop=0.02)', why, ""
    shares = [float(values.mean()) for values in by_split]
    checks = ""
    if not (min(shares) >= 0.02 and max(shares) <= 0.98):
        low, high = min(shares), max(shares)
        low = low / 4 if low < 0.5 else 1 - 4 * (1 - low)
        high = 4 * high if high < 0.5 else 1 - (1 - high) / 4
        checks = f"DataChecks(label_share=({rounded(max(0.0, low), 2)}, {rounded(min(1.0, high), 4)}))"
    return 'Gate("auc", floor=0.55, max_drop=0.02)', "Chance comes to 0.5.", checks


def label_line(label: Label, values: np.ndarray) -> str:
    """Describe the label, with the share of each class."""
    if label.task == "regression":
        return f"{label.name}: a number, {values.min():g} to {values.max():g}, {values.mean():.4g} on average"
    shares = np.bincount(values, minlength=len(label.classes)) / len(values)
    each = [f"{word} ({100 * share:.3g} %)" for word, share in zip(label.classes, shares, strict=True)]
    if len(each) == 2:
        return f"{label.name}: two classes, {', '.join(each)}; the model answers the probability of {label.classes[1]}"
    return f"{label.name}: {len(each)} classes, {shortened(each, 8)}"


def summary(table: Table) -> Iterator[tuple[str, str]]:
    """Yield the lines of the summary: a kind of column, and its columns."""
    yield "label", label_line(table.label, table.values)
    if table.weights is not None:
        low, high, mean = table.weights.min(), table.weights.max(), table.weights.mean()
        yield "weight", f"{table.label.weight}: {low:g} to {high:g}, {mean:.4g} on average"
    kinds = {"category": "text", "number": "numbers", "code": "codes", "time": "times", "amount": "amounts"}
    kinds |= {"text": "sentences", "sequence": "sequences"}
    for role, kind in kinds.items():
        names = [column.name for column in table.features if column.role == role]
        if names:
            yield kind, shortened(names, 12)
    out = [f"{column.name} ({column.left_out})" for column in table.columns if column.left_out]
    if out:
        yield "left out", shortened(out, 12)
    if table.label_note:
        yield "note", f"{table.label.name}: {table.label_note}; see spellings in the config"
    if table.repeated:
        first = f"the first in {table.repeated[0].file}, row {table.repeated[0].row}"
        rows = "1 row repeats" if len(table.repeated) == 1 else f"{len(table.repeated):,} rows repeat"
        yield "note", f"{rows} the header, {first}; max_bad_rows leaves them out"
    yield from (("note", f"{column.name!r}: {column.note}") for column in table.features if column.note)


def _literal(value: str) -> str:
    """Return a Python string, as ruff writes it."""
    literal = repr(value)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in literal else literal


def tuple_text(values: Sequence[str], literal: Literal, before: int = 12) -> str:
    """Return a tuple as ruff writes it after ``before`` characters: a line a value if one line is too short."""
    items = [literal(value) for value in values]
    one_line = f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if before + len(one_line) <= 118:
        return one_line
    return "\n".join(["(", *(f"    {item}," for item in items), ")"])


def names_text(names: list[str]) -> str:
    """Return imported names as ruff writes them."""
    one_line = ", ".join(names)
    if len(f"from pipeline.config import {one_line}") <= LONGEST_LINE:
        return one_line
    return "\n".join(["(", *(f"    {name}," for name in names), ")"])


def mapping_text(values: Mapping[str, str | int], literal: Literal) -> str:
    """Return a dictionary as ruff writes it, of text or numbers by text."""
    items = [
        f"{literal(key)}: {literal(value) if isinstance(value, str) else f'{value:_}'}" for key, value in values.items()
    ]
    one_line = f"{{{', '.join(items)}}}"
    return one_line if len(one_line) <= 106 else "\n".join(["{", *(f"    {item}," for item in items), "}"])


def rounded(value: float, digits: int) -> str:
    """Return a number rounded to significant digits, as Python writes it."""
    return repr(float(f"{value:.{digits}g}"))
