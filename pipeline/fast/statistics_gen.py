"""StatisticsGen: replaces ``tfx.components.statistics_gen.executor.Executor``; the statistics are TFDV's own.

On one machine TFDV's generators get the rows here, block by block, without Beam. For a window of spans, the
accumulators of each file of examples are stored: the next run reads the files of new spans, and merges. Finished
statistics cannot be merged, but the sums and sketches that they are computed from can.

Gain: see docs/decisions/0035-the-fast-engine.md. Equality with TFDV on Beam: tests/fast/test_statistics_gen.py.
"""

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam
import tensorflow_data_validation as tfdv
from tensorflow_data_validation.statistics import stats_impl
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx import types
from tfx.components.statistics_gen import executor as tfx_statistics_gen
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.types import artifact_utils

from pipeline import filesystem
from pipeline.components.base import Artifacts, files_of
from pipeline.data import kept
from pipeline.data.blocks import read_blocks
from pipeline.fast import beam_options
from pipeline.fast.blocks import ReadBlocks, Spread

# Compressed bytes up to which the files are read here and not by workers elsewhere: about 50,000 rows of 20 columns.
SMALL_BYTES = 2 << 20


class FastStatisticsGenExecutor(BaseBeamExecutor):
    """Compute the statistics of every split."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Write "statistics", one FeatureStats.pb for each split."""
        examples = artifact_utils.get_single_instance(input_dict["examples"])
        statistics = artifact_utils.get_single_instance(output_dict["statistics"])
        statistics.split_names = examples.split_names
        statistics.span = examples.span
        options = tfdv.StatsOptions.from_json(exec_properties["stats_options_json"])
        by_split = {
            split: files_of(examples, split) for split in artifact_utils.decode_split_names(examples.split_names)
        }
        if exec_properties.get("kept"):
            with_spans = self._merged(by_split, options, exec_properties["kept"], exec_properties.get("code", ""))
            for split, message in with_spans.items():
                filesystem.write(_path_of(statistics, split), message.SerializeToString())
            return
        large: dict[str, list[str]] = {}
        for split, files in by_split.items():
            if self._needs_beam(files):
                large[split] = files
                continue
            filesystem.write(_path_of(statistics, split), statistics_of(files, options).SerializeToString())
        if not large:
            return
        with self._make_beam_pipeline() as pipeline:
            for split, files in large.items():
                add_statistics(pipeline, split, files, options, _path_of(statistics, split))

    def _needs_beam(self, files: Iterable[str]) -> bool:
        """Return whether files are for workers elsewhere."""
        in_process = beam_options.in_process(self._beam_pipeline_args)
        return not in_process and sum(map(filesystem.size, files)) > SMALL_BYTES

    def _merged(
        self, by_split: dict[str, list[str]], options: tfdv.StatsOptions, root: str, code: str
    ) -> dict[str, statistics_pb2.DatasetFeatureStatisticsList]:
        """Return the statistics of every split; read only files that no earlier run has read."""
        folders = {
            file: kept.folder_of(root, "statistics", code, tfdv.__version__, options.to_json(), filesystem.digest(file))
            for files in by_split.values()
            for file in files
        }
        new = [(file, folder) for file, folder in folders.items() if not kept.is_whole(folder)]
        if self._needs_beam(file for file, _ in new):
            with self._make_beam_pipeline() as pipeline:
                _ = pipeline | "Files" >> Spread(new) | "Gather" >> beam.Map(_gather, options)
        else:
            for pair in new:
                _gather(pair, options)
        generators = stats_impl.get_generators(options, in_memory=True)
        merged = {}
        for split, files in by_split.items():
            # One accumulator by generator, of each file.
            accumulators = zip(*(kept.read_value(folders[file]) for file in files), strict=True)
            together = [
                generator.merge_accumulators(of_generator)
                for generator, of_generator in zip(generators, accumulators, strict=True)
            ]
            merged[split] = stats_impl.extract_statistics_output(together, generators)
        kept.prune(root, "statistics", folders.values())
        return merged


def add_statistics(pipeline: beam.Pipeline, split: str, files: list[str], options: tfdv.StatsOptions, to: str) -> None:
    """Add the statistics of a split to a Beam pipeline, which writes them to a file."""
    _ = (
        pipeline
        | f"Examples[{split}]" >> ReadBlocks(files)
        | f"Statistics[{split}]" >> tfdv.GenerateStatistics(options)
        | f"Write[{split}]" >> tfdv.WriteStatisticsToBinaryFile(to)
    )


def statistics_of(files: Iterable[str], options: tfdv.StatsOptions) -> statistics_pb2.DatasetFeatureStatisticsList:
    """Return the statistics of files, without Beam."""
    generators = stats_impl.get_generators(options, in_memory=True)
    return stats_impl.extract_statistics_output(_accumulators(generators, files), generators)


def _gather(file_and_folder: tuple[str, str], options: tfdv.StatsOptions) -> None:
    """Keep what TFDV gathers of a file of examples: an accumulator for each of its generators."""
    file, folder = file_and_folder
    generators = stats_impl.get_generators(options, in_memory=True)
    accumulators = _accumulators(generators, [file])
    kept.write_value(
        folder, [generator.compact(part) for generator, part in zip(generators, accumulators, strict=True)]
    )
    kept.seal(folder)


def _accumulators(generators: Sequence[Any], files: Iterable[str]) -> list[Any]:
    """Return what each of TFDV's generators gathers of files."""
    accumulators = [generator.create_accumulator() for generator in generators]
    for batch in itertools.chain.from_iterable(read_blocks(file) for file in files):
        accumulators = [
            generator.add_input(accumulator, batch)
            for generator, accumulator in zip(generators, accumulators, strict=True)
        ]
    return accumulators


def _path_of(statistics: types.Artifact, split: str) -> str:
    folder = artifact_utils.get_split_uri([statistics], split)
    return os.path.join(folder, tfx_statistics_gen.DEFAULT_FILE_NAME)
