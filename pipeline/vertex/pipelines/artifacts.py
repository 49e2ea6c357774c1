"""Vertex AI's artifacts → TFX's."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx import types
from tfx.orchestration.kubeflow.v2.container.kubeflow_v2_entrypoint_utils import parse_raw_artifact_dict


def as_tfx(outputs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[types.Artifact]]:
    """Return the artifacts of a task by output; each is a RuntimeArtifact as JSON."""
    messages = {
        key: json_format.ParseDict({"artifacts": list(artifacts)}, pipeline_spec_pb2.ArtifactList())
        for key, artifacts in outputs.items()
    }
    return {key: list(artifacts) for key, artifacts in parse_raw_artifact_dict(messages).items()}
