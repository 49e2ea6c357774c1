"""StatisticsGen without a record-by-record step; the statistics are TFDV's own."""

import json
import os
from typing import Any

import tensorflow_data_validation as tfdv
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx import types
from tfx.components.statistics_gen import executor as tfx_statistics_gen
from tfx.dsl.components.base import executor_spec
from tfx.types import artifact_utils, standard_artifacts
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from pipeline import filesystem
from pipeline.components.base import Artifacts, DeclaredComponent
from pipeline.components.beam_pipeline import BeamExecutor
from pipeline.components.blocks import BLOCK, ReadBlocks, files_of
from pipeline.data.tfrecord_files import read_records
from pipeline.settings.images import Images
from pipeline.validation.statistics import options_for

# Compressed bytes of a split up to which Beam is not used: some 50,000 rows of 20 columns.
SMALL_BYTES = 2 << 20


class StatisticsGenExecutor(BeamExecutor):
    """Compute the statistics of every split."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "statistics", one FeatureStats.pb for each split."""
        examples = artifact_utils.get_single_instance(input_dict["examples"])
        statistics = artifact_utils.get_single_instance(output_dict["statistics"])
        statistics.split_names = examples.split_names
        statistics.span = examples.span
        options = options_for(json.loads(exec_properties.get("settings") or "{}").get("image"))
        large: dict[str, list[str]] = {}
        for split in artifact_utils.decode_split_names(examples.split_names):
            files = files_of(examples, split)
            if sum(map(filesystem.size, files)) > SMALL_BYTES:
                large[split] = files
                continue
            filesystem.write(_path_of(statistics, split), _in_memory(files, options).SerializeToString())
        if not large:
            return
        with self._make_beam_pipeline() as pipeline:
            for split, files in large.items():
                _ = (
                    pipeline
                    | f"Examples[{split}]" >> ReadBlocks(files)
                    | f"Statistics[{split}]" >> tfdv.GenerateStatistics(options)
                    | f"Write[{split}]" >> tfdv.WriteStatisticsToBinaryFile(_path_of(statistics, split))
                )


def _path_of(statistics: types.Artifact, split: str) -> str:
    folder = artifact_utils.get_split_uri([statistics], split)
    return os.path.join(folder, tfx_statistics_gen.DEFAULT_FILE_NAME)


def _in_memory(files: list[str], options: tfdv.StatsOptions) -> statistics_pb2.DatasetFeatureStatisticsList:
    """Return the same statistics without Beam, which takes seconds to set up whatever the rows."""
    records = [record for file in files for block in read_records(file, BLOCK) for record in block]
    batch = ExamplesToRecordBatchDecoder().DecodeBatch(records)
    return stats_impl.generate_statistics_in_memory(batch, options)


class StatisticsGen(DeclaredComponent):
    """Compute the statistics of every split."""

    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(StatisticsGenExecutor)
    INPUTS = {"examples": standard_artifacts.Examples}
    OUTPUTS = {"statistics": standard_artifacts.ExampleStatistics}

    def __init__(self, *, images: Images | None = None, **inputs: types.BaseChannel):
        """Create the component from the settings of images, if the examples hold any, and the examples."""
        super().__init__({"image": images.column} if images else None, **inputs)
