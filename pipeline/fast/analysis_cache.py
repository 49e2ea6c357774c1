"""Keep what TensorFlow Transform's analysis gathers of each span of a window, and take it again in the next run.

Its own analyzer cache (``tft_beam.AnalyzeDatasetWithCache``), with a data set for each span. TensorFlow Transform's
classes that write the cache to files take several Beam steps for each of its entries; here a span has one file.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import tensorflow_transform.beam as tft_beam
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_transform.beam.analysis_graph_builder import get_analysis_dataset_keys
from tensorflow_transform.beam.analyzer_cache import DatasetCache, DatasetKey
from tfx_bsl.public import tfxio

from pipeline import filesystem
from pipeline.data import kept
from pipeline.data.shard_files import span_of
from pipeline.fast.blocks import ReadBlocks

KIND = "analysis"


class AnalysisCache:
    """The analysis of each span.

    Attributes:
        folders: Where it is kept, by data set, oldest span first.
    """

    def __init__(self, root: str, files: Sequence[str], made_of: Sequence[object]):
        """Look for what is kept.

        Args:
            root: Folder of all that is kept.
            files: That are analyzed.
            made_of: What the analysis depends on beside the files: code, schema, settings.
        """
        self._root = root
        self._files: dict[DatasetKey, list[str]] = {}
        self.folders: dict[DatasetKey, str] = {}
        for span, several in itertools.groupby(sorted(files, key=_span), key=_span):
            of_span = list(several)
            digests = [filesystem.digest(file) for file in of_span]
            # TensorFlow Transform merges data sets in the order of their names.
            key = DatasetKey(f"{span:020d}-{hashlib.sha256(repr(digests).encode()).hexdigest()[:16]}")
            self._files[key] = of_span
            self.folders[key] = kept.folder_of(root, KIND, digests, *made_of)
        self._known = {
            key: sorted(kept.read_value(folder)) for key, folder in self.folders.items() if kept.is_whole(folder)
        }
        self._gathered: list[str] = []

    def analyze(
        self,
        pipeline: beam.Pipeline,
        schema: schema_pb2.Schema,
        config: tfxio.TensorAdapterConfig,
        preprocessing_fn: Callable[..., Any],
    ) -> Any:
        """Add the analysis to a Beam pipeline; return the transform function, and write what was gathered anew."""
        keys = list(self._files)
        cache = {
            key: DatasetCache(_read(pipeline, entries, self.folders[key]), None) for key, entries in self._known.items()
        }
        specs = tfxio.TensorAdapter(config).OriginalTypeSpecs()
        needed = get_analysis_dataset_keys(preprocessing_fn, specs, keys, cache, force_tf_compat_v1=False)
        batches = {
            key: pipeline | f"Examples[{key.key}]" >> ReadBlocks(self._files[key], schema) if key in needed else None
            for key in keys
        }
        analysis = tft_beam.AnalyzeDatasetWithCache(preprocessing_fn, pipeline=pipeline)
        transform_fn, gathered = (batches, cache, config) | "Analyze" >> analysis
        for key, of_span in gathered.items():
            _write(of_span.cache_dict, self.folders[key])
            self._gathered.append(self.folders[key])
        return transform_fn

    def seal(self) -> None:
        """Let what was gathered count, once the pipeline has run, and delete what was not used."""
        for folder in self._gathered:
            kept.seal(folder)
        kept.prune(self._root, KIND, self.folders.values())


def _span(file: str) -> int:
    span = span_of(file)
    assert span is not None, file
    return span


def _read(pipeline: beam.Pipeline, entries: Sequence[bytes], folder: str) -> dict[bytes, beam.PCollection[bytes]]:
    """Return the values of each entry of a data set that is kept."""
    tags = [str(number) for number in range(len(entries))]
    values = (
        pipeline | f"{folder}" >> beam.Create([folder]) | f"Read[{folder}]" >> beam.FlatMap(_tagged).with_outputs(*tags)
    )
    return {entry: values[tag] for entry, tag in zip(entries, tags, strict=True)}


def _tagged(folder: str) -> Iterator[Any]:
    for number, (_, values) in enumerate(sorted(kept.read_value(folder).items())):
        yield from (beam.pvalue.TaggedOutput(str(number), value) for value in values)


def _write(entries: Mapping[bytes, beam.PCollection[bytes]], folder: str) -> None:
    """Write the values of all entries of a data set to one file."""
    named = [
        values | f"Entry[{folder}][{number}]" >> beam.Map(_pair, entry)
        for number, (entry, values) in enumerate(sorted(entries.items()))
    ]
    _ = (
        named
        | f"Entries[{folder}]" >> beam.Flatten()
        | f"Gather[{folder}]" >> beam.combiners.ToList()
        | f"Keep[{folder}]" >> beam.Map(_keep, sorted(entries), folder)
    )


def _pair(value: bytes, entry: bytes) -> tuple[bytes, bytes]:
    return entry, value


def _keep(pairs: Sequence[tuple[bytes, bytes]], entries: Sequence[bytes], folder: str) -> None:
    by_entry: dict[bytes, list[bytes]] = {entry: [] for entry in entries}
    for entry, value in pairs:
        by_entry[entry].append(value)
    kept.write_value(folder, by_entry)
