"""Find the model that a candidate is compared with, and examine whether it can be."""

from typing import Any

import tensorflow as tf
from tfx import types
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.common.resolver import Resolver
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
from tfx.types import Channel, artifact_utils, standard_artifacts

from pipeline.components.base import Artifacts, files_of, serving_model_folder
from pipeline.components.model_probe import first_line
from pipeline.components.written_files import changes
from pipeline.data.tfrecord_files import read_records
from pipeline.model.export_format import ROWS_SIGNATURE, read_inputs
from pipeline.model.outside_operations import outside_operations
from pipeline.model.signatures import read_signatures
from pipeline.settings.target import Target

# Rows that a baseline has to predict before the candidate is compared with it.
PROBE = 100


def last_blessed(trainer: BaseComponent, target: Target) -> Resolver:
    """Return the node that finds the last blessed model other than the one that is trained."""
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
    return resolver.with_id("LatestBlessedModel")


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


def examine_baseline(inputs: Artifacts) -> tuple[str | None, str | None]:
    """Return why the baseline is unusable, and how its columns differ from the candidate's; None means no problem."""
    baseline, candidate = serving_model_folder(inputs["baseline_model"]), serving_model_folder(inputs["model"])
    name = f"the baseline {baseline}"
    if changed := changes(artifact_utils.get_single_instance(inputs["baseline_model"]), thorough=True):
        return f"{name} is not as its run has written it, {changed}", None
    if reached := outside_operations(baseline)[0]:
        return f"{name} is not loaded: it {' and '.join(reached)}, which no model may", None
    try:
        signatures = tf.saved_model.load(baseline).signatures
    except Exception as error:
        return f"{name} no longer loads: {first_line(error)}", None
    records = next(read_records(files_of(artifact_utils.get_single_instance(inputs["examples"]), "test")[0], PROBE))
    try:
        predict = signatures["predict" if "predict" in signatures else "serving_default"]
        predict(**{next(iter(predict.structured_input_signature[1])): tf.constant(records)})
    except Exception as error:
        return f"{name} does not answer the rows of today, its schema differs: {first_line(error)}", None
    gone = ", ".join(sorted(_columns(baseline) - _columns(candidate)))
    new = ", ".join(sorted(_columns(candidate) - _columns(baseline)))
    if gone or new:
        return None, f"{name} takes other columns: {gone or 'none'} are gone since, {new or 'none'} are new"
    return None, None


def _columns(folder: str) -> set[str]:
    """Return the raw features that "serving_default" takes, read without loading the model."""
    columns = read_inputs(folder)
    tensors = read_signatures(folder)[ROWS_SIGNATURE].inputs
    return {columns[tensor]["name"] if tensor in columns else tensor for tensor in tensors}
