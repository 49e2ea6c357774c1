"""Create the first node of the graph, for files and for BigQuery."""

import dataclasses
from pathlib import Path

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.proto import example_gen_pb2

from pipeline.components.arrow_example_gen import ArrowExampleGen, ExampleGenSettings
from pipeline.components.bigquery_example_gen import BigQueryExampleGen
from pipeline.components.sample_gen import SampleGen
from pipeline.data.files import format_of, wildcard
from pipeline.data.location import find_files, locate, query_of
from pipeline.data.sample import Sample
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.quality.schema_text import parse
from pipeline.settings.config import Data, HashSplit, PipelineConfig, TimeSplit
from pipeline.settings.target import Target


def create_example_gen(
    config: PipelineConfig, target: Target, kept: str = "", sample: Sample | None = None
) -> BaseComponent:
    """Return the ExampleGen for files, for BigQuery, or for a sample of an earlier run.

    ``kept`` is the folder for the shards of each span, of a window of spans; "": none are kept.
    """
    if sample:
        return SampleGen(sample).with_id("ExampleGen")
    if config.data.query_source:
        options = PipelineOptions(list(target.beam_args)).view_as(GoogleCloudOptions)
        required = {"--project": options.project, "--temp_location": options.temp_location}
        missing = [name for name, value in required.items() if not value]
        if missing:
            raise UserError(
                f"to read from BigQuery the target's beam_args need {' and '.join(missing)}: a project to query in and "
                "a folder gs://... for what it exports"
            )
        query = example_gen_pb2.Input(splits=[example_gen_pb2.Input.Split(name="all", pattern=query_of(config.data))])
        return BigQueryExampleGen(
            options.project, input_config=query, output_config=_output_config(config.data)
        ).with_id("ExampleGen")

    folder, patterns = locate(config.data)
    # To look into a bucket takes credentials, which compiling does without: there, the names in the patterns must do.
    formats: set[str | None] = {format_of(pattern) for pattern in patterns.values()}
    partitions: set[str] | None = None  # unknown
    if not is_remote(folder):
        found = find_files(config.data)
        formats, partitions = {found.format}, set(found.partitions)
    split_by, one_pattern = config.data.split_by, list(patterns) == ["all"]
    return ArrowExampleGen(
        input_base=folder,
        # TFX's driver looks for changes in all spans; the executor reads the newest.
        input_config=example_gen_pb2.Input(
            splits=[
                example_gen_pb2.Input.Split(name=name, pattern=wildcard(pattern)) for name, pattern in patterns.items()
            ]
        ),
        output_config=_output_config(config.data) if one_pattern else example_gen_pb2.Output(),
        settings=ExampleGenSettings(
            patterns=patterns,
            last_spans=config.data.last_spans,
            until_span=config.data.until_span,
            test_newest=config.data.test_newest,
            kept=kept,
            types=_types_of(config, formats, partitions),
            label=config.label.name,
            weight=config.label.weight,
            leave_out=config.data.leave_out,
            classes=dict(config.label.numbers),
            time_column=split_by.column if isinstance(split_by, TimeSplit) and one_pattern else None,
            max_bad_rows=config.data.max_bad_rows,
            images=dataclasses.asdict(config.data.images) if config.data.images else None,
            shard_mb=config.data.shard_mb,
        ),
    ).with_id("ExampleGen")


def _output_config(data: Data) -> example_gen_pb2.Output:
    """Return the shares of the splits as TFX has them; a split by time is a setting of our executor."""
    split_config = example_gen_pb2.SplitConfig(
        splits=[
            example_gen_pb2.SplitConfig.Split(name=name, hash_buckets=share)
            for name, share in data.split_by.shares.items()
        ]
    )
    if isinstance(data.split_by, HashSplit) and data.split_by.column:
        split_config.partition_feature_name = data.split_by.column
    return example_gen_pb2.Output(split_config=split_config)


def _types_of(config: PipelineConfig, formats: set[str | None], partitions: set[str] | None) -> dict[str, str]:
    """Return the types that the reviewed schema and the label's settings give to columns of files.

    A CSV file has no types, nor has the name of a folder. Some floats of a Parquet file are integers with missing
    values.
    """
    names = {schema_pb2.INT: "integers", schema_pb2.FLOAT: "floats", schema_pb2.BYTES: "text"}
    features = parse(Path(config.schema), config.data.leave_out).feature if config.schema else []
    types = {feature.name: names[feature.type] for feature in features if feature.type in names}
    types |= {config.label.name: config.label.csv_type}  # the schema sees classes as numbers, the file may not
    types |= {config.label.weight: "floats"} if config.label.weight else {}
    if formats & {"csv", None} or partitions is None:
        return types
    # No more types than are used: a change here reads all files again.
    used = partitions | {name for name, type_ in types.items() if type_ == "integers" and "parquet" in formats}
    return {name: type_ for name, type_ in types.items() if name in used}
