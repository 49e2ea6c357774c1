"""Make a table of what a step has made: features of Transform, steps of the Trainer, metrics of the Evaluator."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.settings.tasks import Task, shown_metrics

# Rows of the features that are shown, and characters of a value.
FIRST_ROWS, LONGEST = 3, 24
OF_A_STEP = ("epoch", "loss", "learning_rate", "gradient_norm")


def table_of(step: str, outputs: Mapping[str, Path], task: Task) -> pd.DataFrame:
    """Return what a step has made; empty where a module file trains in a loop of its own.

    Args:
        step: Its name.
        outputs: Folder by output.
        task: Of the label; it decides which metrics of an evaluation are shown, and in which order.
    """
    if step == "Transform":
        return _features(outputs["transformed_examples"], outputs["transform_graph"])
    if step == "Trainer":
        return _steps(outputs["model_run"])
    return _metrics(outputs["evaluation"], task)


def _features(examples: Path, graph: Path) -> pd.DataFrame:
    """Return a row for each feature: its type and shape, statistics over the train split, and the first rows."""
    import tensorflow_transform as tft
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    from pipeline.data.decoded_blocks import BLOCK
    from pipeline.data.tfrecord_files import read_records

    schema = tft.TFTransformOutput(str(graph)).transformed_metadata.schema
    decoder = ExamplesToRecordBatchDecoder(schema.SerializeToString())
    files = sorted(map(str, examples.glob("Split-train/*")))
    batches = [decoder.DecodeBatch(records) for file in files for records in read_records(file, BLOCK)]
    table = pa.Table.from_batches(batches).combine_chunks()
    return pd.DataFrame.from_dict({name: _feature(table[name]) for name in sorted(table.column_names)}, orient="index")


def _feature(column: pa.ChunkedArray) -> dict[str, Any]:
    """Return the description of a feature whose rows are lists."""
    lists = column.combine_chunks()
    lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
    values = lists.flatten()
    lengths = np.unique(lists.value_lengths().fill_null(0))
    is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    described: dict[str, Any] = {
        "type": str(values.type) if is_number else "text",
        "values": str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}",
    }
    if len(values) and is_number:
        numbers = values.to_numpy().astype(np.float64)
        known = numbers[~np.isnan(numbers)]
        described |= {
            name: getattr(known, name)() if len(known) else math.nan for name in ("mean", "std", "min", "max")
        }
        described |= {"zero": (numbers == 0).mean(), "nan": np.isnan(numbers).mean()}
    described["distinct"] = len(values.unique())
    return described | {f"row {place}": _shown(row) for place, row in enumerate(lists[:FIRST_ROWS].to_pylist(), 1)}


def _shown(row: list[Any] | None) -> str:
    texts = [f"{value:.4g}" if isinstance(value, float) else _text(value) for value in row or []]
    text = ", ".join(texts)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _steps(run: Path) -> pd.DataFrame:
    """Return a row for each step: its loss, and of the last of an epoch the metrics on both splits."""
    from pipeline.training.history import EPOCHS_FILE, STEPS_FILE

    if not (run / STEPS_FILE).is_file():
        return pd.DataFrame()
    steps, epochs = pd.read_csv(run / STEPS_FILE), pd.read_csv(run / EPOCHS_FILE)
    epochs = epochs.drop(columns=[name for name in epochs if name in OF_A_STEP[1:]])
    epochs = epochs[["epoch", *(name for name in epochs if name.startswith("val_") or f"val_{name}" in epochs)]]
    last = steps.groupby("epoch")["step"].transform("max") == steps["step"]
    with_metrics = steps.loc[last, ["step", "epoch"]].merge(epochs, on="epoch").drop(columns="epoch")
    table = steps[["step", *OF_A_STEP]].merge(with_metrics, on="step", how="left")
    return table.assign(step=table["step"] + 1, epoch=table["epoch"] + 1).set_index("step")


def _metrics(evaluation: Path, task: Task) -> pd.DataFrame:
    """Return a row for each slice, that of all rows first."""
    from pipeline.evaluation.tfma_config import read_metrics

    metrics = read_metrics(str(evaluation))
    names = {name: metric.title for name, metric in shown_metrics(task).items()}
    order = sorted(metrics, key=lambda name: (name != "overall", name))
    table = pd.DataFrame.from_dict({name: metrics[name] for name in order}, orient="index")
    table = table.reindex(columns=[*names, "example_count"]).rename(columns={**names, "example_count": "examples"})
    return table.astype({"examples": int})
