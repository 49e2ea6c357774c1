"""What is kept when old runs are cleaned up, in a metadata store as three runs leave it."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from ml_metadata.metadata_store import MetadataStore
from ml_metadata.proto import metadata_store_pb2 as mlmd
from ml_metadata.proto.metadata_store_pb2 import Artifact, Event, Execution

from pipeline.errors import UserError
from pipeline.runs.cleaning import Plan, carry_out, plan
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
        """Add a run that trains, evaluates and pushes a model."""
        (self.context,) = self.store.put_contexts([mlmd.Context(type_id=self.run_type, name=name)])
        examples = self.step("ExampleGen", [], "Examples")
        model = self.step("Trainer", [examples], "Model")
        blessing = self.step("Evaluator", [examples, model], "ModelBlessing", blessed=1)
        version = self.output / "serving" / name
        version.mkdir(parents=True)
        self.step("Pusher", [model, blessing], "PushedModel", pushed_destination=str(version))

    def step(self, node: str, inputs: Sequence[int], kind: str, **properties: int | str) -> int:
        """Add an execution with one output; return the output."""
        artifact_type = self.store.put_artifact_type(mlmd.ArtifactType(name=kind))
        execution_type = self.store.put_execution_type(mlmd.ExecutionType(name=node))
        (execution,) = self.store.put_executions(
            [Execution(type_id=execution_type, last_known_state=Execution.COMPLETE)]
        )
        folder = self.output / "artifacts" / node / kind / str(execution)
        write(folder)
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


def write(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "file").write_text("content")
    return folder


def clean(runs: Runs) -> Plan:
    planned = plan(runs.store, runs.output, keep=1)
    carry_out(runs.store, planned)
    return planned


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


def test_an_older_model_that_was_not_pushed_goes_with_its_run(tmp_path):
    runs = Runs(tmp_path)
    runs.run("first")
    runs.step("Pusher", [], "PushedModel")  # without a destination
    runs.run("second")
    assert clean(runs).by_kind["Pusher/PushedModel"][0] == 1


ADDRESSES = {
    "dots": "artifacts/../precious/own",
    "dots in a step's": "artifacts/Trainer/Model/../../../precious/own",
    "beside": "precious/own",
    "elsewhere": "../precious",
}


@pytest.mark.slow
@pytest.mark.parametrize("address", ADDRESSES.values(), ids=list(ADDRESSES))
def test_an_artifact_whose_address_leads_elsewhere_deletes_nothing_there(runs: Runs, tmp_path, address):
    precious = [write(tmp_path / "precious/own"), write(tmp_path.parent / "precious")]
    try:
        artifact = runs.store.get_artifacts_by_type("Examples")[0]
        artifact.uri = f"{runs.output}/{address}"
        runs.store.put_artifacts([artifact])
        planned = clean(runs)
        assert all((folder / "file").exists() for folder in precious)
        assert not any(path.parts[-1] in ("own", "precious") for paths in planned.folders.values() for path in paths)
    finally:
        shutil.rmtree(precious[1])


@pytest.mark.slow
@pytest.mark.parametrize("above", range(4))
def test_no_link_is_followed_wherever_on_the_way_it_is(runs: Runs, tmp_path, above):
    (oldest,) = [Path(artifact.uri) for artifact in runs.store.get_artifacts_by_type("Examples")][:1]
    place = [oldest, *oldest.parents][above]
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    planned = clean(runs)
    assert oldest in planned.left_alone
    assert not planned.left_alone[oldest].is_relative_to(tmp_path)
    assert (oldest / "file").exists()
    assert [artifact.state for artifact in runs.store.get_artifacts() if artifact.uri == str(oldest)] == [Artifact.LIVE]


def test_a_link_that_leads_to_itself_is_left_alone_and_the_rest_is_cleaned(runs: Runs):
    (oldest,) = [Path(artifact.uri) for artifact in runs.store.get_artifacts_by_type("Examples")][:1]
    shutil.rmtree(oldest)
    oldest.symlink_to(oldest)
    of_no_run = oldest.with_name("99")
    of_no_run.symlink_to(of_no_run)
    planned = clean(runs)
    assert {oldest, of_no_run} <= planned.left_alone.keys()
    assert oldest.is_symlink()
    assert of_no_run.is_symlink()
    assert planned.folders


def test_a_link_to_what_is_still_needed_does_not_cost_it(runs: Runs):
    oldest, *_, newest = [Path(artifact.uri) for artifact in runs.store.get_artifacts_by_type("Examples")]
    shutil.rmtree(oldest)
    oldest.symlink_to(newest)
    clean(runs)
    assert (newest / "file").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["..", "../artifacts", ".", "first/../../serving", "/tmp"])
def test_the_name_of_a_run_leads_nowhere(tmp_path, name):
    runs = Runs(tmp_path)
    for number, run in enumerate((name, "second", "third")):
        runs.run(run if number else "first")
        if not number:
            (context,) = runs.store.get_contexts_by_type(RUN_CONTEXT)
            context.name = name
            runs.store.put_contexts([context])
    for kept in ("runs/third", "logs"):
        write(tmp_path / kept)
    assert not {"reports", "logs"} & set(clean(runs).folders)
    assert (tmp_path / "runs/third/file").exists()
    assert (tmp_path / "serving/third").exists()


def test_an_output_folder_that_is_reached_by_a_link_is_cleaned(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "output").symlink_to(tmp_path / "disk")
    runs = Runs(tmp_path / "output")
    for name in ("first", "second"):
        runs.run(name)
    assert clean(runs).folders == {"ExampleGen/Examples": [tmp_path / "disk/artifacts/ExampleGen/Examples/1"]}


def test_what_killed_steps_have_left_goes_and_checkpoints_that_may_be_gone_on_from_stay(runs: Runs):
    artifacts = runs.output / "artifacts"
    killed = write(artifacts / "Trainer/Model/99")
    working = write(artifacts / "Trainer/.system/executor_execution/99")
    old, new = (write(artifacts / f"Trainer/checkpoints/{name}") for name in ("0f", "1f"))
    os.utime(old, (1, 1))
    others = [write(artifacts / "_wheels/0/1"), write(artifacts / "Trainer/Model/notes")]
    (artifacts / "Trainer/.system/executor_execution/1/.temp").mkdir(parents=True)
    planned = clean(runs)
    assert sorted(planned.folders["of no run"]) == [working, killed]
    assert planned.folders["checkpoints"] == [old]
    assert not any(path.exists() for path in (killed, working, old))
    assert all((path / "file").exists() for path in (new, *others))
    assert all((Path(run.uri) / "file").exists() for run in runs.store.get_artifacts_by_type("Model"))


def test_a_linked_trash_is_refused_before_anything_moves(runs: Runs, tmp_path):
    elsewhere = write(tmp_path / "elsewhere")
    (runs.output / "trash").symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"trash is not a folder of this pipeline"):
        clean(runs)
    assert (elsewhere / "file").exists()
    assert kinds(runs) == {"ExampleGen/Examples": 2}
