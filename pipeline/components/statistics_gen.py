"""StatisticsGen without a record-by-record step: an executor for TFX's component; the statistics are TFDV's own."""

from __future__ import annotations

import os
from typing import Any

import tensorflow_data_validation as tfdv
from tfx import types
from tfx.components.statistics_gen import executor as tfx_statistics_gen
from tfx.types import artifact_utils, standard_component_specs
from tfx.utils import json_utils

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
        examples = artifact_utils.get_single_instance(input_dict[standard_component_specs.EXAMPLES_KEY])
        statistics = artifact_utils.get_single_instance(output_dict[standard_component_specs.STATISTICS_KEY])
        excluded = json_utils.loads(exec_properties.get(standard_component_specs.EXCLUDE_SPLITS_KEY) or "[]")
        splits = [name for name in artifact_utils.decode_split_names(examples.split_names) if name not in excluded]
        statistics.split_names = artifact_utils.encode_split_names(splits)
        statistics.span = examples.span
        written = exec_properties.get(standard_component_specs.STATS_OPTIONS_JSON_KEY)
        options = tfdv.StatsOptions.from_json(written) if written else tfdv.StatsOptions()
        with self._make_beam_pipeline() as pipeline:
            for split in splits:
                folder = artifact_utils.get_split_uri([statistics], split)
                path = os.path.join(folder, tfx_statistics_gen.DEFAULT_FILE_NAME)
                _ = (
                    pipeline
                    | f"Examples[{split}]" >> ReadBlocks(files_of(examples, split))
                    | f"Statistics[{split}]" >> tfdv.GenerateStatistics(options)
                    | f"Write[{split}]" >> tfdv.WriteStatisticsToBinaryFile(path)
                )
