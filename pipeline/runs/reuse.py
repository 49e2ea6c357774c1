"""Let a run use only artifacts whose files are still as ``pipeline.components.written_files`` has listed them."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from ml_metadata.metadata_store import ListOptions, MetadataStore, OrderByField
from ml_metadata.proto.metadata_store_pb2 import Artifact, Execution, ExecutionType
from tfx import types
from tfx.types import artifact_utils

from pipeline.components.written_files import changes
from pipeline.errors import UserError
from pipeline.runs.store import numbered_folders

# Type of executions that stand for the folders of a lost metadata store.
PASSED_OVER = "passed_over"
# A folder whose number is larger by this than the last execution's is not that of a step.
FAR = 100_000
_passed_over: contextvars.ContextVar[list[str]] = contextvars.ContextVar("passed over")


@contextlib.contextmanager
def only_unchanged() -> Iterator[None]:
    """Keep TFX's cache from reusing artifacts that have changed; it only checks whether their folders exist.

    Only the artifacts that the cache is about to reuse are compared. Others stay as they are: the Evaluator reports a
    baseline that has changed.
    """
    verify = artifact_utils.verify_artifacts

    def verify_files(artifacts: Mapping[str, Sequence[types.Artifact]]) -> None:
        for artifact in (artifact for several in artifacts.values() for artifact in several):
            if changed := changes(artifact):
                _passed_over.get([]).append(f"not reused, {changed}")
                raise RuntimeError(changed)  # as TFX itself rejects one
        verify(artifacts)

    with mock.patch.object(artifact_utils, "verify_artifacts", verify_files):
        yield


def start_step() -> list[str]:
    """Return a list that gets a sentence for each artifact that the step in this thread does not reuse."""
    sentences: list[str] = []
    _passed_over.set(sentences)
    return sentences


def refuse_changed(
    inputs: Mapping[str, Sequence[types.Artifact]], store: MetadataStore, thorough: bool = False
) -> None:
    """Raise a UserError if an input, by the step that has written it, has changed; the next run does not reuse it."""
    for step, artifacts in inputs.items():
        for artifact in artifacts:
            if changed := changes(artifact, thorough):
                artifact.mlmd_artifact.state = Artifact.DELETED
                store.put_artifacts([artifact.mlmd_artifact])
                raise UserError(f"{changed} since {step} has written it; run again, and {step} makes it anew")


def number_after_folders(artifacts: Path, store: MetadataStore) -> None:
    """Make the numbers of new executions begin after the numbers of all folders that steps have written.

    A step writes into the folder of its number. If the metadata store was moved away or replaced by an older one,
    folders of later numbers exist already, with the files of another run.
    """
    newest: list[Execution] = store.get_executions(ListOptions(limit=1, order_by=OrderByField.ID, is_asc=False))
    last = newest[0].id if newest else 0
    numbers = [int(path.name) for path in numbered_folders(artifacts)]
    missing = max((number for number in numbers if number <= last + FAR), default=0) - last
    if missing > 0:
        kind = store.put_execution_type(ExecutionType(name=PASSED_OVER))
        passed_over: Any = [Execution(type_id=kind, last_known_state=Execution.CANCELED)] * missing
        store.put_executions(passed_over)
