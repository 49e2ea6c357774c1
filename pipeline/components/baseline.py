"""The model that a candidate has to beat."""

from __future__ import annotations

from typing import Any

from tfx import types
from tfx.dsl.input_resolution.strategies.latest_blessed_model_strategy import LatestBlessedModelStrategy


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
