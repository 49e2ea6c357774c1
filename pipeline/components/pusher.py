"""A Pusher that never shows a model server an incomplete version, and writes a manifest for each version."""

import datetime
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tfx import components as tfx_components
from tfx import types
from tfx.components.pusher import executor as tfx_pusher
from tfx.dsl.components.base import executor_spec
from tfx.dsl.io import fileio
from tfx.proto import pusher_pb2
from tfx.types import artifact_utils
from tfx.utils import json_utils, proto_utils

from pipeline import filesystem
from pipeline.components.artifacts import read_measured, read_model_report
from pipeline.components.base import Artifacts, FingerprintedComponent, serving_model_folder
from pipeline.errors import UserError
from pipeline.filesystem import is_remote
from pipeline.model.versions import Versions
from pipeline.settings.names import shortened

# Packages whose version may change a model's predictions.
PACKAGES = ("tfx", "tensorflow", "keras", "tensorflow-transform", "numpy", "pyarrow")


class AtomicPusherExecutor(tfx_pusher.Executor):
    """Push to a local folder; the version appears when all its files are complete.

    TFX copies file by file into the folder that the server watches; interrupted, it leaves a version that does not
    load. It never removes one. This one copies into a staging folder (``pipeline.model.versions``).
    """

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Push "model" if "model_blessing" allows it; set "pushed_destination" and "pushed_version"."""
        destination = pusher_pb2.PushDestination()
        proto_utils.json_to_proto(exec_properties["push_destination"], destination)
        if is_remote(destination.filesystem.base_directory):
            await_free_version(destination.filesystem.base_directory)
            super().Do(input_dict, output_dict, exec_properties)
            check_pushed(artifact_utils.get_single_instance(output_dict["pushed_model"]), input_dict)
            return
        if not self.CheckBlessing(input_dict):
            super().Do(input_dict, output_dict, exec_properties)  # which marks it as not pushed
            return
        custom = json_utils.loads(exec_properties["custom_config"])
        versions = Versions(Path(destination.filesystem.base_directory))
        with versions.staging() as staging:
            destination.filesystem.base_directory = str(staging)
            staged_properties = {**exec_properties, "push_destination": proto_utils.proto_to_json(destination)}
            super().Do(input_dict, output_dict, staged_properties)
            pushed = artifact_utils.get_single_instance(output_dict["pushed_model"])
            staged = staging / pushed.get_string_custom_property("pushed_version")
            check_copy(staged, input_dict)
            run_id = self._context.pipeline_run_id if self._context else None
            version = versions.publish(
                staged,
                int(staged.name),
                manifest(input_dict, run_id, custom["fingerprints"]),
                custom["keep"],
            )
        pushed.set_string_custom_property("pushed_destination", str(version))
        pushed.set_string_custom_property("pushed_version", version.name)


def await_free_version(base_directory: str) -> None:
    """Wait until no version has the number of this second: TFX skips a push into an existing folder."""
    while fileio.exists(f"{base_directory}/{int(time.time())}"):
        time.sleep(0.1)


def check_copy(staged: Path | str, input_dict: Artifacts) -> None:
    """Raise a UserError unless a copy of the model is, byte by byte, what ModelCheck has checked."""
    model = serving_model_folder(input_dict["model"])
    report = read_model_report(input_dict["infra_blessing"][0].uri) if input_dict.get("infra_blessing") else {}
    expected: dict[str, str] = report.get("files") or filesystem.digests(model)
    found = filesystem.digests(staged)
    differing = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    if differing:
        raise UserError(
            f"{shortened(differing, 5)} of the copy to push is not what ModelCheck has checked in {model}: it was "
            "changed since, or the copy is damaged. Nothing was pushed; look at the disk, and start in a new folder "
            "with --output"
        )


def check_pushed(pushed: types.Artifact, input_dict: Artifacts) -> None:
    """Check the copy in a bucket, where folders cannot be renamed; delete a wrong one and raise a UserError."""
    if not pushed.get_int_custom_property("pushed"):
        return
    folder = pushed.get_string_custom_property("pushed_destination")
    try:
        check_copy(folder, input_dict)
    except UserError:
        fileio.rmtree(folder)
        raise


def manifest(input_dict: Artifacts, run_id: str | None, fingerprints: dict[str, str]) -> dict[str, Any]:
    """Return the facts about a pushed model that its version keeps; ``fingerprints`` are by entry point."""
    blessings = input_dict.get("model_blessing")
    measured = read_measured(artifact_utils.get_single_uri(blessings)) if blessings else {}
    return {
        "run": run_id,
        "pushed_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": artifact_utils.get_single_uri(input_dict["model"]),
        "metrics": measured.get("metrics", {}),
        "data_span": measured.get("data_span"),
        "schema_sha256": measured.get("schema_sha256"),
        "code": fingerprints,
        "packages": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    }


class Pusher(FingerprintedComponent, tfx_components.Pusher):
    """TFX's Pusher with our executor."""

    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(AtomicPusherExecutor)
