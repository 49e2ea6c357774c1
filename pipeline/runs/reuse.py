"""Let a run use only what is still as its step has written it.

What a step has written is listed on its artifacts (``pipeline.components.written_files``).
"""

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

# Type of executions that stand for the folders of a metadata store that is no longer there.
PASSED_OVER = "passed_over"
# Executions that this output folder will not see, of any number of runs: a folder of such a number is no step's.
FAR = 100_000
NODE_CONTEXT = "node"  # type of the context that TFX gives to all executions of a node


def discard_changed(node: pipeline_pb2.PipelineNode, store: MetadataStore) -> list[str]:
    """Keep a step from reusing artifacts of its earlier runs whose files have changed since.

    TFX's cache only checks whether the folder of an artifact exists, but takes no artifact that is marked as deleted.

    Returns:
        A sentence for each such artifact.
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
    """Make the numbers of new executions begin after the numbers of all folders that steps have written.

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
