"""StatisticsGen and Transform's analysis in this process against the same on Beam, for the flights.

    python benchmarks/without_beam.py [--rounds 3]

On the examples of the last `make run`, all of the train split and 2,000 of them, decoded before. Both write the
statistics, and then the transform graph, in turns, in one process. Exits 1 when the one without Beam takes, in the
median, more than 0.7 of the time of the other for the statistics or half of it for the analysis, or when vocabularies
or counts differ, or a feature or a mean by more than a hundred-thousandth.
"""

import argparse
import functools
import itertools
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "models")]

import apache_beam as beam  # noqa: E402
import flights  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_data_validation as tfdv  # noqa: E402
import tensorflow_transform as tft  # noqa: E402
from google.protobuf import text_format  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from tensorflow_metadata.proto.v0 import schema_pb2  # noqa: E402

from pipeline.components import direct_analysis, statistics_gen, transform  # noqa: E402
from pipeline.components.beam_pipeline import Options, patch_beam_overheads  # noqa: E402
from pipeline.data.decoded_blocks import BLOCK, keep_decoded  # noqa: E402
from pipeline.data.shard_files import write_records  # noqa: E402
from pipeline.data.tfrecord_files import read_records  # noqa: E402
from pipeline.settings.target import IN_PROCESS  # noqa: E402
from pipeline.validation.statistics import features_of, options_for  # noqa: E402

FEW = 2_000
MOST_DIFFERENCE = 1e-5
SCHEMA = text_format.Parse((ROOT / "schema/flights/schema.pbtxt").read_text(), schema_pb2.Schema())
PREPROCESSING_FN = functools.partial(flights.preprocessing_fn, custom_config={"label": "late"})


def main() -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of each, in turns (%(default)s)")
    rounds = parser.parse_args().rounds
    examples = sorted(ROOT.glob("output/flights/artifacts/ExampleGen/examples/*"), key=lambda path: int(path.name))
    if not examples:
        print("there are no examples of the flights below output; expected those of a run: make run", file=sys.stderr)
        return 2
    every = sorted(map(str, examples[-1].glob("Split-train/*")))
    patch_beam_overheads()
    table = Table("", "rows", "Beam, s", "here, s", "of its time", "from", "to", "at most", "differs by")
    reached = True
    with tempfile.TemporaryDirectory() as folder, keep_decoded():
        few = f"{folder}/few.gz"
        write_records(itertools.islice(itertools.chain.from_iterable(read_records(every[0], BLOCK)), FEW), few, folder)
        names = (f"{folder}/made/{number}" for number in itertools.count())
        for (name, (most, by_beam, directly, difference)), files in itertools.product(STEPS.items(), ([few], every)):
            for make in (by_beam, directly):  # decodes the files, and what is made once in a process
                make(files, next(names))
            took: dict[Callable[..., None], list[float]] = {by_beam: [], directly: []}
            for number in range(rounds):
                for make in (by_beam, directly) if number % 2 else (directly, by_beam):
                    to = next(names)
                    started = time.monotonic()
                    make(files, to)
                    took[make].append(time.monotonic() - started)
            made = next(names), next(names)
            by_beam(files, made[0])
            directly(files, made[1])
            differs = difference(files, *made)
            ratios = [one / other for one, other in zip(took[directly], took[by_beam], strict=True)]
            reached &= statistics.median(ratios) <= most and differs <= MOST_DIFFERENCE
            seconds = [f"{statistics.median(took[make]):.1f}" for make in (by_beam, directly)]
            shares = [f"{share:.2f}" for share in (statistics.median(ratios), min(ratios), max(ratios))]
            rows = sum(len(records) for file in files for records in read_records(file, BLOCK))
            table.add_row(name, f"{rows:,}", *seconds, *shares, f"{most:g}", f"{differs:.1g}")
    Console().print(table)
    print(
        f"must reach: no more of Beam's time than that, vocabularies and counts the same, the rest within "
        f"{MOST_DIFFERENCE:g}: {'reached' if reached else 'falls short'}"
    )
    return 0 if reached else 1


def graph_by_beam(files: list[str], to: str) -> None:
    """Writes the transform graph of files with Beam."""
    with beam.Pipeline(options=Options(list(IN_PROCESS))) as pipeline:
        transform.analyze(pipeline, files, SCHEMA, PREPROCESSING_FN, to)


def graph_directly(files: list[str], to: str) -> None:
    """Writes the transform graph of files in this process."""
    os.makedirs(to)
    direct_analysis.analyze(files, SCHEMA, PREPROCESSING_FN, f"{to}/{direct_analysis.TEMPORARY}").write(to)


def graphs_differ(files: list[str], one: str, other: str) -> float:
    """Returns by how much a feature differs at most; infinite where vocabularies do."""
    outputs = [tft.TFTransformOutput(graph) for graph in (one, other)]
    assets = [
        {path.name: path.read_bytes() for path in Path(output.transform_savedmodel_dir, "assets").iterdir()}
        for output in outputs
    ]
    if assets[0] != assets[1]:
        return math.inf
    records = tf.constant(next(iter(read_records(files[0], BLOCK))))
    raw = tf.io.parse_example(records, outputs[0].raw_feature_spec())
    mine, theirs = (output.transform_features_layer()(dict(raw)) for output in outputs)
    return max(float(np.abs(mine[name].numpy() - theirs[name].numpy()).max()) for name in mine)


def statistics_by_beam(files: list[str], to: str) -> None:
    """Writes the statistics of files with Beam."""
    with beam.Pipeline(options=Options(list(IN_PROCESS))) as pipeline:
        statistics_gen.add_statistics(pipeline, "all", files, OPTIONS, to)


def statistics_directly(files: list[str], to: str) -> None:
    """Writes the statistics of files in this process."""
    Path(to).write_bytes(statistics_gen.statistics_of(files, OPTIONS).SerializeToString())


def statistics_differ(files: list[str], one: str, other: str) -> float:
    """Returns by how much a mean differs at most, as a share; infinite where a count does."""
    mine, theirs = (features_of(tfdv.load_stats_binary(path)) for path in (one, other))
    if mine.keys() != theirs.keys():
        return math.inf
    most = 0.0
    for name, column in mine.items():
        kind = column.WhichOneof("stats")
        ours, others = getattr(column, kind), getattr(theirs[name], kind)
        if ours.common_stats != others.common_stats or (kind == "string_stats" and ours.unique != others.unique):
            return math.inf
        if kind == "num_stats":
            most = max(most, abs(ours.mean - others.mean) / max(abs(others.mean), 1e-9))
    return most


OPTIONS = options_for(None)
# Of each: the most of Beam's time, both ways, and how they are compared.
STEPS: dict[str, tuple[float, Callable[..., None], Callable[..., None], Callable[..., float]]] = {
    "statistics": (0.7, statistics_by_beam, statistics_directly, statistics_differ),
    "analysis": (0.5, graph_by_beam, graph_directly, graphs_differ),
}


if __name__ == "__main__":
    sys.exit(main())
