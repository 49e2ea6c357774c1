"""A Pusher executor that never shows a model server half a model, and says of each version what it is."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from tfx import types
from tfx.components.pusher import executor as tfx_pusher
from tfx.proto import pusher_pb2
from tfx.types import artifact_utils
from tfx.utils import json_utils, proto_utils

from pipeline.components.evaluator import read_measured
from pipeline.filesystem import is_remote
from pipeline.serving.versions import Versions

# What a model's answers can depend on besides our code.
PACKAGES = ("tfx", "tensorflow", "keras", "tensorflow-transform", "numpy", "pyarrow")


class AtomicExecutor(tfx_pusher.Executor):
    """TFX's Pusher to a local folder, with the version appearing at once, when every file of it is there.

    TFX copies file by file into the folder that the server watches; cut off midway it leaves a version that fails to
    load, and it never removes one. Here it copies into a folder beside the versions (``pipeline.serving.versions``).
    """

    def Do(
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Pushes "model" if "model_blessing" allows it; sets "pushed_destination" and "pushed_version"."""
        destination = pusher_pb2.PushDestination()
        proto_utils.json_to_proto(exec_properties["push_destination"], destination)
        if is_remote(destination.filesystem.base_directory):
            # A bucket has no renaming of folders.
            super().Do(input_dict, output_dict, exec_properties)
            return
        if not self.CheckBlessing(input_dict):
            super().Do(input_dict, output_dict, exec_properties)  # which marks it as not pushed
            return
        custom = json_utils.loads(exec_properties.get("custom_config") or "null") or {}
        versions = Versions(Path(destination.filesystem.base_directory))
        with versions.staging() as staging:
            destination.filesystem.base_directory = str(staging)
            there = {"push_destination": proto_utils.proto_to_json(destination)}
            super().Do(input_dict, output_dict, {**exec_properties, **there})
            pushed = artifact_utils.get_single_instance(output_dict["pushed_model"])
            staged = staging / pushed.get_string_custom_property("pushed_version")
            run_id = self._context.pipeline_run_id if self._context else None
            version = versions.publish(
                staged,
                int(staged.name),
                manifest(input_dict, run_id, custom.get("fingerprints", {})),
                custom.get("keep", 5),
            )
        pushed.set_string_custom_property("pushed_destination", str(version))
        pushed.set_string_custom_property("pushed_version", version.name)


def manifest(
    input_dict: dict[str, list[types.Artifact]], run_id: str | None, fingerprints: dict[str, str]
) -> dict[str, Any]:
    """What is to be known of a pushed model, whichever way it is served.

    Args:
        input_dict: Of the Pusher.
        run_id: Of the run that pushes.
        fingerprints: Of the code that made the model, by entry point.
    """
    blessings = input_dict.get("model_blessing", [])
    measured = read_measured(blessings[0].uri) if blessings else {}
    return {
        "run": run_id,
        "pushed_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "model": artifact_utils.get_single_uri(input_dict["model"]),
        "metrics": measured.get("metrics", {}),
        "data_span": measured.get("data_span"),
        "schema_sha256": measured.get("schema_sha256"),
        "code": fingerprints,
        "packages": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
