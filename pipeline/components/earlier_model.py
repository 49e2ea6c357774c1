"""Find the model that a candidate is compared with."""

from typing import Any

from tfx import types
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.common.resolver import Resolver
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy
from tfx.types import Channel, standard_artifacts

from pipeline.settings.target import Target


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
