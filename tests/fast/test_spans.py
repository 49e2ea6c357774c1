"""A window of spans is read span by span, and what was made of a span in one run is there for the next."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow_data_validation as tfdv
import tensorflow_transform as tft
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.proto import transform_pb2
from tfx.types import standard_artifacts
from tfx.utils import proto_utils

from pipeline import filesystem
from pipeline.fast.example_gen import FastExampleGenExecutor
from pipeline.fast.statistics_gen import FastStatisticsGenExecutor
from pipeline.fast.transform import FastTransformExecutor
from pipeline.packaging import user_code
from pipeline.settings.config import Data, HashSplit, TimeSplit
from pipeline.settings.target import IN_PROCESS
from tests.components.example_gen import records, run, values

SCHEMA = Path(__file__).resolve().parent.parent.parent / "schema/flights"
# Analyses of every kind that the cache knows: moments, a vocabulary, quantiles; and one that depends on another.
MODULE = """\
import tensorflow as tf
import tensorflow_transform as tft

def preprocessing_fn(inputs):
    distance = tf.cast(inputs["distance"], tf.float32)
    return {
        "distance": tft.scale_to_z_score(distance),
        "carrier": tft.compute_and_apply_vocabulary(inputs["carrier"], num_oov_buckets=1),
        "hour": tft.bucketize(inputs["sched_dep_minute"], num_buckets=8),%s
        "late": inputs["late"],
    }

def run_fn(fn_args):
    pass
"""
KINDS = ("scans", "shards", "statistics", "analysis")
TWO_PHASES = """
        "clipped": tft.scale_to_z_score(tf.minimum(distance, tft.mean(distance))),"""


def spans(few_flights: Path, folder: Path, *numbers: int) -> None:
    """Write months of flights as the spans of these numbers."""
    months = sorted(few_flights.glob("*/*.parquet"))
    for number in numbers:
        place = folder / f"span-{number}/flights.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(months[number].read_bytes())


def window(folder: Path, last: int | None = 2, **settings) -> Data:
    return Data(str(folder), files="span-{SPAN}/*", last_spans=last, **settings)


def data_steps(data: Data, to: Path, kept: Path, module: str = MODULE % "") -> Path:
    """Run the executors of ExampleGen, StatisticsGen and Transform as a local run does."""
    examples = run(data, to / "examples", kept=str(kept), executor=FastExampleGenExecutor)
    context = BaseBeamExecutor.Context(beam_pipeline_args=list(IN_PROCESS))
    statistics, schema, graph, transformed = (
        kind()
        for kind in (
            standard_artifacts.ExampleStatistics,
            standard_artifacts.Schema,
            standard_artifacts.TransformGraph,
            standard_artifacts.Examples,
        )
    )
    schema.uri = str(SCHEMA)
    for artifact, name in ((statistics, "statistics"), (graph, "graph"), (transformed, "transformed")):
        artifact.uri = str(to / name)
    described = {"kept": str(kept), "stats_options_json": tfdv.StatsOptions().to_json()}
    FastStatisticsGenExecutor(context).Do({"examples": [examples]}, {"statistics": [statistics]}, described)
    (to / "module.py").write_text(module)
    code = user_code.package(to / "module.py", ["preprocessing_fn"], to / "wheels")
    splits = transform_pb2.SplitsConfig(analyze=["train"], transform=["train", "eval"])
    properties = {
        "module_path": f"{code.module}@{code.wheel}",
        "custom_config": "{}",
        "splits_config": proto_utils.proto_to_json(splits),
        "kept": str(kept),
    }
    FastTransformExecutor(BaseBeamExecutor.Context(beam_pipeline_args=list(IN_PROCESS))).Do(
        {"examples": [examples], "schema": [schema]},
        {"transform_graph": [graph], "transformed_examples": [transformed]},
        properties,
    )
    return to


def written(folder: Path) -> dict[str, dict[str, str]]:
    digests = {name: filesystem.digests(folder / name) for name in ("examples", "statistics")}
    digests["examples"] = {file: digest for file, digest in digests["examples"].items() if "blocks/" not in file}
    return digests


def features(folder: Path, split: str) -> dict[str, np.ndarray]:
    rows = [values(record) for record in records(folder, split)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def kept_files(kept: Path, kind: str) -> dict[str, int]:
    """Return the modification times of the kept files."""
    values = (path for path in kept.glob(f"{kind}/*/*") if path.name == "value.pickle")
    return {path.parent.name: path.stat().st_mtime_ns for path in values}


@pytest.mark.slow
@pytest.mark.parametrize(
    "phases", [pytest.param("", id="one phase", marks=pytest.mark.long), pytest.param(TWO_PHASES, id="two phases")]
)
def test_spans_that_arrive_one_by_one_give_what_a_run_of_the_whole_window_gives(few_flights, tmp_path, phases):
    data, kept, module = tmp_path / "data", tmp_path / "kept", MODULE % phases
    spans(few_flights, data, 8, 9)
    data_steps(window(data), tmp_path / "first", kept, module)
    before = {kind: kept_files(kept, kind) for kind in KINDS}

    spans(few_flights, data, 10)
    # Remove the rows of the old span: reading it again would find none.
    old = data / "span-9/flights.parquet"
    status = old.stat()
    old.write_bytes(bytes(status.st_size))
    os.utime(old, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = data_steps(window(data), tmp_path / "second", kept, module)

    for kind, times in before.items():
        now = kept_files(kept, kind)
        assert len(now) == len(times), kind  # one span was added, one removed
        assert len(now.items() & times.items()) == len(times) // 2, kind  # the other one is unchanged

    spans(few_flights, data, 9)
    os.utime(old, ns=(status.st_atime_ns, status.st_mtime_ns))
    whole = data_steps(window(data), tmp_path / "whole", tmp_path / "nothing kept", module)
    assert written(after) == written(whole)
    for split in ("train", "eval"):
        of_window, of_whole = (features(folder / "transformed", split) for folder in (after, whole))
        for name, values_of_whole in of_whole.items():
            # Beam merges the spans in any order; vocabularies and the places of quantiles do not depend on it.
            np.testing.assert_allclose(of_window[name], values_of_whole, rtol=1e-5, atol=1e-6, err_msg=name)
    outputs = [tft.TFTransformOutput(str(folder / "graph")) for folder in (after, whole)]
    assert outputs[0].transformed_feature_spec() == outputs[1].transformed_feature_spec()


def tables(folder: Path, *numbers: int, rows: int = 300) -> None:
    """Write spans of a small table; ``time`` increases from span to span."""
    for number in numbers:
        place = folder / f"span-{number}/some.csv"
        place.parent.mkdir(parents=True, exist_ok=True)
        times = range(rows * number, rows * (number + 1))
        place.write_text("time,span\n" + "".join(f"{time},{number}\n" for time in times))


def times_by_split(examples: Path) -> dict[str, set[int]]:
    return {
        split: {values(record)["time"][0] for record in records(examples, split)} for split in ("train", "eval", "test")
    }


@pytest.mark.slow
def test_a_row_stays_in_its_split_when_the_window_moves_on(tmp_path):
    tables(tmp_path / "data", 1, 2)
    run(window(tmp_path / "data"), tmp_path / "before", kept=str(tmp_path / "kept"))
    tables(tmp_path / "data", 3)
    run(window(tmp_path / "data"), tmp_path / "after", kept=str(tmp_path / "kept"))
    before, after = times_by_split(tmp_path / "before"), times_by_split(tmp_path / "after")
    assert all(before.values())
    for split in before:
        of_second = {time for time in before[split] if 600 <= time < 900}
        assert of_second == {time for time in after[split] if time < 900}
    files = sorted((tmp_path / "after/Split-train").iterdir())
    assert [file.name.partition("_")[0] for file in files] == [f"span-{span:020d}" for span in (2, 3)]


@pytest.mark.slow
def test_rows_by_time_are_dealt_anew_when_the_window_moves_on(tmp_path):
    data = window(tmp_path / "data", split_by=TimeSplit("time"))
    tables(tmp_path / "data", 1, 2)
    run(data, tmp_path / "before", kept=str(tmp_path / "kept"))
    tables(tmp_path / "data", 3)
    run(data, tmp_path / "after", kept=str(tmp_path / "kept"))
    assert {time // 300 for time in times_by_split(tmp_path / "before")["test"]} == {2}
    after = times_by_split(tmp_path / "after")
    assert {time // 300 for time in after["test"]} == {3}
    assert {time // 300 for time in after["train"]} == {2, 3}


def test_what_is_kept_and_has_changed_is_made_anew(tmp_path):
    data, kept = window(tmp_path / "data"), tmp_path / "kept"
    tables(tmp_path / "data", 1, 2)
    run(data, tmp_path / "first", kept=str(kept))
    right = filesystem.digests(tmp_path / "first")
    for file in kept.glob("shards/*/Split-train/*"):
        content = file.read_bytes()
        file.unlink()  # it is the file of the examples too
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    run(data, tmp_path / "second", kept=str(kept))
    assert filesystem.digests(tmp_path / "second") == right


@pytest.mark.slow
def test_a_changed_file_of_an_old_span_is_read_again(tmp_path):
    tables(tmp_path / "data", 1, 2)
    run(window(tmp_path / "data"), tmp_path / "before", kept=str(tmp_path / "kept"))
    tables(tmp_path / "data", 1, rows=290)
    tables(tmp_path / "data", 3)
    run(window(tmp_path / "data", 3), tmp_path / "after", kept=str(tmp_path / "kept"))
    assert sum(map(len, times_by_split(tmp_path / "before").values())) == 600
    assert sum(map(len, times_by_split(tmp_path / "after").values())) == 890


def test_a_new_span_may_change_the_type_of_a_column(tmp_path):
    tables(tmp_path / "data", 1)
    run(window(tmp_path / "data"), tmp_path / "before", kept=str(tmp_path / "kept"))
    (tmp_path / "data/span-2").mkdir()
    (tmp_path / "data/span-2/some.csv").write_text("time,span\n" + "".join(f"{time}.5,2\n" for time in range(200)))
    run(window(tmp_path / "data"), tmp_path / "after", kept=str(tmp_path / "kept"))
    before, after = (values(records(tmp_path / name, "train")[0])["time"][0] for name in ("before", "after"))
    assert (type(before), type(after)) == (int, float)


def test_bad_rows_of_an_old_span_are_counted_and_shown_again(tmp_path):
    data = window(tmp_path / "data", max_bad_rows=0.01)
    tables(tmp_path / "data", 1)
    with (tmp_path / "data/span-1/some.csv").open("a") as file:
        file.write("1,2,3\n")
    for number, name in ((2, "before"), (3, "after")):
        tables(tmp_path / "data", number)
        examples = run(replace(data, last_spans=3), tmp_path / name, kept=str(tmp_path / "kept"))
        assert examples.get_int_custom_property("bad_rows") == 1
        (bad,) = (tmp_path / name / "bad_rows").iterdir()
        assert "some.csv,301," in bad.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("split_by", [HashSplit(), TimeSplit("time")], ids=["by hash", "by time"])
def test_the_newest_span_may_be_the_test_split_and_the_others_are_train_and_eval(tmp_path, split_by):
    tables(tmp_path / "data", 1, 2, 3, 4)
    data = window(tmp_path / "data", 3, split_by=split_by, until_span=3, test_newest=True)
    run(data, tmp_path / "examples", kept=str(tmp_path / "kept"))
    by_split = times_by_split(tmp_path / "examples")
    assert by_split["test"] == set(range(900, 1200))
    assert by_split["train"] | by_split["eval"] == set(range(300, 900))
    assert 30 <= len(by_split["eval"]) <= 110
