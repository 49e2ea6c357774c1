"""Raw files → tf.Examples, vectorised from end to end: TFX's FileBasedExampleGen with our executor.

Scan every file → plan shards from the scans → write every shard. The rows of a shard and their order depend on the
files alone, never on how Beam bundles or schedules: the same files give the same bytes, on one machine
or many. A shard takes its parts from all over the files and mixes its rows, because rows that lie as they were
collected, by time mostly, would reach the training in that order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import apache_beam as beam
from google.protobuf import any_pb2, wrappers_pb2
from tfx import components as tfx_components
from tfx.components.example_gen import utils
from tfx.components.util import examples_utils
from tfx.dsl.components.base import executor_spec
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils, standard_component_specs
from tfx.utils import proto_utils

from pipeline.components.base import Artifacts, FingerprintedComponent
from pipeline.components.beam_pipeline import BeamExecutor
from pipeline.data import files, shards
from pipeline.errors import UserError


def settings(
    *,
    patterns: dict[str, str],
    last_spans: int | None,
    types: dict[str, str],
    time_column: str | None,
    max_bad_rows: float,
    label: str = "",
    classes: Mapping[str, int] | None = None,
) -> example_gen_pb2.CustomConfig:
    """Return the settings of the executor that TFX does not have, as FileBasedExampleGen's ``custom_config``.

    Args:
        patterns: File pattern by input split; "{SPAN}" stands for the number of a span.
        last_spans: How many of the newest spans are read; None reads all.
        types: Types of columns from a reviewed schema.
        time_column: Column by whose order rows are assigned to splits; None assigns them by hash.
        max_bad_rows: Share of CSV rows that may be bad.
        label: Column of classes, in words or as numbers; written as numbers.
        classes: Number of a class by its value in the data; empty where the label is not a class.
    """
    text = json.dumps(
        {
            "patterns": patterns,
            "last_spans": last_spans,
            "types": types,
            "time_column": time_column,
            "max_bad_rows": max_bad_rows,
            "label": label,
            "classes": dict(classes or {}),
        },
        sort_keys=True,
    )
    packed = any_pb2.Any()
    packed.Pack(wrappers_pb2.StringValue(value=text))
    return example_gen_pb2.CustomConfig(custom_config=packed)


class ExampleGenExecutor(BeamExecutor):
    """Read CSV, Parquet and TFRecord files from any filesystem that Beam can read."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "examples", and beside its splits summary.json and, if there are any, the bad rows.

        Raises:
            UserError: a file is refused, or a split has no rows.
        """
        examples = artifact_utils.get_single_instance(output_dict[standard_component_specs.EXAMPLES_KEY])
        job, span = job_of(exec_properties, examples.uri)
        with self._make_beam_pipeline() as pipeline:
            _ = pipeline | "Examples" >> WriteExamples(job)
        summary = shards.read_summary(examples.uri)
        problems = summary["problems"]
        if problems:
            raise UserError(problems[0] + (f" (and {len(problems) - 1} more problems)" if problems[1:] else ""))

        examples.split_names = artifact_utils.encode_split_names(list(job.output_splits))
        examples.set_int_custom_property(utils.SPAN_PROPERTY_NAME, span)
        examples.set_int_custom_property("bad_rows", summary["bad_rows"])
        examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)
        examples_utils.set_file_format(examples, "tfrecords_gzip")


def job_of(exec_properties: dict[str, Any], uri: str) -> tuple[shards.Job, int]:
    """Return the job of a component's settings, and the newest span that is read."""
    input_config, output_config = example_gen_pb2.Input(), example_gen_pb2.Output()
    proto_utils.json_to_proto(exec_properties[standard_component_specs.INPUT_CONFIG_KEY], input_config)
    proto_utils.json_to_proto(exec_properties[standard_component_specs.OUTPUT_CONFIG_KEY], output_config)
    custom_config, text = example_gen_pb2.CustomConfig(), wrappers_pb2.StringValue()
    proto_utils.json_to_proto(exec_properties[standard_component_specs.CUSTOM_CONFIG_KEY], custom_config)
    custom_config.custom_config.Unpack(text)
    ours = json.loads(text.value)

    found = files.find(exec_properties[standard_component_specs.INPUT_BASE_KEY], ours["patterns"], ours["last_spans"])
    shares = {split.name: split.hash_buckets for split in output_config.split_config.splits}
    return (
        shards.Job(
            files=tuple((split, file) for split, several in found.by_split.items() for file in several),
            format=found.format,
            output_splits=tuple(utils.generate_output_split_names(input_config, output_config)),
            shares=tuple(shares.values()),
            hash_column=output_config.split_config.partition_feature_name or None,
            time_column=ours["time_column"],
            types=ours["types"],
            max_bad_rows=ours["max_bad_rows"],
            label=ours["label"],
            classes=ours["classes"],
            uri=uri,
        ),
        found.span,
    )


class WriteExamples(beam.PTransform):
    """Beam graph of a job: scan → plan → write → summary."""

    def __init__(self, job: shards.Job):
        super().__init__()
        self._job = job

    def expand(self, pipeline: beam.Pipeline) -> beam.PCollection:
        """Return the summary."""
        job = self._job
        scans = (
            pipeline
            | "Files" >> beam.Create(job.files)
            | "SpreadFiles" >> beam.Reshuffle()
            | "Scan" >> beam.Map(shards.scan, job)
        )
        written = (
            pipeline
            | "Plan" >> beam.Create([job])
            | "Shards" >> beam.FlatMap(shards.plan, beam.pvalue.AsList(scans))
            | "SpreadShards" >> beam.Reshuffle()
            | "Write" >> beam.Map(shards.write, job)
        )
        return (
            pipeline
            | "End" >> beam.Create([job])
            | "Summary" >> beam.Map(shards.finish, beam.pvalue.AsList(scans), beam.pvalue.AsList(written))
        )


class ArrowExampleGen(FingerprintedComponent, tfx_components.FileBasedExampleGen):
    """TFX's FileBasedExampleGen with our executor."""

    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(ExampleGenExecutor)
