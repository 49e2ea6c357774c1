"""Find the model that a candidate is compared with."""

from pathlib import Path
from typing import Any

from ml_metadata import errors
from ml_metadata.proto import metadata_store_pb2
from tfx import types
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.common.importer import Importer
from tfx.dsl.components.common.resolver import Resolver
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
from tfx.orchestration import metadata
from tfx.types import BaseChannel, Channel, standard_artifacts

from pipeline.errors import UserError
from pipeline.settings.gates import LAST_BLESSED, NO_BASELINE
from pipeline.settings.target import Target


def find_baseline(
    setting: str, trainer: BaseComponent, target: Target
) -> tuple[Resolver | Importer, BaseChannel] | tuple[None, None]:
    """Return the node that finds the model of ``Evaluation.baseline``, and the model; None if the config wants none."""
    if setting == NO_BASELINE:
        return None, None
    if setting != LAST_BLESSED:
        address = model_of_run(target.metadata, setting)
        importer = Importer(address, standard_artifacts.Model).with_id("BaselineModel")
        return importer, importer.outputs["result"]
    channels = {
        "model": Channel(type=standard_artifacts.Model),
        "model_blessing": Channel(type=standard_artifacts.ModelBlessing),
    }
    if target.vertex is None:
        resolver = Resolver(LatestOtherBlessedModelStrategy, candidate=trainer.outputs["model"], **channels)
    else:
        # Vertex AI resolves by its own queries and knows TFX's strategies only.
        resolver = Resolver(LatestBlessedModelStrategy, **channels)
        resolver.add_upstream_node(trainer)
    return resolver.with_id("LatestBlessedModel"), resolver.outputs["model"]


class LatestOtherBlessedModelStrategy(LatestBlessedModelStrategy):
    """Resolve the latest blessed model other than the candidate.

    TFX's strategy finds the candidate itself as soon as it is blessed: a second run of an unchanged pipeline would get
    another baseline than the first, and evaluate and push again. Without the candidate the baseline is the same.
    """

    def resolve_artifacts(
        self, store: Any, input_dict: dict[str, list[types.Artifact]]
    ) -> dict[str, list[types.Artifact]] | None:
        """Resolve "model" and "model_blessing" to one each or none, leaving out the models in "candidate"."""
        candidates = input_dict["candidate"]
        candidate_ids = {artifact.id for artifact in candidates}
        resolved = super().resolve_artifacts(
            store,
            {
                "model": [model for model in input_dict["model"] if model.id not in candidate_ids],
                "model_blessing": input_dict["model_blessing"],
            },
        )
        return {**(resolved or {"model": [], "model_blessing": []}), "candidate": candidates}


def model_of_run(store_file: str | None, run: str) -> str:
    """Return the address of the model that a run has trained; a setting that is an address itself stays.

    Raises:
        UserError: there is no such run, or it trained no model.
    """
    if "/" in run:
        return run
    runs: dict[str, str] = {}
    if store_file and Path(store_file).is_file():
        with metadata.Metadata(metadata.sqlite_metadata_connection_config(store_file)) as handle:
            runs = _models_by_run(handle.store)
    if run not in runs:
        known = ", ".join(sorted(runs)[-5:]) or "none"
        raise UserError(
            f"evaluation.baseline: no run {run!r} with a model; the last runs with one: {known}. Name one of them, the "
            'address of a model, "last blessed" or "none"'
        )
    return runs[run]


def _models_by_run(store: Any) -> dict[str, str]:
    try:
        contexts = store.get_contexts_by_type("pipeline_run")
    except errors.NotFoundError:
        return {}
    models_by_run = {}
    for context in contexts:
        executions = store.get_executions_by_context(context.id)
        trainings = [execution.id for execution in executions if execution.type.endswith(".Trainer")]
        if not trainings:
            continue
        events = store.get_events_by_execution_ids(trainings)
        outputs = [event.artifact_id for event in events if event.type == metadata_store_pb2.Event.OUTPUT]
        models = [artifact.uri for artifact in store.get_artifacts_by_id(outputs) if artifact.type == "Model"]
        if models:
            models_by_run[context.name] = models[-1]
    return models_by_run
