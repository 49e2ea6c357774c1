"""Our Transform gives what TFX's gives, and the same bytes every time."""

import glob
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
import tensorflow_transform as tft
from apache_beam.options.pipeline_options import PipelineOptions
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.components.transform import executor as tfx_transform
from tfx.components.util import examples_utils
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.proto import example_gen_pb2, transform_pb2
from tfx.types import standard_artifacts
from tfx.utils import proto_utils

from pipeline import filesystem
from pipeline.components import transform as stock
from pipeline.errors import UserError
from pipeline.fast import transform
from pipeline.fast.example_gen import FastExampleGenExecutor
from pipeline.model import background
from pipeline.packaging import user_code
from pipeline.runs.results import warnings_of
from pipeline.runs.step import Step
from pipeline.settings.config import Data
from pipeline.settings.target import Dataflow, Target
from tests.components.example_gen import run, values
from tests.fakes.buckets import fake_buckets
from tests.fast.transform_outputs import outputs

MODULE = """\
import tensorflow as tf
import tensorflow_transform as tft

def preprocessing_fn(inputs):
    temp = inputs["temp"]
    return {
        "distance": tft.scale_to_z_score(tf.cast(inputs["distance"], tf.float32)),
        "carrier": tft.compute_and_apply_vocabulary(inputs["carrier"], num_oov_buckets=1),
        "temps": temp,
        "both": tf.concat([tf.cast(inputs["month"], tf.float32), tf.cast(inputs["day"], tf.float32)], axis=1),
        "dest": inputs["dest"],
        "late": inputs["late"],
    }

def run_fn(fn_args):
    pass
"""
SPLITS = {split: f"{split}/*.parquet" for split in ("train", "eval", "test")}
SCHEMA = Path(__file__).resolve().parent.parent.parent / "schema/flights/schema.pbtxt"


EXECUTORS = pytest.mark.parametrize("executor", [stock.TransformExecutor, transform.FastTransformExecutor])


@pytest.fixture(scope="module")
def examples(few_flights: Path, tmp_path_factory: pytest.TempPathFactory) -> standard_artifacts.Examples:
    return run(Data(str(few_flights), splits=SPLITS), tmp_path_factory.mktemp("transform") / "examples")


@pytest.fixture
def transformed(examples: standard_artifacts.Examples, tmp_path: Path) -> Callable[..., Path]:
    schema = standard_artifacts.Schema()
    schema.uri = str(SCHEMA.parent)

    def transformed(
        executor: type, name: str, custom_config: str = "{}", text: str = MODULE, examples: Any = examples
    ) -> Path:
        (tmp_path / "module.py").write_text(text)
        module = user_code.package(tmp_path / "module.py", ["preprocessing_fn"], tmp_path / "wheels")
        output_dict = outputs(tmp_path / name)
        properties = {
            "module_path": f"{module.module}@{module.wheel}",
            "custom_config": custom_config,
            "disable_statistics": 1,
            "splits_config": proto_utils.proto_to_json(
                transform_pb2.SplitsConfig(analyze=["train"], transform=["train", "eval"])
            ),
        }
        context = BaseBeamExecutor.Context(beam_pipeline_args=list(Target.local(tmp_path, "").beam_args))
        executor(context).Do({"examples": [examples], "schema": [schema]}, output_dict, properties)
        (result,) = output_dict["transformed_examples"]
        assert result.split_names == '["train", "eval"]'
        assert examples_utils.get_payload_format(result) == example_gen_pb2.FORMAT_TF_EXAMPLE
        transformed.made = output_dict
        return tmp_path / name

    return transformed


def rows(folder: Path, split: str) -> list:
    files = sorted(glob.glob(f"{folder}/transformed_examples/Split-{split}/*"))
    found = [values(one.numpy()) for one in tf.data.TFRecordDataset(files, compression_type="GZIP")]
    return sorted(sorted((name, value or []) for name, value in one.items()) for one in found)


@pytest.mark.slow
def test_the_values_are_those_of_tfx_and_the_bytes_are_always_the_same(few_flights, transformed, tmp_path, monkeypatch):
    for module in ("pipeline.data.blocks", "pipeline.fast.transform"):
        monkeypatch.setattr(f"{module}.BLOCK", 16)  # a month of these flights has several blocks, joined by four
    ours, tfxs = transformed(transform.FastTransformExecutor, "ours"), transformed(tfx_transform.Executor, "tfx")
    with_blocks = run(Data(str(few_flights), splits=SPLITS), tmp_path / "examples", executor=FastExampleGenExecutor)
    assert (Path(with_blocks.uri) / "blocks").exists()
    again = transformed(transform.FastTransformExecutor, "again", examples=with_blocks)
    for split in ("train", "eval"):
        mine, theirs = rows(ours, split), rows(tfxs, split)
        assert len(mine) == len(theirs) > 700
        for one, other in zip(mine, theirs, strict=True):
            for (name, value), (other_name, other_value) in zip(one, other, strict=True):
                assert name == other_name
                if name == "distance":
                    np.testing.assert_allclose(value, other_value, rtol=1e-4)
                else:
                    assert value == other_value, name
    written = [
        {
            path.relative_to(folder): path.read_bytes()
            for pattern in ("transformed_examples/*/*", f"transform_graph/{background.FOLDER}/*")
            for path in folder.glob(pattern)
        }
        for folder in (ours, again)
    ]
    assert written[0] == written[1]
    graphs = [tft.TFTransformOutput(str(folder / "transform_graph")) for folder in (ours, tfxs)]
    assert graphs[0].raw_feature_spec() == graphs[1].raw_feature_spec()
    assert graphs[0].transformed_feature_spec() == graphs[1].transformed_feature_spec()


@pytest.mark.slow
@EXECUTORS
def test_explanations_begin_from_raw_rows_of_the_train_split_alone(transformed, executor):
    graph = transformed(executor, "with rows") / "transform_graph"
    kept = [values(row) for row in background.read(str(graph), 64)]
    assert len(kept) == 64
    months = {row["month"][0] for row in kept}
    assert months == {1, 2, 3, 4, 5, 6, 7, 8}  # eval has 9 and 10, test 11 and 12
    assert "seats" in kept[0]  # as it came, not as the module file makes it


def test_blocks_are_joined_in_order_up_to_one_of_fewer_rows(monkeypatch):
    monkeypatch.setattr(transform, "BLOCK", 3)

    def joined(*sizes: int) -> list[int]:
        values = list(map(str, range(sum(sizes))))
        ends = np.cumsum(sizes)
        lists = [values[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        batches = [pa.record_batch([pa.array(rows)], names=["row"]) for rows in lists]
        of_lists = [batch["row"].to_pylist() for batch in transform._joined(batches)]
        assert list(itertools.chain.from_iterable(of_lists)) == values
        return list(map(len, of_lists))

    assert joined(3, 3, 3, 3, 3, 2) == [12, 5]
    assert joined(3, 3, 3) == [9]
    assert joined(2, 2, 1) == [2, 2, 1]  # large rows: memory limits the size of a batch
    assert joined() == []


@pytest.mark.slow
@EXECUTORS
def test_the_weight_passes_by_the_module_file_and_comes_out_over_its_mean(transformed, executor):
    folder = transformed(executor, "weighed", '{"weight": "sched_dep_minute"}')
    weights = [dict(row)["sched_dep_minute"] for row in rows(folder, "train")]
    assert len(weights) > 700
    assert np.mean(weights) == pytest.approx(1)
    assert np.std(weights) > 0.2
    assert len(dict(rows(folder, "eval")[0])["sched_dep_minute"]) == 1


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("None", "preprocessing_fn returns None.*, expected a dictionary of features by name; is a return missing"),
        ("[inputs['late']]", "preprocessing_fn returns list, expected a dictionary of features by name$"),
        ("{'late': inputs['late'], 'one': 1.0}", "preprocessing_fn returns float as 'one', expected a tensor$"),
        ("{'seats': inputs['late']}", "preprocessing_fn returns 'seats', which is the weight of the rows"),
    ],
)
@EXECUTORS
def test_features_that_are_not_tensors_by_name_are_an_error(transformed, executor, returned, message):
    module = f"def preprocessing_fn(inputs):\n    return {returned}\n\ndef run_fn(fn_args):\n    pass\n"
    with pytest.raises(UserError, match=message):
        transformed(executor, "none", '{"weight": "seats"}', module)


def labelled(label: str, name: str = "'late'") -> str:
    """Return a module file that makes the label as an expression says."""
    features = f"'month': tf.cast(inputs['month'], tf.float32), {name}: {label}"
    return (
        "import tensorflow as tf\nimport tensorflow_transform as tft\n"
        f"def preprocessing_fn(inputs):\n    return {{{features}}}\n\ndef run_fn(fn_args):\n    pass\n"
    )


OF_CLASSES, OF_NUMBERS = '{"label": "late", "classes": ["no", "yes"]}', '{"label": "distance", "classes": []}'
# With a name: tf.Transform names a table after its tensors, and other modules of this process have one of words.
VOCABULARY = "1 - tft.compute_and_apply_vocabulary(inputs['late'], name='of_late')"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "name", "message"),
    [
        (
            VOCABULARY,
            "'late'",
            r"renumbers the classes of the label 'late': no \(0\) becomes 1, yes \(1\) becomes 0. Exa",
        ),
        pytest.param(VOCABULARY, "'late_xf'", "renumbers the classes", marks=pytest.mark.long),
        pytest.param("inputs['late'] + 1", "'late'", "renumbers .*: no .* becomes 1, yes .* 2", marks=pytest.mark.long),
        (
            "tf.one_hot(1 - tf.reshape(inputs['late'], [-1]), 2)",
            "'late'",
            r"renumbers the classes of the label 'late': no \(0\) becomes 1, yes \(1\) becomes 0",
        ),
        (
            "tf.maximum(inputs['late'], 1)",
            "'late'",
            r"merges .*: no \(0\) becomes 1. .* merge them in the data and in ",
        ),
    ],
)
@EXECUTORS
def test_a_class_that_the_module_file_gives_another_number_is_an_error(transformed, executor, label, name, message):
    with pytest.raises(UserError, match=f"preprocessing_fn {message}"):
        transformed(executor, "renumbered", OF_CLASSES, labelled(label, name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "name", "config"),
    [
        ("tf.cast(inputs['late'], tf.float32)", "'late'", OF_CLASSES),
        ("tf.one_hot(tf.reshape(inputs['late'], [-1]), 2)", "'late_xf'", OF_CLASSES),
        # TFX's taxi example: a label of two columns, which is not that of the config.
        ("tf.cast(inputs['late'] * inputs['day'] > 3, tf.int64)", "'late_xf'", OF_CLASSES),
        ("inputs['late'], 'flipped': 1 - inputs['late']", "'late'", OF_CLASSES),
        ("tf.cast(inputs['distance'], tf.float32)", "'distance'", OF_NUMBERS),
        # ExampleGen numbers no text in TFRecords, so the module file does.
        ("tft.compute_and_apply_vocabulary(inputs['carrier'])", "'carrier'", '{"label": "carrier", "classes": ["a"]}'),
    ],
)
def test_a_label_that_stays_what_it_is_passes(transformed, caplog, label, name, config):
    transformed(transform.FastTransformExecutor, "as it is", config, labelled(label, name))
    assert not [record for record in caplog.records if "label" in record.getMessage()]


@pytest.mark.slow
def test_a_number_that_the_module_file_scales_is_a_warning_in_each_run(transformed, caplog):
    scaled = labelled("tf.math.log1p(tf.cast(inputs['distance'], tf.float32))", "'distance'")
    transformed(transform.FastTransformExecutor, "scaled", OF_NUMBERS, scaled)
    (sentence,) = [record.getMessage() for record in caplog.records if record.name == "pipeline"]
    assert re.match(
        r"preprocessing_fn changes the label 'distance': \d+ becomes \d\.\d+\. Metrics compare .* undo", sentence
    )
    (graph,) = transformed.made["transform_graph"]
    assert warnings_of(Step("Transform", "cached", 0.0, {"transform_graph": [graph]}, None)) == [sentence]


@pytest.mark.slow
def test_a_number_of_which_the_module_file_makes_none_is_an_error(transformed):
    log = labelled("tf.math.log(tf.cast(inputs['distance'], tf.float32) - 1000)", "'distance'")
    with pytest.raises(UserError, match=r"changes the label 'distance': \d+ becomes nan, which no model learns"):
        transformed(transform.FastTransformExecutor, "none", OF_NUMBERS, log)


@pytest.mark.parametrize("where", ["here", "in a bucket", "in a bucket, by Dataflow"])
def test_what_passes_between_phases_is_not_in_the_artifact_and_reaches_a_bucket_from_dataflow_only(
    where, tmp_path, monkeypatch
):
    fake_buckets(monkeypatch, tmp_path / "buckets")
    dataflow = Dataflow("some-project", "europe-west4", "gs://some-bucket/temp", "europe-docker.pkg.dev/p/r/image:1")
    flags = dataflow.beam_args if "Dataflow" in where else Target.local(tmp_path, "").beam_args
    executor = transform.FastTransformExecutor(BaseBeamExecutor.Context(beam_pipeline_args=list(flags)))
    graph = str(tmp_path / "graph") if where == "here" else "gs://some-bucket/graph"
    with executor._beam_folder(graph) as folder:
        assert (folder == graph) == (where != "in a bucket")
        for name in (f"{transform.TEMPORARY}/1/assets/a", "transform_fn/saved_model.pb", "metadata/schema.pbtxt"):
            filesystem.write(f"{folder}/{name}", name)
    root = tmp_path / "graph" if where == "here" else tmp_path / "buckets/some-bucket/graph"
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    assert files == ["metadata/schema.pbtxt", "transform_fn/saved_model.pb"]


@pytest.mark.slow
def test_the_job_of_the_analysis_is_built_for_dataflow_offline(tmp_path):
    def preprocessing_fn(inputs):
        return {"distance": tft.scale_to_z_score(tf.cast(inputs["distance"], tf.float32)), "late": inputs["late"]}

    dataflow = Dataflow("some-project", "europe-west4", "gs://some-bucket/temp", "europe-docker.pkg.dev/p/r/image:1")
    schema = text_format.Parse(SCHEMA.read_bytes(), schema_pb2.Schema())
    pipeline = beam.Pipeline(options=PipelineOptions([*dataflow.beam_args, "--dry_run=True"]))
    transform.analyze(pipeline, ["gs://some-bucket/1.gz"], schema, preprocessing_fn, str(tmp_path / "graph"))
    graph = pipeline.run().job.proto_pipeline
    names = {one.unique_name for one in graph.components.transforms.values()}
    assert "Examples/Decode" in names
    assert any("WriteTransformFn" in name for name in names)
    assert any(b"europe-docker.pkg.dev/p/r/image:1" in one.payload for one in graph.components.environments.values())
