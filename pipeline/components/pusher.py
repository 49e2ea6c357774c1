"""A Pusher executor that never shows a model server half a model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tfx import types
from tfx.components.pusher import executor as tfx_pusher
from tfx.proto import pusher_pb2
from tfx.types import artifact_utils
from tfx.utils import proto_utils

from pipeline.reading.files import is_remote

# Model servers look for folders whose name is a number, so they pass over this one.
STAGING = ".being-pushed"


class AtomicExecutor(tfx_pusher.Executor):
    """TFX's Pusher to a local folder, with the version appearing at once, when every file of it is there.

    TFX copies file by file into the folder that the server watches; cut off midway it leaves a version that fails to
    load. Here it copies into a folder beside the versions, which is then renamed.
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
        versions = Path(destination.filesystem.base_directory)
        staging = versions / STAGING
        shutil.rmtree(staging, ignore_errors=True)  # of a push that was cut off

        destination.filesystem.base_directory = str(staging)
        super().Do(
            input_dict, output_dict, {**exec_properties, "push_destination": proto_utils.proto_to_json(destination)}
        )

        pushed = artifact_utils.get_single_instance(output_dict["pushed_model"])
        if pushed.get_int_custom_property("pushed"):
            version = pushed.get_string_custom_property("pushed_version")
            (staging / version).rename(versions / version)
            staging.rmdir()
            pushed.set_string_custom_property("pushed_destination", str(versions / version))
