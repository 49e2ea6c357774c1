"""The step that measures simple models on the rows of a run."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_transform.tf_metadata import schema_utils
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils, standard_artifacts
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from pipeline import filesystem
from pipeline.components.artifacts import BASELINES
from pipeline.components.base import Artifacts, DeclaredComponent, files_of, read_schema
from pipeline.data.tfrecord_files import read_records
from pipeline.quality import rows
from pipeline.quality.baselines import MOST_IMAGES, measure, rows_to_fit
from pipeline.quality.statistics import image_column
from pipeline.settings.checks import from_json
from pipeline.settings.config import Label
from pipeline.settings.image_data import facts
from pipeline.settings.names import SERVING

# Of the test split; an AUC is certain to 0.003 then.
MOST_TEST_ROWS = 200_000
# Rows that are read for one that is kept, and files of a split: a file in a bucket is fetched as a whole.
READ, MOST_FILES = 8, 16
BLOCK = 16_384


class BaselinesExecutor(BaseExecutor):
    """Fit scikit-learn's models on rows of train and measure them on the test split."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "baselines": metrics by baseline, and from how many rows and columns they learnt."""
        label = from_json(Label, exec_properties["settings"])
        examples = artifact_utils.get_single_instance(input_dict["examples"])
        schema = read_schema(input_dict["schema"])
        columns = served_columns(schema, label.name)
        started = time.monotonic()
        images = image_column(schema) is not None
        most = {"train": rows_to_fit(len(columns), images), "test": MOST_IMAGES if images else MOST_TEST_ROWS}
        samples = [spread(files_of(examples, split), wanted) for split, wanted in most.items()]
        weights = [label.weight] if label.weight else []
        train, test = single_valued(samples, [*columns, label.name, *weights])
        content = {
            "metrics": measure(train, test, label.name, len(label.classes), label.weight),
            "rows": train.num_rows,
            "columns": train.num_columns - 1 - len(weights),
            "seconds": round(time.monotonic() - started, 1),
        }
        baselines = artifact_utils.get_single_instance(output_dict["baselines"])
        filesystem.write(f"{baselines.uri}/{BASELINES}", json.dumps(content, indent=2))


def served_columns(schema: schema_pb2.Schema, label: str) -> list[str]:
    """Return the columns that a request has, without images: a model may use these and no others."""
    image = image_column(schema)
    absent = {feature.name for feature in schema.feature if SERVING in feature.not_in_environment}
    absent |= {label, *((image, *facts(image)) if image else ())}
    return sorted(set(schema_utils.schema_as_feature_spec(schema).feature_spec) - absent)


def spread(files: Sequence[str], most: int) -> pa.Table:
    """Return up to ``most`` rows, evenly from ``READ`` times as many of some files: rows may stand by time."""
    kept: list[bytes] = []
    some = files[:: -(-len(files) // MOST_FILES)]
    each = -(-most // len(some))
    for file in some:
        of_file: list[bytes] = []
        every, seen = 1, 0
        for block in read_records(file, BLOCK):
            of_file += block[-seen % every :: every]
            seen += len(block)
            while len(of_file) > each:
                of_file, every = of_file[::2], 2 * every
            if seen >= READ * each:
                break
        kept += of_file
    return pa.table(ExamplesToRecordBatchDecoder().DecodeBatch(kept))


def single_valued(tables: list[pa.Table], columns: list[str]) -> list[pa.Table]:
    """Return the columns, of lists, that have one value or none in each row of every table, as values or null."""
    found = [
        {name: rows.scalars(table.column(name)) for name in columns if name in table.column_names} for table in tables
    ]
    single = [name for name in columns if all(part.get(name) is not None for part in found)]
    return [pa.table({name: part[name] for name in single}) for part in found]


class Baselines(DeclaredComponent):
    """Measure a constant, a linear model and gradient boosting on the rows of the model; its setting is a Label."""

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(BaselinesExecutor)
    INPUTS = {"examples": standard_artifacts.Examples, "schema": standard_artifacts.Schema}
    OUTPUTS = {"baselines": standard_artifacts.ModelEvaluation}
