"""The model that a candidate has to beat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ml_metadata import errors
from ml_metadata.proto import metadata_store_pb2
from tfx import types
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
from tfx.orchestration import metadata

from pipeline.errors import UserError


class LatestOtherBlessedModelStrategy(LatestBlessedModelStrategy):
    """The latest blessed model other than the candidate.

    TFX's strategy finds the candidate itself as soon as it is blessed: a second run of an unchanged pipeline would get
    another baseline than the first, so evaluate and push again. Leaving the candidate out gives it the same baseline
    every time.
    """

    def resolve_artifacts(
        self, store: Any, input_dict: dict[str, list[types.Artifact]]
    ) -> dict[str, list[types.Artifact]] | None:
        """Resolves "model" and "model_blessing", leaving out the models in "candidate".

        Args:
            store: The metadata store.
            input_dict: All models and blessings of this pipeline, and the candidate.

        Returns:
            At most one model and its blessing, and the candidate as it came.
        """
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
    """The address of the model that a run has trained.

    Args:
        store_file: SQLite file with the metadata of the runs.
        run: Name of a run, such as "2026-11-21T09-47-15", or the address of a model itself, which is given back.

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
    found = {}
    for context in contexts:
        executions = [one.id for one in store.get_executions_by_context(context.id) if one.type.endswith(".Trainer")]
        if not executions:
            continue
        events = store.get_events_by_execution_ids(executions)
        made = [one.artifact_id for one in events if one.type == metadata_store_pb2.Event.OUTPUT]
        models = [one.uri for one in store.get_artifacts_by_id(made) if one.type == "Model"]
        if models:
            found[context.name] = models[-1]
    return found
