"""Faults between and within runs: files of a step that are lost, added, changed or of another run.

A pipeline of two steps of TFX, run by the real launcher with a real metadata store.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tfx import v1 as tfx
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact
from tfx.dsl.component.experimental.decorators import component
from tfx.orchestration import metadata, pipeline
from tfx.types import standard_artifacts

from pipeline.errors import UserError
from pipeline.runs.run_graph import run_graph
from pipeline.runs.step import Step, StepFailed

ROWS = {"a": "1 2 3", "b": "4 5"}
SPOILT = "1 ? 3"  # of as many bytes as the rows of a

# TFX calls what protobuf deprecates, in a way that names our line.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@component
def WriteRows(examples: OutputArtifact[standard_artifacts.Examples], of: tfx.dsl.components.Parameter[str]):
    """Write a file for each letter."""
    for letter in of:
        path = Path(examples.uri) / "Split-train" / letter
        path.parent.mkdir(exist_ok=True)
        path.write_text(ROWS[letter])


@component
def CountRows(
    examples: InputArtifact[standard_artifacts.Examples],
    model: OutputArtifact[standard_artifacts.Model],
    turn: tfx.dsl.components.Parameter[int],
):
    """Write how many rows are in all of the files, as a reader of a pattern counts them."""
    texts = [path.read_text() for path in sorted(Path(examples.uri).glob("Split-*/*"))]
    if SPOILT in texts:
        raise EOFError("Ran out of input")
    (Path(model.uri) / "rows").write_text(str(len(" ".join(texts).split())))


class Runs:
    """Runs of the two steps in one folder, one after the other."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.number = 0

    def run(self, of: str = "ab", turn: int = 0, on_end: Callable[[Step], None] = lambda step: None) -> dict[str, Step]:
        """Run both: WriteRows again when ``of`` is another, CountRows when ``turn`` is, too."""
        rows = WriteRows(of=of)
        count = CountRows(examples=rows.outputs["examples"], turn=turn)
        graph = pipeline.Pipeline(
            "rows",
            str(self.folder / "artifacts"),
            components=[rows, count],
            enable_cache=True,
            metadata_connection_config=metadata.sqlite_metadata_connection_config(str(self.store)),
        )
        self.number += 1
        return run_graph(graph, f"run-{self.number}", lambda name: None, on_end)

    @property
    def store(self) -> Path:
        return self.folder / "metadata.sqlite"


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def states(steps: dict[str, Step]) -> list[str]:
    return [step.state for step in steps.values()]


def file_of(steps: dict[str, Step], name: str) -> Path:
    return Path(steps["WriteRows"].outputs["examples"][0].uri) / "Split-train" / name


def counted(steps: dict[str, Step]) -> int:
    return int((Path(steps["CountRows"].outputs["model"][0].uri) / "rows").read_text())


def flip(path: Path, text: str) -> None:
    """Change a file as a bad disk does: neither its size nor its time tells."""
    status = path.stat()
    assert len(text) == status.st_size
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_what_has_not_changed_is_reused(runs):
    first, second = runs.run(), runs.run()
    assert (counted(first), states(first), states(second)) == (5, ["ran", "ran"], ["cached", "cached"])
    assert first["WriteRows"].reason == ""


def test_a_folder_that_was_copied_there_and_back_is_reused(runs):
    path = file_of(runs.run(), "a")
    os.utime(path)
    assert states(runs.run()) == ["cached", "cached"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda path: path.unlink(), "not reused, Split-train/a is missing in "),
        (lambda path: path.write_text("1 2"), "not reused, Split-train/a is changed in "),
        (lambda path: path.write_text("1 2 9"), "not reused, Split-train/a is changed in "),
        (lambda path: path.with_name("c").write_text("6"), "not reused, Split-train/c is new in "),
    ],
    ids=["lost", "cut off", "changed", "added"],
)
def test_a_step_runs_again_when_its_files_are_others_and_says_so(runs, fault, said):
    fault(file_of(runs.run(), "a"))
    again = runs.run()
    assert (counted(again), states(again)) == (5, ["ran", "ran"])
    assert again["WriteRows"].reason.startswith(said)
    assert states(runs.run()) == ["cached", "cached"]


def test_a_changed_artifact_that_is_not_to_be_reused_stays_what_it_is(runs):
    """A baseline that has changed, for example, is the Evaluator's to report."""
    first = runs.run(of="a")
    runs.run(of="ab")
    file_of(first, "a").write_text("1 2")
    again = runs.run(of="ab")
    assert states(again) == ["cached", "cached"]
    assert "not reused" not in again["WriteRows"].reason
    with metadata.Metadata(metadata.sqlite_metadata_connection_config(str(runs.store))) as handle:
        (artifact,) = handle.store.get_artifacts_by_id([first["WriteRows"].outputs["examples"][0].id])
    assert artifact.state == artifact.LIVE


def test_nobody_reads_files_that_were_lost_during_the_run(runs):
    def lose(step: Step) -> None:
        if step.name == "WriteRows":
            (Path(step.outputs["examples"][0].uri) / "Split-train/b").unlink()

    with pytest.raises(StepFailed) as failed:
        runs.run(on_end=lose)
    assert failed.value.step == "CountRows"
    said = str(failed.value.__cause__)
    assert isinstance(failed.value.__cause__, UserError)
    assert said.startswith("Split-train/b is missing in ")
    assert said.endswith(" since WriteRows has written it; run again, and WriteRows makes it anew")
    assert counted(runs.run()) == 5


def test_what_a_bad_disk_has_changed_is_named_once_a_step_fails_by_it_and_made_anew(runs):
    flip(file_of(runs.run(), "a"), SPOILT)
    with pytest.raises(StepFailed) as failed:
        runs.run(turn=1)
    assert str(failed.value.__cause__).startswith("Split-train/a is changed in ")
    again = runs.run(turn=1)
    assert (counted(again), states(again)) == (5, ["ran", "ran"])


def test_a_step_that_fails_by_itself_keeps_its_error(runs):
    ROWS["x"] = SPOILT
    with pytest.raises(StepFailed) as failed:
        runs.run(of="x")
    assert "Ran out of input" in str(failed.value.__cause__)


def test_folders_of_a_store_that_was_moved_away_are_not_written_into(runs):
    first = runs.run(of="ab")
    runs.store.rename(runs.store.with_suffix(".old"))
    second = runs.run(of="a")
    assert (counted(first), counted(second)) == (5, 3)
    assert file_of(first, "b").read_text() == "4 5"
    assert states(runs.run(of="a")) == ["cached", "cached"]


def test_folders_that_no_step_has_written_do_not_count(runs):
    for name in ("_reference/flights/1795479784", "WriteRows/examples/20261123", "WriteRows/examples/old"):
        (runs.folder / "artifacts" / name).mkdir(parents=True)
    assert counted(runs.run()) == 5


def test_folders_of_runs_after_the_copy_of_a_store_are_not_written_into(runs):
    runs.run(of="a")
    copy = runs.store.read_bytes()
    later = runs.run(of="ab")
    runs.store.write_bytes(copy)
    assert states(runs.run(of="a")) == ["cached", "cached"]
    again = runs.run(of="b")
    assert (counted(again), file_of(later, "a").read_text()) == (2, "1 2 3")
