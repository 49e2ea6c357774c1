"""Parts of the spec that a rehearsal reads: order, queries of resolvers, the cache, reasons of failures."""

import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from pipeline.runs.step import Step, StepFailed
from pipeline.vertex.rehearsal import task_runner
from pipeline.vertex.rehearsal.local_containers import failure_message
from pipeline.vertex.rehearsal.local_metadata import LocalMetadata

# A container that says of its model whether it is blessed, and what it found around it.
TASK = """
import json, os, sys
given = json.loads(sys.argv[1])
try:
    import models
except ModuleNotFoundError:
    pass
else:
    sys.exit("models is on the path")
import pipeline
shell = os.environ.get("OF_THIS_SHELL", "")
found = {"blessed": 0.0, "folder": str(os.listdir()), "shell": shell, "inputs": len(given["inputs"]["artifacts"])}
(model,) = given["outputs"]["artifacts"]["model"]["artifacts"]
os.makedirs(model["uri"])
with open(given["outputs"]["outputFile"], "w") as file:
    json.dump({"artifacts": {"model": {"artifacts": [{**model, "metadata": found}]}}}, file)
"""
SCHEMA = {"artifactType": {"instanceSchema": "title: tfx.Model\ntype: object\n"}}


def job_of(tasks: dict[str, dict[str, Any]], folder: Path, code: str = TASK) -> dict[str, Any]:
    """A PipelineJob whose tasks all run ``code`` and have one output, a model."""
    component = {"executorLabel": "executor", "outputDefinitions": {"artifacts": {"model": SCHEMA}}}
    container = {"image": "some/image:1", "command": ["python", "-c", code], "args": ["{{$}}"]}
    return {
        "pipelineSpec": {
            "pipelineInfo": {"name": "some"},
            "root": {
                "dag": {
                    "tasks": {
                        name: {"componentRef": {"name": "some"}, "cachingOptions": {"enableCache": True}, **task}
                        for name, task in tasks.items()
                    }
                }
            },
            "components": {"some": component},
            "deploymentSpec": {"executors": {"executor": {"container": container}}},
        },
        "runtimeConfig": {"gcsOutputDirectory": str(folder / "artifacts")},
    }


def after(task: str) -> dict[str, Any]:
    source = {"taskOutputArtifact": {"producerTask": task, "outputArtifactKey": "model"}}
    return {"inputs": {"artifacts": {"model": source}}}


def rehearse(job: dict[str, Any], run_id: str, folder: Path) -> dict[str, Step]:
    return task_runner.run(job, run_id, folder, folder / "module.py", lambda name: None, lambda step: None)


# TFX calls what protobuf deprecates, in a way that names our line.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tasks_run_in_the_specs_order_and_once_only(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THIS_SHELL", "x")
    tasks = {"Last": {"dependentTasks": ["Second"]}, "Second": after("First"), "First": {}}
    job = job_of(tasks, tmp_path)
    steps = rehearse(job, "1", tmp_path)
    assert list(steps) == ["First", "Second", "Last"]
    # The last has the container and the inputs of the first.
    assert [step.state for step in steps.values()] == ["ran", "ran", "cached"]
    (model,) = steps["Second"].outputs["model"]
    assert model.get_string_custom_property("folder") == "[]"
    assert model.get_string_custom_property("shell") == ""
    assert model.get_int_custom_property("inputs") == 1
    assert {step.state for step in rehearse(job, "2", tmp_path).values()} == {"cached"}
    edited = rehearse(job_of(tasks, tmp_path, f"{TASK}\n"), "3", tmp_path)
    assert edited["First"].state == "ran"


def test_a_task_with_a_condition_cannot_be_rehearsed(tmp_path):
    job = job_of({"First": {"triggerPolicy": {"condition": "1.0 < 2.0"}}}, tmp_path)
    with pytest.raises(StepFailed) as failed:
        rehearse(job, "1", tmp_path)
    assert "the task First runs under a condition, which cannot be rehearsed" in str(failed.value.__cause__)


def test_a_task_that_fails_ends_the_rehearsal(tmp_path):
    job = job_of({"First": {}, "Second": after("First")}, tmp_path, "raise ValueError('no such column')")
    with pytest.raises(StepFailed, match="First") as failed:
        rehearse(job, "1", tmp_path)
    assert str(failed.value.__cause__).startswith("ValueError: no such column\n")


def with_resolver(tmp_path: Path, **definition: Any) -> dict[str, Any]:
    """A job whose task Second has an input that a resolver looks for and does not find."""
    job = job_of({"First": {"componentRef": {"name": "lookup"}}, "Second": after("First")}, tmp_path)
    spec = job["pipelineSpec"]
    query = {"model": {"filter": 'schema_title="tfx.Model" AND state=LIVE'}}
    spec["deploymentSpec"]["executors"]["lookup"] = {"resolver": {"outputArtifactQueries": query}}
    spec["components"]["lookup"] = {"executorLabel": "lookup", "outputDefinitions": {"artifacts": {"model": SCHEMA}}}
    spec["components"]["some"]["inputDefinitions"] = {"artifacts": {"model": {**SCHEMA, **definition}}}
    return job


def test_an_input_that_is_not_found_fails_its_task_unless_the_spec_calls_it_optional(tmp_path):
    with pytest.raises(StepFailed, match="Second") as failed:
        rehearse(with_resolver(tmp_path), "1", tmp_path)
    assert "the input model was not found, and the spec does not mark it isOptional" in str(failed.value.__cause__)
    steps = rehearse(with_resolver(tmp_path, isOptional=True), "2", tmp_path)
    assert steps["Second"].state == "ran"


def test_a_container_with_what_only_vertex_ai_fills_in_is_refused(tmp_path):
    job = job_of({"First": {}}, tmp_path, "print({{$.inputs.parameters['x']}})")
    with pytest.raises(StepFailed) as failed:
        rehearse(job, "1", tmp_path)
    assert "only tasks with this pipeline's image can be rehearsed" in str(failed.value.__cause__)


def artifact(metadata: LocalMetadata, folder: Path, title: str, **more: Any) -> dict[str, Any]:
    return metadata.new(folder, f"title: {title}\n", more)


def test_queries_find_the_newest_artifact_also_in_another_process(tmp_path):
    metadata = LocalMetadata(tmp_path / "metadata.json")
    models = [artifact(metadata, tmp_path, "tfx.Model") for _ in range(2)]
    blessings = [
        artifact(metadata, tmp_path, "tfx.ModelBlessing", blessed=float(index), current_model_id=model["name"])
        for index, model in enumerate(models)
    ]
    for several in (models, blessings):
        for one in several:
            metadata.add({"output": [one]}, cache_key=one["name"])
    again = LocalMetadata(tmp_path / "metadata.json")
    query = 'schema_title="tfx.ModelBlessing" AND state=LIVE AND metadata.blessed.number_value=1'
    found = again.latest(query)
    assert found is not None
    assert found["metadata"]["current_model_id"] == models[1]["name"]
    named = again.latest(f'schema_title="tfx.Model" AND name="{models[0]["name"]}"')
    assert named is not None
    assert named["name"] == models[0]["name"]
    assert again.latest('schema_title="tfx.Schema" AND state=LIVE') is None
    assert again.new("x")["name"] not in {one["name"] for one in (*models, *blessings)}
    with pytest.raises(UserError, match=r"cannot answer the condition 'create_time>3'"):
        again.latest("create_time>3")


def test_what_was_deleted_is_not_taken_from_the_cache(tmp_path):
    metadata = LocalMetadata(tmp_path / "metadata.json")
    folder = tmp_path / "model"
    folder.mkdir()
    metadata.add({"model": [artifact(metadata, folder, "tfx.Model")]}, "key")
    assert metadata.cached("key")
    folder.rmdir()
    assert metadata.cached("key") is None


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (
            'Traceback\n  File "/tmp/x/flights.py", line 7, in run_fn\n    import models.other\n'
            "ModuleNotFoundError: No module named 'models'\n",
            1,
            r"No module named 'models'\n  at .*flights.py, line 7, in run_fn: import models.other\n"
            r"  models/ is in this repository but not in the image of the tasks",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file: 'words.txt'\n",
            1,
            r"words.txt'\n  a task runs on a machine of its",
        ),
        ("pipeline.errors.UserError: the file x has no header\n", 1, r"^the file x has no header\n"),
        ("working\n", -9, r"^ended by SIGKILL, which is how a machine without memory left ends it\n"),
        ("working\n", 3, r"^ended with exit code 3\n"),
    ],
)
def test_why_a_task_failed_is_read_from_its_log(tmp_path, text, code, message):
    log = tmp_path / "Trainer.log"
    log.write_text(text)
    module = Path(__file__).resolve().parents[3] / "models/flights.py"
    assert re.search(message, failure_message(log, code, module))
