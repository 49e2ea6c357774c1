"""Artifacts as Vertex AI has them → TFX's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx import types
from tfx.orchestration.kubeflow.v2.container.kubeflow_v2_entrypoint_utils import parse_raw_artifact_dict

FIELDS = ("name", "uri", "type", "metadata")


def as_tfx(outputs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[types.Artifact]]:
    """The artifacts of a task by output name; each is a RuntimeArtifact as JSON, of which ``FIELDS`` count."""
    messages = {
        key: json_format.ParseDict(
            {"artifacts": [{field: one[field] for field in FIELDS} for one in several]},
            pipeline_spec_pb2.ArtifactList(),
        )
        for key, several in outputs.items()
    }
    return {key: list(several) for key, several in parse_raw_artifact_dict(messages).items()}
