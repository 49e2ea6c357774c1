"""Let a run use only what is still as its step has written it.

What a step has written is listed on its artifacts (``pipeline.components.written_files``).
"""

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

# Type of executions that stand for the folders of a metadata store that is no longer there.
PASSED_OVER = "passed_over"
# Executions that this output folder will not see, of any number of runs: a folder of such a number is no step's.
FAR = 100_000
_passed_over: contextvars.ContextVar[list[str]] = contextvars.ContextVar("passed over")


@contextlib.contextmanager
def only_unchanged() -> Iterator[None]:
    """Keep TFX from taking artifacts from its cache that have changed since; it looks whether their folders exist."""
    verify = artifact_utils.verify_artifacts

    def verify_files(artifacts: Mapping[str, Sequence[types.Artifact]]) -> None:
        for artifact in (artifact for several in artifacts.values() for artifact in several):
            if changed := changes(artifact):
                _passed_over.get([]).append(f"not reused, {changed}")
                raise RuntimeError(changed)  # as TFX itself refuses one
        verify(artifacts)

    with mock.patch.object(artifact_utils, "verify_artifacts", verify_files):
        yield


def start_step() -> list[str]:
    """Return a list that gets a sentence for each artifact that the step, in this thread, does not take."""
    sentences: list[str] = []
    _passed_over.set(sentences)
    return sentences


def refuse_changed(
    inputs: Mapping[str, Sequence[types.Artifact]], store: MetadataStore, thorough: bool = False
) -> None:
    """Raise a UserError if an input of a step has changed; the next run does not reuse it.

    Args:
        inputs: By the step that has written them.
        store: Where they are marked as deleted.
        thorough: Compare all of their contents.
    """
    for step, artifacts in inputs.items():
        for artifact in artifacts:
            if changed := changes(artifact, thorough):
                artifact.mlmd_artifact.state = Artifact.DELETED
                store.put_artifacts([artifact.mlmd_artifact])
                raise UserError(f"{changed} since {step} has written it; run again, and {step} makes it anew")


def number_after_folders(artifacts: Path, store: MetadataStore) -> None:
    """Let the numbers of new executions begin after those of all folders that steps have written.

    A step writes into the folder of its number. Where the metadata store was moved away, or an older one put back,
    there are folders of numbers still to come, with the files of another run in them.

    Args:
        artifacts: Folder with <step>/<output>/<number>.
        store: Its newest execution has the highest number.
    """
    last = max((execution.id for execution in _newest(store)), default=0)
    numbers = [int(path.name) for path in numbered_folders(artifacts)]
    missing = max((number for number in numbers if number <= last + FAR), default=0) - last
    if missing > 0:
        kind = store.put_execution_type(ExecutionType(name=PASSED_OVER))
        passed_over: Any = [Execution(type_id=kind, last_known_state=Execution.CANCELED)] * missing
        store.put_executions(passed_over)


def _newest(store: MetadataStore) -> list[Execution]:
    executions: list[Execution] = store.get_executions(ListOptions(limit=1, order_by=OrderByField.ID, is_asc=False))
    return executions
