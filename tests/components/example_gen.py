"""Runs our ExampleGen's real executor, as TFX does, and reads what it wrote."""

import dataclasses
import glob
import json
from pathlib import Path
from typing import Any

import tensorflow as tf
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.proto import example_gen_pb2
from tfx.types import standard_artifacts
from tfx.utils import proto_utils

from pipeline.components import arrow_example_gen
from pipeline.data.files import wildcard
from pipeline.data.location import locate
from pipeline.settings.config import Data, HashSplit, Label, TimeSplit
from pipeline.settings.target import Target


def run(
    data: Data,
    to: Path,
    types: dict[str, str] | None = None,
    label: Label | None = None,
    kept: str = "",
    executor: type = arrow_example_gen.ExampleGenExecutor,
) -> standard_artifacts.Examples:
    """Writes the examples of ``data`` below ``to``; ``kept`` is a folder for what is kept of a window of spans."""
    folder, patterns = locate(data)
    output_config = example_gen_pb2.Output()
    if list(patterns) == ["all"]:
        for name, share in data.split_by.shares.items():
            output_config.split_config.splits.add(name=name, hash_buckets=share)
        if isinstance(data.split_by, HashSplit) and data.split_by.column:
            output_config.split_config.partition_feature_name = data.split_by.column
    input_config = example_gen_pb2.Input(
        splits=[example_gen_pb2.Input.Split(name=name, pattern=wildcard(one)) for name, one in patterns.items()]
    )
    properties = {
        "input_base": folder,
        "input_config": proto_utils.proto_to_json(input_config),
        "output_config": proto_utils.proto_to_json(output_config),
        "settings": json.dumps(
            {
                "patterns": patterns,
                "last_spans": data.last_spans,
                "until_span": data.until_span,
                "test_newest": data.test_newest,
                "kept": kept,
                "types": types or {},
                "time_column": data.split_by.column if isinstance(data.split_by, TimeSplit) else None,
                "max_bad_rows": data.max_bad_rows,
                "label": label.name if label else "",
                "classes": dict(label.numbers) if label else {},
                "weight": label.weight if label else None,
                "leave_out": data.leave_out,
                "images": dataclasses.asdict(data.images) if data.images else None,
                "shard_mb": data.shard_mb,
            }
        ),
    }
    examples = standard_artifacts.Examples()
    examples.uri = str(to)
    to.mkdir(parents=True)
    context = BaseBeamExecutor.Context(beam_pipeline_args=list(Target.local(to, "").beam_args))
    executor(context).Do({}, {"examples": [examples]}, properties)
    return examples


def records(examples: Path | str, split: str = "*") -> list[bytes]:
    """The serialized examples of a split."""
    files = sorted(glob.glob(f"{examples}/Split-{split}/*"))
    return list(tf.data.TFRecordDataset(files, compression_type="GZIP").as_numpy_iterator())


def values(example: bytes) -> dict[str, list | None]:
    """An example's values by feature; None for a feature without a value."""
    found: dict[str, Any] = {}
    for name, feature in tf.train.Example.FromString(example).features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = list(getattr(feature, kind).value) if kind else None
    return found
