"""The compiled job: the same graph for every target, nothing of this machine in it, no credentials needed."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format

from pipeline.errors import UserError
from pipeline.graph import create_pipeline
from pipeline.settings.config import Data, PipelineConfig, load_config
from pipeline.settings.machines import Job, Machines, Resources
from pipeline.settings.target import Dataflow, Target, Vertex
from pipeline.vertex import ALL_NODES, node_of
from pipeline.vertex.pipelines.compile import compile
from pipeline.vertex.pipelines.submit import upload
from tests.fakes import checks
from tests.fakes.google_cloud import GoogleCloud

ROOT = Path(__file__).resolve().parents[3]
IMAGE = "us-central1-docker.pkg.dev/demo/pipelines/pipeline:1"
VERTEX = Vertex("demo", "us-central1", "demo-bucket", IMAGE)
DATAFLOW = Dataflow("demo", "us-central1", "gs://demo-bucket/temp", IMAGE)
TARGETS = {
    "local": lambda tmp: Target.local(tmp / "output", "flights"),
    "vertex": lambda tmp: Target.on_vertex(VERTEX, "flights", tmp / "upload"),
    "vertex with local roots": lambda tmp: replace(
        Target.local(tmp / "output", "flights"), vertex=VERTEX, metadata=None
    ),
    "vertex with Dataflow": lambda tmp: Target.on_vertex(
        replace(VERTEX, dataflow=DATAFLOW, caching=False), "flights", tmp / "upload"
    ),
    "vertex with jobs": lambda tmp: Target.on_vertex(
        replace(VERTEX, machines=Machines(training=Job(replicas=2), tuning=Job(replicas=2))), "flights", tmp / "upload"
    ),
}


def graph_of(spec: dict[str, Any]) -> dict[str, set[str]]:
    """Return what each node of a compiled pipeline waits for; the two tasks of a resolver are its one node."""
    graph: dict[str, set[str]] = {}
    for name, task in spec["components"][ALL_NODES]["dag"]["tasks"].items():
        inputs = task.get("inputs", {}).get("artifacts", {}).values()
        before = {*task.get("dependentTasks", []), *(key["taskOutputArtifact"]["producerTask"] for key in inputs)}
        graph.setdefault(node_of(name), set()).update({node_of(task) for task in before} - {node_of(name)})
    return graph


def compiled_for(config: PipelineConfig, target: Target, out: Path) -> dict:
    return json.loads(compile(config, target, out).read_text())


@pytest.fixture(scope="session")
def local_graph(config, tmp_path_factory) -> dict[str, set[str]]:
    target = Target.local(tmp_path_factory.mktemp("local"), "flights")
    return {node.id: {one.id for one in node.upstream_nodes} for node in create_pipeline(config, target).components}


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_every_target_builds_the_same_graph(name, config, local_graph, tmp_path):
    target = TARGETS[name](tmp_path)
    nodes = create_pipeline(config, target).components
    assert {node.id: {one.id for one in node.upstream_nodes} for node in nodes} == local_graph
    if target.vertex:
        spec = compiled_for(config, target, tmp_path / "out")["pipelineSpec"]
        assert graph_of(spec) == local_graph


def test_only_inputs_that_may_find_nothing_are_optional(config, tmp_path):
    config = replace(
        config, tuning=replace(config.tuning, mode="reuse"), training=replace(config.training, warm_start=True)
    )
    spec = compiled_for(config, TARGETS["vertex"](tmp_path), tmp_path / "out")["pipelineSpec"]
    optional = {
        f"{name}.{key}"
        for name, component in spec["components"].items()
        for key, definition in component.get("inputDefinitions", {}).get("artifacts", {}).items()
        if definition.get("isOptional")
    }
    resolvers = {"LatestBlessedModel-model-resolver.input", "ModelToStartFrom-model-resolver.input"}
    # Without an earlier search "reuse" must fail, and not train with the defaults in silence.
    assert optional == {"Evaluator.baseline_model", "Trainer.base_model"} | resolvers


def test_what_is_kept_of_spans_lies_in_the_bucket(config, tmp_path):
    data = replace(config.data, path="gs://rows", splits={}, files="span-{SPAN}/*.parquet", last_spans=3)
    spec = compiled_for(replace(config, data=data), TARGETS["vertex"](tmp_path), tmp_path / "out")["pipelineSpec"]
    kept = f"gs://{VERTEX.bucket}/flights/artifacts/_kept/flights"
    tasks = spec["components"]["tfx-dag"]["dag"]["tasks"]
    keep = {name for name, task in tasks.items() if kept in json.dumps(task)}
    assert keep == {"ExampleGen", "StatisticsGen", "ExampleValidator", "Transform"}


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"tuning": "reuse"}, {"tuning": "off"}, {"warm_start": True}, {"schema": None}])
def test_every_variant_of_the_config_compiles_to_the_local_graph(change, config, tmp_path):
    if "tuning" in change:
        config = replace(config, tuning=replace(config.tuning, mode=change["tuning"]))
    if "warm_start" in change:
        config = replace(config, training=replace(config.training, warm_start=True))
    if "schema" in change:
        config = replace(config, schema=None)
    nodes = create_pipeline(config, Target.local(tmp_path / "local", "flights")).components
    spec = compiled_for(config, TARGETS["vertex"](tmp_path), tmp_path / "out")["pipelineSpec"]
    assert graph_of(spec) == {node.id: {one.id for one in node.upstream_nodes} for node in nodes}


def test_the_compiled_job_passes_the_checks_of_vertex(compiled):
    written = json.loads((compiled / "pipeline_job.json").read_text())
    job = v1.PipelineJob()
    json_format.ParseDict(written["pipelineSpec"], v1.PipelineJob.pb(job).pipeline_spec)
    json_format.ParseDict(written["runtimeConfig"], v1.PipelineJob.pb(job).runtime_config)
    checks.check_pipeline_job(job)


@pytest.mark.parametrize("policy", ["fast", "slow"])
def test_the_failure_policy_is_in_the_job(policy, config, tmp_path):
    target = Target.on_vertex(replace(VERTEX, failure_policy=policy), "flights", tmp_path / "upload")
    runtime = compiled_for(config, target, tmp_path)["runtimeConfig"]
    assert runtime["failurePolicy"] == f"PIPELINE_FAILURE_POLICY_FAIL_{policy.upper()}"


def test_nothing_in_the_job_is_an_address_of_this_machine(compiled):
    text = (compiled / "pipeline_job.json").read_text()
    assert str(ROOT) not in text
    assert str(Path.home()) not in text
    assert "/tmp" not in text


def test_everything_the_job_reads_below_its_root_is_uploaded(compiled):
    uploads = json.loads((compiled / "uploads.json").read_text())
    text = (compiled / "pipeline_job.json").read_text()
    wheels = set(re.findall(r"gs://[^\"\\]+\.whl", text))
    assert len(wheels) == 3
    assert wheels <= set(uploads.values())
    (data,) = set(re.findall(r"gs://[^\"\\]+/_data/\w+", text))
    assert f"{data}/train/2013-01.parquet" in uploads.values()
    (schema,) = set(re.findall(r"gs://[^\"\\]+/_schemas/\w+", text))
    assert f"{schema}/schema.pbtxt" in uploads.values()


def test_the_same_content_compiles_to_the_same_bytes(config, compiled, tmp_path):
    again = compile(config, Target.on_vertex(VERTEX, "flights", tmp_path / "upload"), tmp_path / "again")
    assert again.read_bytes() == (compiled / "pipeline_job.json").read_bytes()


def test_every_task_gets_its_machine(config, tmp_path):
    machines = Machines(tasks={"ExampleGen": Resources(2, 8), "Trainer": Resources(8, 32, "NVIDIA_TESLA_T4", 1)})
    target = Target.on_vertex(replace(VERTEX, machines=machines), "flights", tmp_path / "upload")
    executors = compiled_for(config, target, tmp_path)["pipelineSpec"]["deploymentSpec"]["executors"]
    assert executors["ExampleGen_executor"]["container"]["resources"] == {"cpuLimit": 2.0, "memoryLimit": 8.0}
    trainer = executors["Trainer_executor"]["container"]["resources"]
    assert trainer["accelerator"] == {"type": "NVIDIA_TESLA_T4", "count": "1"}


def test_dataflow_is_the_engine_of_every_beam_step_and_of_no_other(config, tmp_path):
    executors = compiled_for(config, TARGETS["vertex with Dataflow"](tmp_path), tmp_path)["pipelineSpec"][
        "deploymentSpec"
    ]["executors"]
    for name in ("ExampleGen", "StatisticsGen", "Transform", "Evaluator"):
        arguments = executors[f"{name}_executor"]["container"]["args"]
        assert "--runner=DataflowRunner" in arguments, name
        assert f"--sdk_container_image={IMAGE}" in arguments, name


def test_bigquery_is_compiled_with_the_project_that_pays(config, tmp_path):
    config = replace(config, data=Data("bigquery://demo.flights.all"))
    executors = compiled_for(config, TARGETS["vertex"](tmp_path), tmp_path)["pipelineSpec"]["deploymentSpec"][
        "executors"
    ]
    container = executors["ExampleGen_executor"]["container"]
    assert "--project=demo" in container["args"]
    assert "--temp_location=gs://demo-bucket/flights/temp" in container["args"]
    driver = container["lifecycle"]["preCacheCheck"]
    assert driver["command"] == ["python", "-m", "pipeline.components.example_gen_driver"]
    assert "{{$}}" in driver["args"]


def test_caching_off_is_off_in_every_task(config, tmp_path):
    spec = compiled_for(config, TARGETS["vertex with Dataflow"](tmp_path), tmp_path)["pipelineSpec"]
    tasks = spec["components"][ALL_NODES]["dag"]["tasks"]
    assert not any(task.get("cachingOptions", {}).get("enableCache") for task in tasks.values())


@pytest.mark.slow
def test_compiling_for_a_bucket_needs_no_credentials_and_no_network(few_flights, tmp_path):
    process = subprocess.run(
        [
            sys.executable,
            "vertex_runner.py",
            *("compile", tmp_path / "out", "--data", "gs://demo-bucket/somewhere"),
            *("--project", "demo", "--region", "us-central1", "--bucket", "demo-bucket"),
            *("--config", _config_for(few_flights, tmp_path)),
        ],
        cwd=ROOT,
        # Whatever asks the network gets no answer.
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "HTTPS_PROXY": "http://localhost:9",
            "NO_GCE_CHECK": "false",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert (tmp_path / "out/pipeline_job.json").is_file()
    assert len(list((tmp_path / "out/upload/_wheels").glob("*.whl"))) == 3
    assert "gs://demo-bucket/somewhere" in (tmp_path / "out/pipeline_job.json").read_text()


def _config_for(few_flights: Path, folder: Path) -> Path:
    path = folder / "config.py"
    path.write_text(
        "import runpy\nfrom dataclasses import replace\n"
        f"CONFIG = runpy.run_path({str(ROOT / 'configs/flights.py')!r})['CONFIG']\n"
        f"CONFIG = replace(CONFIG, data=replace(CONFIG.data, path={str(few_flights)!r}, prepare=None))\n"
    )
    return path


@pytest.fixture
def digits(tmp_path: Path) -> PipelineConfig:
    """The digits by a table of paths, which names two of three images."""
    for name in ("0/a", "1/b", "1/unnamed"):
        file = tmp_path / f"mine/files/{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())
    (tmp_path / "mine/digits.csv").write_text("image,digit\nfiles/0/a.png,0\n./files/1/b.png,1\n")
    config = load_config(ROOT / "configs/digits.py").with_paths_from(ROOT)
    return replace(config, data=replace(config.data, path=str(tmp_path / "mine/digits.csv"), prepare=None))


def job_and_uploads(config: PipelineConfig, tmp_path: Path) -> tuple[str, dict[str, str]]:
    job = compile(config, Target.on_vertex(VERTEX, "digits", tmp_path / "upload"), tmp_path / "out").read_text()
    uploads = json.loads((tmp_path / "out/uploads.json").read_text())
    return job, {address: file for file, address in uploads.items() if "/_data/" in address}


@pytest.mark.slow
def test_the_images_that_a_table_names_are_uploaded_below_its_folder_and_no_others(digits, tmp_path):
    job, uploads = job_and_uploads(digits, tmp_path)
    (folder,) = set(re.findall(r"gs://[^\"\\]+/_data/\w+", job))
    assert uploads == {
        f"{folder}/{name}": str(tmp_path / "mine" / name) for name in ("digits.csv", "files/0/a.png", "files/1/b.png")
    }
    assert '\\"pattern\\": \\"digits.csv\\"' in job
    assert job_and_uploads(digits, tmp_path) == (job, uploads)
    (tmp_path / "mine/files/1/unnamed.png").write_bytes(b"other")
    assert job_and_uploads(digits, tmp_path) == (job, uploads)
    (tmp_path / "mine/files/1/b.png").write_bytes(b"other")
    assert job_and_uploads(digits, tmp_path)[1].keys().isdisjoint(uploads)


def test_the_images_of_a_table_reach_the_bucket_and_unchanged_ones_once(digits, tmp_path, cloud, there: GoogleCloud):
    _, uploads = job_and_uploads(digits, tmp_path)
    notes: list[str] = []
    upload(tmp_path / "out", cloud, notes.append)
    assert uploads.keys() <= there.files()
    assert len(notes) == 1
    image = next(address for address in uploads if address.endswith("a.png"))
    bucket, _, name = image.removeprefix("gs://").partition("/")
    assert cloud.storage().bucket(bucket).blob(name).download_as_bytes() == b"0/a"
    upload(tmp_path / "out", cloud, notes.append)
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../elsewhere.png", r"digits.csv, row 2: '../elsewhere.png' leads out of the folder of the table; expected"),
        ("files/none.png", r"digits.csv, row 2: there is no file .*/files/none.png; expected the path of an image"),
        ("", "digits.csv, row 2: no path of an image; expected"),
    ],
)
def test_an_image_that_cannot_be_uploaded_is_refused_unless_bad_rows_are_allowed(path, message, digits, tmp_path):
    (tmp_path / "elsewhere.png").write_bytes(b"elsewhere")
    (tmp_path / "mine/digits.csv").write_text(f"image,digit\nfiles/0/a.png,0\n{path},1\n")
    with pytest.raises(UserError, match=message):
        job_and_uploads(digits, tmp_path)
    allowed = replace(digits, data=replace(digits.data, max_bad_rows=0.5))
    uploads = job_and_uploads(allowed, tmp_path)[1]
    assert {Path(file).name for file in uploads.values()} == {"digits.csv", "a.png"}


def test_images_are_looked_at_by_a_driver_of_ours_and_tables_by_that_of_tfx(digits, compiled, tmp_path):
    def driver(job: str) -> list[str]:
        container = json.loads(job)["pipelineSpec"]["deploymentSpec"]["executors"]["ExampleGen_executor"]["container"]
        return container["lifecycle"]["preCacheCheck"]["command"]

    assert driver(job_and_uploads(digits, tmp_path)[0]) == ["python", "-m", "pipeline.components.example_gen_driver"]
    assert driver((compiled / "pipeline_job.json").read_text())[-1].startswith("tfx.")
