"""Raw files → tf.Examples, vectorised from end to end: TFX's FileBasedExampleGen with our executor and driver.

Scan every file → plan shards from the scans → write every shard. The rows of a shard and their order depend on the
files alone, never on how Beam bundles or schedules: the same files give the same bytes, on one machine
or many. A shard takes its parts from all over the files and mixes its rows, because rows that lie as they were
collected, by time mostly, would reach the training in that order. In a window of spans it takes them from all over the
files of one span, and is kept: the next run reads new spans only.
"""

import dataclasses
import json
from typing import Any

import apache_beam as beam
from tfx import components as tfx_components
from tfx.components.example_gen import driver, utils
from tfx.components.util import examples_utils
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils
from tfx.utils import proto_utils

from pipeline import filesystem
from pipeline.components.base import Artifacts, FingerprintedComponent
from pipeline.data import files, image_dataset, shard_files, shards
from pipeline.data.image_dataset import holds_paths
from pipeline.errors import UserError
from pipeline.settings.image_data import Images


@dataclasses.dataclass(frozen=True)
class ExampleGenSettings:
    """Settings that TFX's FileBasedExampleGen does not have.

    Attributes:
        patterns: File pattern by input split; "{SPAN}" stands for the number of a span.
        types: Types of columns from a reviewed schema.
        max_bad_rows: Share of CSV rows that may be bad.
        last_spans: How many of the newest spans are read; None reads all.
        until_span: Newer spans do not count; None: all count.
        test_newest: The newest span is the test split.
        kept: Folder of the shards that are kept for later runs, where the data are a window of spans; or "".
        time_column: Column by whose order rows are assigned to splits; None assigns them by hash.
        label: Column of classes, in words or as numbers; written as numbers.
        classes: Number of a class by its value in the data; empty where the label is not a class.
        weight: Column of how much each row counts; None where all count the same.
        leave_out: Columns that are not read.
        images: ``pipeline.settings.image_data.Images`` as a mapping, where rows are images.
        shard_mb: Approximate megabytes of a file of examples in memory; None: derived from the size of its split.
    """

    patterns: dict[str, str]
    types: dict[str, str] = dataclasses.field(default_factory=dict)
    max_bad_rows: float = 0.0
    last_spans: int | None = 1
    until_span: int | None = None
    test_newest: bool = False
    kept: str = ""
    time_column: str | None = None
    label: str = ""
    classes: dict[str, int] = dataclasses.field(default_factory=dict)
    weight: str | None = None
    leave_out: tuple[str, ...] = ()
    images: dict[str, Any] | None = None
    shard_mb: int | None = None


class ExampleGenExecutor(BaseBeamExecutor):
    """Read CSV, Parquet, TFRecord and image files from any filesystem that Beam can read."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "examples": the splits, summary.json and any bad rows.

        Raises:
            UserError: a file is refused, or a split has no rows.
        """
        examples = artifact_utils.get_single_instance(output_dict["examples"])
        job, span = job_of(exec_properties, examples.uri)
        self.write(job)
        summary = shard_files.read_summary(examples.uri)
        problems = summary["problems"]
        if problems:
            raise UserError(problems[0] + (f" (and {len(problems) - 1} more problems)" if problems[1:] else ""))

        examples.split_names = artifact_utils.encode_split_names(list(job.output_splits))
        examples.set_int_custom_property(utils.SPAN_PROPERTY_NAME, span)
        examples.set_int_custom_property("bad_rows", summary["bad_rows"])
        examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)
        examples_utils.set_file_format(examples, "tfrecords_gzip")

    def write(self, job: shards.Job) -> None:
        """Do a job with Beam."""
        with self._make_beam_pipeline() as pipeline:
            write_examples(pipeline, job)


def job_of(exec_properties: dict[str, Any], uri: str) -> tuple[shards.Job, int]:
    """Return the job of a component's settings, and the newest span that is read."""
    input_config, output_config = example_gen_pb2.Input(), example_gen_pb2.Output()
    proto_utils.json_to_proto(exec_properties["input_config"], input_config)
    proto_utils.json_to_proto(exec_properties["output_config"], output_config)
    settings = ExampleGenSettings(**json.loads(exec_properties["settings"]))

    images = Images(**settings.images) if settings.images else None
    folder = exec_properties["input_base"]
    found = _find(folder, settings)
    by_split = {} if found.format == files.IMAGES else found.by_split
    shares = {split.name: split.hash_buckets for split in output_config.split_config.splits}
    if settings.test_newest and shares:
        shares["test"] = 0
    return (
        shards.Job(
            files=tuple((split, file) for split, several in by_split.items() for file in several),
            format=found.format,
            output_splits=tuple(utils.generate_output_split_names(input_config, output_config)),
            shares=tuple(shares.values()),
            hash_column=output_config.split_config.partition_feature_name or None,
            time_column=settings.time_column,
            types=settings.types,
            max_bad_rows=settings.max_bad_rows,
            label=settings.label,
            classes=settings.classes,
            weight=settings.weight,
            leave_out=tuple(settings.leave_out),
            uri=uri,
            images=images,
            paths=images is not None and holds_paths(found.all[0], found.format, images),
            folder=folder,
            patterns=settings.patterns,
            last_spans=settings.last_spans,
            shard_mb=settings.shard_mb,
            spans=found.spans if settings.kept else {},
            test_span=found.span if settings.test_newest else None,
            kept=settings.kept,
            code=exec_properties.get("code", ""),
            partitions=found.partitions,
            stamps=dict(filesystem.stamps(folder, found.all)) if settings.kept else {},
        ),
        found.span,
    )


def write_examples(pipeline: beam.Pipeline, job: shards.Job) -> None:
    """Add the steps of a job to a Beam pipeline: scan → plan → write → summary."""
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
        | "Write" >> beam.Map(shard_files.write, job)
    )
    summary = beam.Map(shard_files.finish, beam.pvalue.AsList(scans), beam.pvalue.AsList(written))
    _ = pipeline | "End" >> beam.Create([job]) | "Summary" >> summary


class ExampleGenDriver(driver.FileBasedDriver):
    """TFX's driver, extended to detect changed images and files at any depth, and renamed folders of partitions."""

    def resolve_exec_properties(self, exec_properties: dict[str, Any], *infos: Any) -> dict[str, Any]:
        """Add what TFX does not see to the fingerprint of the files."""
        resolved: dict[str, Any] = super().resolve_exec_properties(exec_properties, *infos)
        resolved[utils.FINGERPRINT_PROPERTY_NAME] += fingerprint_of_files(resolved)
        return resolved


def fingerprint_of_files(exec_properties: dict[str, Any]) -> str:
    """Return a fingerprint of the images, partitions and files at any depth of a component's settings; "" for none.

    TFX's own takes "**" for one folder, and does not look at names.
    """
    settings = ExampleGenSettings(**json.loads(exec_properties["settings"]))
    images = Images(**settings.images) if settings.images else None
    found = _find(exec_properties["input_base"], settings)
    if not images and not found.partitions and "**" not in "".join(settings.patterns.values()):
        return ""
    return f",{'images' if images else 'files'}:{image_dataset.fingerprint(found, images)}"


def _find(folder: str, settings: ExampleGenSettings) -> files.Files:
    return files.find(
        folder,
        settings.patterns,
        settings.last_spans,
        images=settings.images is not None,
        until_span=settings.until_span,
        test_newest=settings.test_newest,
    )


class ArrowExampleGen(FingerprintedComponent, tfx_components.FileBasedExampleGen):
    """TFX's FileBasedExampleGen with our executor and driver."""

    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(ExampleGenExecutor)
    DRIVER_CLASS = ExampleGenDriver

    def __init__(self, settings: ExampleGenSettings, **kwargs: Any):
        super().__init__(**kwargs)
        self.exec_properties["settings"] = json.dumps(dataclasses.asdict(settings), sort_keys=True)
