"""The data steps with Beam's own job server and workers in other processes, as Flink, Spark and Dataflow run them."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tfx import types
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.types import standard_artifacts

from pipeline.components import statistics_gen
from pipeline.errors import UserError
from pipeline.fast.evaluator import FastEvaluatorExecutor
from pipeline.graph import create_pipeline
from pipeline.runs import engine
from pipeline.runs.run_graph import run_graph
from pipeline.runs.step import Step
from pipeline.settings import checks
from pipeline.settings.config import PipelineConfig, load_config
from pipeline.settings.target import Target

ROOT = Path(__file__).resolve().parent.parent
STEPS = ("ExampleGen", "StatisticsGen", "SchemaGen", "ExampleValidator", "Transform")
# A module next to a copy of the flights' module file: workers have only the code that the job brings.
IN_WORKERS = """\
import apache_beam as beam


def largest(batch):
    (values,) = batch
    return values.max()


class Largest(beam.PTransform):
    def expand(self, batches):
        return batches | beam.Map(largest) | beam.CombineGlobally(max)
"""
MORE = """

import in_workers

_plain = preprocessing_fn


def preprocessing_fn(inputs, custom_config):
    distance = number(inputs["distance"])
    longest = tft.experimental.ptransform_analyzer([distance], in_workers.Largest(), [tf.float32], [[]])[0]
    return {**_plain(inputs, custom_config), "of_longest": distance / longest}
"""

# Sends nothing by the clock: see test_beam_loses_what_is_written_during_a_flush_by_the_clock.
JOB_SERVER = """\
import sys
from apache_beam.runners.portability import local_job_service_main
from apache_beam.runners.portability.fn_api_runner import worker_handlers

worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
local_job_service_main.run(sys.argv[1:])
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the pool keeps a folder per worker."""
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def options(workers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start a job server and a pool of workers; yield their options."""
    logs = tmp_path_factory.mktemp("engine")
    server, pool = free_port(), free_port()
    commands = {
        "server": ["-c", JOB_SERVER, "-p", str(server)],
        "pool": ["-m", "tests.fakes.beam_workers", str(pool), str(workers)],
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with contextlib.ExitStack() as stack:
        for name, command in commands.items():
            log = stack.enter_context((logs / name).open("w"))
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT if name == "pool" else logs,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        for port in (server, pool):
            with grpc.insecure_channel(f"localhost:{port}") as channel:
                grpc.channel_ready_future(channel).result(timeout=600)
        yield {
            "job_endpoint": f"localhost:{server}",
            "environment_type": "EXTERNAL",
            "environment_config": f"localhost:{pool}",
        }


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def config(few_flights: Path, tmp_path_factory: pytest.TempPathFactory) -> PipelineConfig:
    folder = tmp_path_factory.mktemp("models")
    (folder / "flights.py").write_text((ROOT / "models/flights.py").read_text() + MORE)
    (folder / "in_workers.py").write_text(IN_WORKERS)
    config = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    data = replace(config.data, path=str(few_flights), prepare=None)
    return replace(config, data=data, module=str(folder / "flights.py"))


class Done(Exception):
    """The last data step has ended."""


def run_data_steps(config: PipelineConfig, target: Target) -> Path:
    """Run the default graph up to Transform; return the folder of the artifacts."""

    def on_end(step: Step) -> None:
        if step.name == "Transform":
            raise Done

    with contextlib.suppress(Done):
        run_graph(create_pipeline(config, target), "run", lambda name: None, on_end)
    return Path(target.pipeline_root)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def computed(saved_model: bytes) -> Counter:
    """Count the operations and constants of a SavedModel; names of functions contain counters of the process."""
    (graph,) = saved_model_pb2.SavedModel.FromString(saved_model).meta_graphs
    functions = [node for function in graph.graph_def.library.function for node in function.node_def]
    return Counter(
        (node.op, node.attr["value"].SerializeToString() if node.op == "Const" else b"")
        for node in [*graph.graph_def.node, *functions]
    )


# TFX calls a deprecated protobuf function; the warning points to our line.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_workers_elsewhere_write_what_this_process_writes(config, options, workers, tmp_path, monkeypatch):
    monkeypatch.setattr(statistics_gen, "SMALL_BYTES", 0)  # by Beam, as large splits are
    before = set(workers.iterdir())
    here, there = tmp_path / "here", tmp_path / "there"
    written = {}
    for output, target in (
        (here, Target.local(here, "flights")),
        (there, Target.beam(there, "flights", "PortableRunner", options)),
    ):
        artifacts = run_data_steps(config, target)
        written[output] = {
            f"{step}/{name}": content for step in STEPS for name, content in contents(artifacts / step).items()
        }
    assert written[here].keys() == written[there].keys()
    differing = {name for name in written[here] if written[here][name] != written[there][name]}
    (model,) = {name for name in differing if name.endswith("/saved_model.pb")}
    assert differing == {model, model.replace("saved_model", "fingerprint")}
    assert computed(written[here][model]) == computed(written[there][model])
    assert sum("transformed_examples/" in name for name in written[there]) == 2
    assert len(set(workers.iterdir()) - before) == 4  # one a job: ExampleGen, StatisticsGen, and Transform's two


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")
def test_a_model_is_judged_there_as_here(clone, first, options, tmp_path):
    assert first.code == 0, first.text
    artifacts = clone / "output/flights/artifacts"

    def found(kind: type[types.Artifact], pattern: str) -> list[types.Artifact]:
        artifact = kind()
        # Of the first run, whatever ran after it.
        artifact.uri = str(min(artifacts.glob(pattern), key=lambda path: int(path.name)))
        return [artifact]

    inputs = {
        "examples": found(standard_artifacts.Examples, "ExampleGen/examples/*"),
        "model": found(standard_artifacts.Model, "Trainer/model/*"),
        "schema": [standard_artifacts.Schema()],
        "baselines": found(standard_artifacts.ModelEvaluation, "Baselines/baselines/*"),
    }
    inputs["schema"][0].uri = str(ROOT / "schema/flights")
    inputs["examples"][0].split_names = '["train", "eval", "test"]'
    config = load_config(ROOT / "configs/flights.py")
    settings = {"gates": checks.to_json(config.evaluation), "label": checks.to_json(config.label)}
    for name, target in (
        ("here", Target.local(tmp_path, "flights")),
        ("there", Target.beam(tmp_path, "flights", "PortableRunner", options)),
    ):
        outputs = {"evaluation": standard_artifacts.ModelEvaluation(), "blessing": standard_artifacts.ModelBlessing()}
        for key, artifact in outputs.items():
            artifact.uri = str(tmp_path / name / key)
        context = BaseBeamExecutor.Context(beam_pipeline_args=list(target.beam_args))
        FastEvaluatorExecutor(context).Do(
            inputs, {key: [artifact] for key, artifact in outputs.items()}, {"settings": json.dumps(settings)}
        )
    here, there = contents(tmp_path / "here"), contents(tmp_path / "there")
    assert here.keys() == there.keys()
    differing = {name for name in here if here[name] != there[name]}
    # Slices come in the order of Python's hashes, which are others in every process.
    for name in [name for name in differing if name.endswith(".tfrecord")]:
        ours, theirs = (sorted(read_records(str(tmp_path / side / name))) for side in ("here", "there"))
        assert len(ours) > 10
        assert ours == theirs
        differing.remove(name)
    assert differing == set()


def read_records(file: str) -> list[bytes]:
    return [record.numpy() for record in tf.data.TFRecordDataset(file)]


def test_an_engine_with_this_library_that_sees_the_folder_is_taken(options, tmp_path):
    target = Target.beam(tmp_path, "flights", "PortableRunner", options)
    engine.check(target)
    assert list(Path(target.pipeline_root).iterdir()) == []


def test_a_folder_that_the_workers_do_not_see_is_refused(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("/proc/self/cwd/output")  # of each process another
    with pytest.raises(UserError, match=r"workers of PortableRunner do not see /proc/self/cwd/output/artifacts, where"):
        engine.check(Target.beam(folder, "flights", "PortableRunner", options))


def test_another_library_is_refused(options, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "library_fingerprint", lambda: "a later one")
    with pytest.raises(UserError, match=r"have the library \w{16}, this machine has a later one: results would be of"):
        engine.check(Target.beam(tmp_path, "flights", "PortableRunner", options))


def test_a_job_that_fails_is_told_by_the_last_line_of_its_error(options, tmp_path):
    unknown = {**options, "environment_type": "PROCESS", "environment_config": '{"command": "boot"}'}
    with pytest.raises(UserError, match=r"PortableRunner has not done a first small job: .*beam:env:process:v1"):
        engine.check(Target.beam(tmp_path, "flights", "PortableRunner", unknown))
