"""StatisticsGen without a record-by-record step; the statistics are TFDV's own.

In place of TFX's component, which has no place for the fingerprint that runs a step again when its code has changed.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow_data_validation as tfdv
from tfx import types
from tfx.components.statistics_gen import executor as tfx_statistics_gen
from tfx.dsl.components.base import executor_spec
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from pipeline.components.beam_pipeline import BeamExecutor
from pipeline.components.blocks import ReadBlocks, files_of


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
        with self._make_beam_pipeline() as pipeline:
            for split in artifact_utils.decode_split_names(examples.split_names):
                folder = artifact_utils.get_split_uri([statistics], split)
                path = os.path.join(folder, tfx_statistics_gen.DEFAULT_FILE_NAME)
                _ = (
                    pipeline
                    | f"Examples[{split}]" >> ReadBlocks(files_of(examples, split))
                    | f"Statistics[{split}]" >> tfdv.GenerateStatistics()
                    | f"Write[{split}]" >> tfdv.WriteStatisticsToBinaryFile(path)
                )


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
