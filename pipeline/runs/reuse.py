"""Let a run use only artifacts whose files are still as ``pipeline.components.written_files`` has listed them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_metadata.metadata_store import ListOptions, MetadataStore, OrderByField
from ml_metadata.proto.metadata_store_pb2 import Artifact, Execution, ExecutionType
from tfx import types
from tfx.proto.orchestration import pipeline_pb2
from tfx.types import artifact_utils

from pipeline.components.written_files import changes
from pipeline.errors import UserError
from pipeline.runs.store import numbered_folders

# Type of executions that stand for the folders of a lost metadata store.
PASSED_OVER = "passed_over"
# A folder whose number exceeds the last execution's by more than this does not belong to a step.
FAR = 100_000
NODE_CONTEXT = "node"  # type of the context that TFX gives to all executions of a node


def discard_changed(node: pipeline_pb2.PipelineNode, store: MetadataStore) -> list[str]:
    """Keep a step from reusing artifacts of its earlier runs that have changed; return a message for each of them.

    TFX's cache only checks whether the folder of an artifact exists, but takes no artifact that is marked as deleted.
    """
    (name,) = (context for context in node.contexts.contexts if context.type.name == NODE_CONTEXT)
    context = store.get_context_by_type_and_name(NODE_CONTEXT, name.name.field_value.string_value)
    found = store.get_artifacts_by_context(context.id) if context else []
    live = [artifact for artifact in found if artifact.state == Artifact.LIVE]
    types_by_id = {kind.id: kind for kind in store.get_artifact_types_by_id({artifact.type_id for artifact in live})}
    sentences = []
    for artifact in live:
        changed = changes(artifact_utils.deserialize_artifact(types_by_id[artifact.type_id], artifact))
        if changed:
            artifact.state = Artifact.DELETED
            store.put_artifacts([artifact])
            sentences.append(f"not reused, {changed}")
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
