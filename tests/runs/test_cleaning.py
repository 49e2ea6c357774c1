"""What is kept when old runs are cleaned up, in a metadata store as three runs leave it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as mlmd
from ml_metadata.proto.metadata_store_pb2 import Artifact, Event, Execution

from pipeline.runs.cleaning import plan
from pipeline.runs.record import RUN_CONTEXT


class Runs:
    """Writes runs whose steps each write a folder with a file."""

    def __init__(self, output: Path):
        self.output = output
        config = mlmd.ConnectionConfig()
        config.sqlite.filename_uri = str(output / "metadata.sqlite")
        self.store = MetadataStore(config)
        self.run_type = self.store.put_context_type(mlmd.ContextType(name=RUN_CONTEXT))
        node_type = self.store.put_context_type(mlmd.ContextType(name="node"))
        names = ("ExampleGen", "Trainer", "Evaluator", "Pusher")
        nodes = [mlmd.Context(type_id=node_type, name=f"few.{name}") for name in names]
        self.nodes = dict(zip(names, self.store.put_contexts(nodes), strict=True))

    def run(self, name: str) -> None:
        """Adds a run that trains, judges and pushes a model."""
        (self.context,) = self.store.put_contexts([mlmd.Context(type_id=self.run_type, name=name)])
        examples = self.step("ExampleGen", [], "Examples")
        model = self.step("Trainer", [examples], "Model")
        blessing = self.step("Evaluator", [examples, model], "ModelBlessing", blessed=1)
        version = self.output / "serving" / name
        version.mkdir(parents=True)
        self.step("Pusher", [model, blessing], "PushedModel", pushed_destination=str(version))

    def step(self, node: str, inputs: Sequence[int], kind: str, **properties: int | str) -> int:
        """Adds an execution with one output, and returns that."""
        artifact_type = self.store.put_artifact_type(mlmd.ArtifactType(name=kind))
        execution_type = self.store.put_execution_type(mlmd.ExecutionType(name=node))
        (execution,) = self.store.put_executions(
            [Execution(type_id=execution_type, last_known_state=Execution.COMPLETE)]
        )
        folder = self.output / "artifacts" / node / kind / str(execution)
        folder.mkdir(parents=True)
        (folder / "file").write_text("content")
        artifact = Artifact(type_id=artifact_type, uri=str(folder), state=Artifact.LIVE)
        for name, value in properties.items():
            setattr(artifact.custom_properties[name], "int_value" if isinstance(value, int) else "string_value", value)
        (output,) = self.store.put_artifacts([artifact])
        events = [Event(execution_id=execution, artifact_id=given, type=Event.INPUT) for given in inputs]
        made = Event(execution_id=execution, artifact_id=output, type=Event.OUTPUT)
        made.path.steps.add(key=kind)
        self.store.put_events([*events, made])
        contexts = (self.context, self.nodes[node])
        associations = [mlmd.Association(execution_id=execution, context_id=context) for context in contexts]
        self.store.put_attributions_and_associations([], associations)
        return int(output)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    found = Runs(tmp_path)
    for name in ("first", "second", "third"):
        found.run(name)
    return found


def kinds(runs: Runs) -> dict[str, int]:
    return {kind: len(folders) for kind, folders in plan(runs.store, runs.output, keep=1).folders.items()}


def test_of_older_pushed_models_that_are_there_only_the_data_go(runs):
    assert kinds(runs) == {"ExampleGen/Examples": 2}


def test_of_one_that_was_deleted_all_goes_but_the_pushed_ones_keep_theirs(runs):
    (runs.output / "serving/first").rmdir()
    assert kinds(runs) == {
        "ExampleGen/Examples": 2,
        "Trainer/Model": 1,
        "Evaluator/ModelBlessing": 1,
        "Pusher/PushedModel": 1,
    }
