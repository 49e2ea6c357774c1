"""The graph's first step for every source of data."""

import gc
import io
import json
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tfx.components import FileBasedExampleGen
from tfx.dsl.component.experimental.annotations import OutputArtifact
from tfx.dsl.component.experimental.decorators import component
from tfx.extensions.google_cloud_big_query.example_gen.component import BigQueryExampleGen
from tfx.extensions.google_cloud_big_query.example_gen.executor import Executor as BigQueryExecutor
from tfx.orchestration.kubeflow.v2 import kubeflow_v2_dag_runner
from tfx.orchestration.metadata import sqlite_metadata_connection_config
from tfx.orchestration.pipeline import Pipeline
from tfx.types import standard_artifacts

from pipeline.cli.terminal import Screen
from pipeline.components.arrow_example_gen import job_of
from pipeline.components.example_gen import create_example_gen
from pipeline.data.location import query_of
from pipeline.errors import UserError
from pipeline.graph import create_pipeline
from pipeline.runs.run_graph import run_graph
from pipeline.settings.config import Data, HashSplit, PipelineConfig, TimeSplit, load_config
from pipeline.settings.gates import SliceGate
from pipeline.settings.target import Dataflow, Target

ROOT = Path(__file__).resolve().parent.parent
DATAFLOW = Dataflow("some-project", "europe-west4", "gs://some-bucket/temp", "europe-docker.pkg.dev/p/r/image:1")


@pytest.fixture
def config() -> PipelineConfig:
    return load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)


def pipeline_for(config: PipelineConfig, data: Data, tmp_path: Path, beam_args: tuple[str, ...] = ()) -> Pipeline:
    target = replace(Target.local(tmp_path / "output", "flights"), beam_args=beam_args)
    return create_pipeline(replace(config, data=data), target)


def test_a_bigquery_table_is_read_by_tfx_and_dealt_by_hash(config, tmp_path):
    data = Data("bigquery://bigquery-public-data.samples.natality", split_by=HashSplit("mother_id"))
    made = pipeline_for(config, data, tmp_path, DATAFLOW.beam_args)
    example_gen = made.components[0]
    assert isinstance(example_gen, BigQueryExampleGen)
    assert example_gen.id == "ExampleGen"
    assert example_gen.executor_spec.executor_class is BigQueryExecutor
    (split,) = json.loads(example_gen.exec_properties["input_config"])["splits"]
    assert split["pattern"] == "SELECT * FROM `bigquery-public-data.samples.natality`"
    split_config = json.loads(example_gen.exec_properties["output_config"])["split_config"]
    assert split_config["partition_feature_name"] == "mother_id"
    assert [(one["name"], one["hash_buckets"]) for one in split_config["splits"]] == [
        ("train", 8),
        ("eval", 1),
        ("test", 1),
    ]
    assert "--temp_location=gs://some-bucket/temp" in made.beam_pipeline_args


def test_a_query_file_is_read_without_its_semicolon(config, tmp_path):
    (tmp_path / "some.sql").write_text("SELECT a, late FROM `p.d.t`;\n")
    made = pipeline_for(config, Data(str(tmp_path / "some.sql")), tmp_path, DATAFLOW.beam_args)
    assert json.loads(made.components[0].exec_properties["input_config"])["splits"][0]["pattern"] == (
        "SELECT a, late FROM `p.d.t`"
    )


def test_bigquery_without_what_beam_needs_is_refused(config, tmp_path):
    with pytest.raises(UserError, match=r"beam_args need --project and --temp_location: a project to query in"):
        pipeline_for(config, Data("bigquery://p-1.d.t"), tmp_path, ("--runner=DirectRunner",))


def test_files_are_read_by_our_executor_with_the_types_of_the_schema(config, tmp_path):
    (tmp_path / "some.csv").write_text("late,distance,carrier,year_built\n1,2,x,1999\n")
    data = Data(str(tmp_path / "some.csv"), split_by=TimeSplit("year_built"), max_bad_rows=0.25)
    example_gen = pipeline_for(config, data, tmp_path).components[0]
    assert isinstance(example_gen, FileBasedExampleGen)
    job, span = job_of(example_gen.exec_properties, "examples")
    assert job.files == (("all", str(tmp_path / "some.csv")),)
    assert (job.output_splits, job.shares) == (("train", "eval", "test"), (8, 1, 1))
    assert (job.time_column, job.hash_column, job.max_bad_rows, span) == ("year_built", None, 0.25, 0)
    assert (job.types["distance"], job.types["carrier"], job.types["year_built"]) == ("integers", "text", "floats")


def test_parquet_files_are_read_with_no_more_of_the_schema_than_which_columns_are_integers(
    config, few_flights, tmp_path
):
    data = replace(config.data, path=str(few_flights))
    job, _ = job_of(pipeline_for(config, data, tmp_path).components[0].exec_properties, "examples")
    assert set(job.types.values()) == {"integers"}
    assert "distance" in job.types
    assert job.shares == ()
    assert job.output_splits == ("train", "eval", "test")


def only_example_gen(config, data, target):
    return Pipeline(
        pipeline_name="flights",
        pipeline_root=target.pipeline_root,
        components=[create_example_gen(replace(config, data=data), target)],
        metadata_connection_config=sqlite_metadata_connection_config(target.metadata),
        beam_pipeline_args=list(target.beam_args),
    )


# TFX calls what protobuf deprecates, in a way that names our line.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_allowed_bad_rows_are_counted_on_the_line_of_the_step(config, tmp_path):
    (tmp_path / "some.csv").write_text(
        "late,distance\n" + "1,2,3\n" + "0,5\n" * 50 + "".join(f"1,{i}\n" for i in range(99))
    )
    data = Data(str(tmp_path / "some.csv"), max_bad_rows=0.01)
    pipeline = only_example_gen(config, data, Target.local(tmp_path, "flights"))
    console = Console(file=io.StringIO(), width=400)
    screen = Screen(console, tmp_path / "log")
    steps = run_graph(pipeline, "run", screen.step_starts, screen.step_ends)
    uri = steps["ExampleGen"].outputs["examples"][0].uri
    assert f"1 bad rows left out, kept in {uri}/bad_rows" in console.file.getvalue()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_python_collects_garbage_while_steps_run(config, tmp_path):
    (tmp_path / "some.csv").write_text("late,distance\n" + "".join(f"1,{i}\n" for i in range(99)))
    pipeline = only_example_gen(config, Data(str(tmp_path / "some.csv")), Target.local(tmp_path, "flights"))
    collecting = []
    gc.disable()  # as local_runner.py does
    run_graph(pipeline, "run", lambda name: collecting.append(gc.isenabled()), lambda step: None)
    assert collecting == [True]


class Hoard:
    """Memory that only the garbage collector frees."""

    made: weakref.ref | None = None

    def __init__(self) -> None:
        self.myself, self.values = self, bytearray(b"x" * (64 << 20))
        Hoard.made = weakref.ref(self)


@component
def Search(model: OutputArtifact[standard_artifacts.Model]):
    """Load much, as a search does."""
    Hoard()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_a_step_has_loaded_is_not_in_memory_beside_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.runs.run_graph.GC_THRESHOLD_BYTES", 32 << 20)
    pipeline = Pipeline(
        pipeline_name="search",
        pipeline_root=str(tmp_path),
        components=[Search()],
        metadata_connection_config=sqlite_metadata_connection_config(str(tmp_path / "metadata.sqlite")),
    )
    run_graph(pipeline, "run", lambda name: None, lambda step: None)
    assert Hoard.made is not None
    assert Hoard.made() is None


def test_the_gates_stand_before_transform_and_before_the_pusher(config, few_flights, tmp_path):
    made = pipeline_for(config, replace(config.data, path=str(few_flights)), tmp_path)
    nodes = {node.id: node for node in made.components}
    assert "DataGate" in {node.id for node in nodes["Transform"].upstream_nodes}
    assert {"Evaluator", "ModelCheck"} <= {node.id for node in nodes["Pusher"].upstream_nodes}
    assert set(nodes["Pusher"].inputs) == {"model", "model_blessing", "infra_blessing"}


def test_transform_learns_from_the_train_split_alone(config, few_flights, tmp_path):
    made = pipeline_for(config, replace(config.data, path=str(few_flights)), tmp_path)
    (transform,) = (node for node in made.components if node.id == "Transform")
    assert json.loads(transform.exec_properties["splits_config"])["analyze"] == ["train"]


def test_the_gates_are_in_the_job_that_vertex_ai_runs(config, few_flights, tmp_path):
    # What finds the last blessed model on Vertex AI is another thing.
    config = replace(config, evaluation=replace(config.evaluation, baseline="none"))
    made = pipeline_for(config, replace(config.data, path=str(few_flights)), tmp_path)
    runner_config = kubeflow_v2_dag_runner.KubeflowV2DagRunnerConfig(default_image="some/image:1")
    kubeflow_v2_dag_runner.KubeflowV2DagRunner(runner_config, str(tmp_path), "job.json").run(made)
    job = json.loads((tmp_path / "job.json").read_text())["pipelineSpec"]
    tasks = job["root"]["dag"]["tasks"]
    assert "DataGate" in tasks["Transform"]["dependentTasks"]
    blessings = {
        name: one["taskOutputArtifact"]["producerTask"] for name, one in tasks["Pusher"]["inputs"]["artifacts"].items()
    }
    assert blessings == {"model": "Trainer", "model_blessing": "Evaluator", "infra_blessing": "ModelCheck"}
    arguments = job["deploymentSpec"]["executors"]["DataGate_executor"]["container"]["args"]
    assert "pipeline.components.data_gate.DataGateExecutor" in arguments


@pytest.mark.parametrize(
    ("baseline", "step"), [("none", None), ("last blessed", "LatestBlessedModel"), ("some/model", "BaselineModel")]
)
def test_what_a_model_is_compared_with_is_a_setting(config, few_flights, tmp_path, baseline, step):
    config = replace(config, evaluation=replace(config.evaluation, baseline=baseline))
    made = pipeline_for(config, replace(config.data, path=str(few_flights)), tmp_path)
    nodes = {node.id: node for node in made.components}
    assert {"LatestBlessedModel", "BaselineModel"} & set(nodes) == ({step} if step else set())
    assert (step in {node.id for node in nodes["Evaluator"].upstream_nodes}) == bool(step)


def test_steps_of_the_config_reach_stock_modules_and_nothing_else(config, few_flights, tmp_path):
    config = replace(config, data=replace(config.data, path=str(few_flights)))
    steps = replace(config, training=replace(config.training, train_steps=7, eval_steps=2))
    made, with_steps = (
        {node.id: node.exec_properties for node in pipeline_for(one, one.data, tmp_path).components}
        for one in (config, steps)
    )
    for step in ("Trainer", "Tuner"):
        assert (json.loads(with_steps[step]["train_args"]), json.loads(made[step]["train_args"])) == (
            {"num_steps": 7},
            {},
        )
        assert json.loads(with_steps[step]["eval_args"]) == {"num_steps": 2}
        # What pipeline.training reads, and what decides where its checkpoints are.
        assert with_steps[step]["custom_config"] == made[step]["custom_config"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "value"),
    [("members", "network"), ("calibration", "isotonic"), ("explain_rows", 8), ("warm_start", True)],
)
def test_what_a_search_does_not_depend_on_makes_the_trainer_run_again_only(
    config, few_flights, tmp_path, setting, value
):
    config = replace(config, data=replace(config.data, path=str(few_flights)))
    changed = replace(config, training=replace(config.training, **{setting: value}))
    made, other = (
        {node.id: node.exec_properties for node in pipeline_for(one, one.data, tmp_path).components}
        for one in (config, changed)
    )
    assert other["Tuner"]["custom_config"] == made["Tuner"]["custom_config"]
    assert other["Trainer"]["custom_config"] != made["Trainer"]["custom_config"]


def test_columns_that_are_left_out_are_in_no_query_and_not_in_the_schema_of_the_steps(config, few_flights, tmp_path):
    data = replace(config.data, path=str(few_flights), leave_out=("visib",))
    made = {node.id: node for node in pipeline_for(replace(config, data=data), data, tmp_path).components}
    assert json.loads(made["ExampleGen"].exec_properties["settings"])["leave_out"] == ["visib"]
    (schema,) = tmp_path.rglob("_schemas/*/schema.pbtxt")
    assert 'name: "temp"' in schema.read_text()
    assert 'name: "visib"' not in schema.read_text()
    table = Data("bigquery://p.d.t", leave_out=("a", "b c"))
    assert query_of(table) == "SELECT * EXCEPT (`a`, `b c`) FROM `p.d.t`"
    (tmp_path / "some.sql").write_text("SELECT 1 AS a, 2 AS b -- both;\n")
    query = query_of(Data(str(tmp_path / "some.sql"), leave_out=("a",)))
    assert query == "SELECT * EXCEPT (`a`) FROM (\nSELECT 1 AS a, 2 AS b -- both\n)"


@pytest.mark.parametrize(
    ("evaluation", "sentence"),
    [
        ({"slices": ("carier",)}, r"has no feature 'carier', by which the evaluation slices; did you mean 'carrier'\?"),
        ({"gates": (SliceGate("auc", by="x=1", floor=0.6),)}, "no feature 'x', .*; there are carrier, day, dest"),
    ],
)
def test_a_column_to_slice_by_that_is_not_there_is_refused_before_anything_runs(
    config, few_flights, tmp_path, evaluation, sentence
):
    changed = replace(config, evaluation=replace(config.evaluation, **evaluation))
    with pytest.raises(UserError, match=sentence):
        pipeline_for(changed, replace(config.data, path=str(few_flights)), tmp_path)


def test_a_reviewed_schema_has_the_weight_and_asks_no_request_for_it(config, few_flights, tmp_path):
    data = replace(config.data, path=str(few_flights))
    label = replace(config.label, weight="visib")
    with pytest.raises(
        UserError, match="asks requests for 'visib', the weight, which none has; add not_in_environment"
    ):
        pipeline_for(replace(config, label=label), data, tmp_path)
    with pytest.raises(UserError, match="has no feature 'exposure', the weight; add it or name another weight"):
        pipeline_for(replace(config, label=replace(label, weight="exposure")), data, tmp_path)
    schema = tmp_path / "schema.pbtxt"
    text = Path(config.schema).read_text()
    schema.write_text(text.replace('name: "visib"', 'name: "visib" not_in_environment: "SERVING"'))
    made = pipeline_for(replace(config, label=label, schema=str(schema)), data, tmp_path)
    settings = {component.id: json.dumps(dict(component.exec_properties), default=str) for component in made.components}
    told = {name for name, text in settings.items() if "visib" in text}
    assert told == {
        "ExampleGen",
        "SchemaGen",
        "ExampleValidator",
        "Baselines",
        "Transform",
        "Tuner",
        "Trainer",
        "Evaluator",
    }


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_the_search_knows_the_classes_where_it_balances_them(config, few_flights, tmp_path, class_weight):
    balanced = replace(config, training=replace(config.training, class_weight=class_weight))
    made = pipeline_for(balanced, replace(config.data, path=str(few_flights)), tmp_path)
    settings = {
        component.id: json.loads(component.exec_properties["custom_config"])
        for component in made.components
        if component.id in ("Tuner", "Trainer")
    }
    assert [settings[step]["class_weight"] for step in ("Tuner", "Trainer")] == [class_weight] * 2
    assert settings["Tuner"]["classes"] == (list(config.label.classes) if class_weight else [])
