"""TensorFlow Transform's analysis in this process against the same on Beam, for the flights: their transform graph.

    python benchmarks/analysis.py [--rounds 3]

On the examples of the last `make run`, all of the train split and 2,000 of them, decoded before. Both write the
transform graph, in turns, in one process. Exits 1 when the one without Beam takes, in the median, more than half of the
time of the other, or when a vocabulary or a value that was analyzed differs by more than a hundred-thousandth.
"""

import argparse
import functools
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "models")]

import apache_beam as beam  # noqa: E402
import flights  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_transform as tft  # noqa: E402
from google.protobuf import text_format  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from tensorflow_metadata.proto.v0 import schema_pb2  # noqa: E402

from pipeline.components import direct_analysis, transform  # noqa: E402
from pipeline.components.beam_pipeline import Options, patch_beam_overheads  # noqa: E402
from pipeline.data.decoded_blocks import BLOCK, keep_decoded  # noqa: E402
from pipeline.data.shard_files import write_records  # noqa: E402
from pipeline.data.tfrecord_files import read_records  # noqa: E402
from pipeline.settings.target import IN_PROCESS  # noqa: E402

FEW = 2_000
MOST_TIME, MOST_DIFFERENCE = 0.5, 1e-5
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
    table = Table("rows", "Beam, s", "in this process, s", "of Beam's time", "from", "to", "values differ by at most")
    reached = True
    with tempfile.TemporaryDirectory() as folder, keep_decoded():
        few = f"{folder}/few.gz"
        write_records(itertools.islice(itertools.chain.from_iterable(read_records(every[0], BLOCK)), FEW), few, folder)
        names = (f"{folder}/graphs/{number}" for number in itertools.count())
        for files in ([few], every):
            for analyze in (by_beam, directly):  # decodes the files, and what is made once in a process
                analyze(files, next(names))
            took: dict[Callable[..., None], list[float]] = {by_beam: [], directly: []}
            for number in range(rounds):
                for analyze in (by_beam, directly) if number % 2 else (directly, by_beam):
                    graph = next(names)
                    started = time.monotonic()
                    analyze(files, graph)
                    took[analyze].append(time.monotonic() - started)
            differs = difference(files, names)
            ratios = [one / other for one, other in zip(took[directly], took[by_beam], strict=True)]
            reached &= statistics.median(ratios) <= MOST_TIME and differs <= MOST_DIFFERENCE
            seconds = [f"{statistics.median(took[analyze]):.1f}" for analyze in (by_beam, directly)]
            shares = [f"{share:.2f}" for share in (statistics.median(ratios), min(ratios), max(ratios))]
            rows = sum(len(records) for file in files for records in read_records(file, BLOCK))
            table.add_row(f"{rows:,}", *seconds, *shares, f"{differs:.1g}")
    Console().print(table)
    print(
        f"must reach: at most {MOST_TIME:g} of Beam's time, vocabularies the same and values within "
        f"{MOST_DIFFERENCE:g}: {'reached' if reached else 'falls short'}"
    )
    return 0 if reached else 1


def by_beam(files: list[str], graph: str) -> None:
    """Writes the transform graph of files with Beam."""
    with beam.Pipeline(options=Options(list(IN_PROCESS))) as pipeline:
        transform.analyze(pipeline, files, SCHEMA, PREPROCESSING_FN, graph)


def directly(files: list[str], graph: str) -> None:
    """Writes the transform graph of files in this process."""
    os.makedirs(graph)
    direct_analysis.analyze(files, SCHEMA, PREPROCESSING_FN, f"{graph}/{direct_analysis.TEMPORARY}").write(graph)


def difference(files: list[str], names: Iterator[str]) -> float:
    """Returns by how much a feature differs at most, in one of both transform graphs; infinite where words do."""
    outputs = []
    for analyze in (by_beam, directly):
        graph = next(names)
        analyze(files, graph)
        outputs.append(tft.TFTransformOutput(graph))
    assets = [
        {path.name: path.read_bytes() for path in Path(output.transform_savedmodel_dir, "assets").iterdir()}
        for output in outputs
    ]
    if assets[0] != assets[1]:
        return float("inf")
    records = tf.constant(next(iter(read_records(files[0], BLOCK))))
    raw = tf.io.parse_example(records, outputs[0].raw_feature_spec())
    one, other = (output.transform_features_layer()(dict(raw)) for output in outputs)
    return max(float(np.abs(one[name].numpy() - other[name].numpy()).max()) for name in one)


if __name__ == "__main__":
    sys.exit(main())
