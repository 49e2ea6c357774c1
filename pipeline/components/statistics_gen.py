"""StatisticsGen without a record-by-record step; the statistics are TFDV's own.

In place of TFX's component, which has no place for the fingerprint that runs a step again when its code has changed.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow_data_validation as tfdv
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx import types
from tfx.components.statistics_gen import executor as tfx_statistics_gen
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.utils import io_utils
from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

from pipeline.components.beam_pipeline import BeamExecutor
from pipeline.components.blocks import BLOCK, ReadBlocks, files_of
from pipeline.data import files
from pipeline.data.tfrecord_files import read_records

# Compressed examples of a split that are described without Beam: some 50,000 rows of 20 columns.
SMALL_BYTES = 2 << 20


class Executor(BeamExecutor):
    """Describes every split."""

    def Do(
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Writes "statistics", one FeatureStats.pb for each split."""
        self._log_startup(input_dict, output_dict, exec_properties)
        examples = artifact_utils.get_single_instance(input_dict["examples"])
        statistics = artifact_utils.get_single_instance(output_dict["statistics"])
        statistics.split_names = examples.split_names
        statistics.span = examples.span
        large: dict[str, list[str]] = {}
        for split in artifact_utils.decode_split_names(examples.split_names):
            of_split = files_of(examples, split)
            if sum(map(files.size_of, of_split)) > SMALL_BYTES:
                large[split] = of_split
                continue
            io_utils.write_bytes_file(_path_of(statistics, split), _in_memory(of_split).SerializeToString())
        if not large:
            return
        with self._make_beam_pipeline() as pipeline:
            for split, of_split in large.items():
                _ = (
                    pipeline
                    | f"Examples[{split}]" >> ReadBlocks(of_split)
                    | f"Statistics[{split}]" >> tfdv.GenerateStatistics()
                    | f"Write[{split}]" >> tfdv.WriteStatisticsToBinaryFile(_path_of(statistics, split))
                )


def _path_of(statistics: types.Artifact, split: str) -> str:
    folder = artifact_utils.get_split_uri([statistics], split)
    return os.path.join(folder, tfx_statistics_gen.DEFAULT_FILE_NAME)


def _in_memory(of_split: list[str]) -> statistics_pb2.DatasetFeatureStatisticsList:
    """The same statistics without Beam, which takes seconds to set up whatever the rows."""
    records = [record for file in of_split for block in read_records(file, BLOCK) for record in block]
    batch = ExamplesToRecordBatchDecoder().DecodeBatch(records)
    return stats_impl.generate_statistics_in_memory(batch, tfdv.StatsOptions())


class StatisticsGenSpec(ComponentSpec):
    """The ports of TFX's StatisticsGen that we use."""

    PARAMETERS = {"code": ExecutionParameter(type=str)}
    INPUTS = {"examples": ChannelParameter(type=standard_artifacts.Examples)}
    OUTPUTS = {"statistics": ChannelParameter(type=standard_artifacts.ExampleStatistics)}


class StatisticsGen(BaseComponent):
    """Describes the data."""

    SPEC_CLASS = StatisticsGenSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)

    def __init__(self, examples: types.BaseChannel, code: str):
        """Makes the component.

        Args:
            examples: To describe.
            code: Fingerprint of this module, so that a change of it runs the step again.
        """
        statistics = types.Channel(type=standard_artifacts.ExampleStatistics)
        super().__init__(StatisticsGenSpec(examples=examples, code=code, statistics=statistics))
