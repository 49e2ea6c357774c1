"""Push to Vertex AI, where an endpoint is configured: a new version in the registry and on the endpoint."""

import importlib.metadata
import logging
import os
from typing import Any

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1
from tfx import types
from tfx.components.pusher import executor as tfx_pusher
from tfx.types import artifact_utils
from tfx.utils import io_utils, json_utils

from pipeline.components.artifacts import read_measured, read_smoke_rows
from pipeline.components.base import Artifacts
from pipeline.components.pusher import AtomicPusherExecutor
from pipeline.errors import UserError
from pipeline.settings import checks
from pipeline.settings.endpoint import PIPELINE_IMAGE, Endpoint
from pipeline.settings.target import Vertex
from pipeline.vertex import rehearsing
from pipeline.vertex.cloud import ENDED_STATES, RETRY, Cloud, explaining
from pipeline.vertex.endpoints import registry
from pipeline.vertex.endpoints.canary import CanaryFailed, RollOut, wait_for_grace
from pipeline.vertex.endpoints.endpoint import ServingEndpoint
from pipeline.vertex.endpoints.observation import SmokeRows

logger = logging.getLogger("pipeline.vertex")
# Name of the endpoint among the settings of the Pusher (custom_config).
SETTING = "vertex_endpoint"
PORT = 8080


def setting_for(vertex: Vertex, endpoint: Endpoint, pipeline: str) -> dict[str, Any]:
    """Return what the Pusher's task needs to know, as JSON."""
    image = vertex.image if endpoint.image == PIPELINE_IMAGE else endpoint.image
    return {
        "endpoint": checks.to_json(endpoint),
        "project": vertex.project,
        "region": vertex.region,
        "pipeline": pipeline,
        "image": image,
        "service_account": vertex.service_account,
        "labels": dict(vertex.labels),
        "encryption_key": vertex.encryption_key,
    }


def container_of(image: str, endpoint: Endpoint) -> v1.ModelContainerSpec:
    """Return how the image of an endpoint is run.

    Ours gets port, routes and model by the AIP_ variables of Vertex AI's contract:
    cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
    """
    if endpoint.image != PIPELINE_IMAGE:
        return v1.ModelContainerSpec(image_uri=image)
    return v1.ModelContainerSpec(
        image_uri=image,
        command=["python", "-m", "pipeline", "serve"],
        args=[f"--processes={endpoint.processes}"],
        ports=[v1.Port(container_port=PORT)],
        predict_route="/predict",
        health_route="/health",
    )


class EndpointPusherExecutor(tfx_pusher.Executor):
    """Push to the folder, register a version of it, and let it take over the endpoint."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Push as TFX's Pusher does; "pushed_model" also gets the properties "endpoint" and "model_version"."""
        setting = json_utils.loads(exec_properties["custom_config"])[SETTING]
        if rehearsing():
            AtomicPusherExecutor(self._context).Do(input_dict, output_dict, exec_properties)
            logger.info("a rehearsal: nothing is registered or deployed")
            return
        if not self.CheckBlessing(input_dict):
            super().Do(input_dict, output_dict, exec_properties)  # which marks it as not pushed
            return
        endpoint = checks.from_json(Endpoint, setting["endpoint"])
        serving = ServingEndpoint(Cloud.connect(setting["project"], setting["region"]), endpoint)
        with explaining(f"deploying to {serving.name}"):
            self._deploy(serving, setting, input_dict, output_dict, exec_properties)

    def _deploy(
        self,
        serving: ServingEndpoint,
        setting: dict[str, Any],
        input_dict: Artifacts,
        output_dict: Artifacts,
        exec_properties: dict[str, Any],
    ) -> None:
        pushed = artifact_utils.get_single_instance(output_dict["pushed_model"])
        run = run_of(pushed.uri)
        # Before the registry: where the endpoint is gone, nothing is left behind.
        serving.create(setting["labels"], setting["encryption_key"])
        entry = registry.Registry(serving.cloud, setting["pipeline"])
        version = entry.pushed_from(artifact_utils.get_single_uri(input_dict["model"]))
        if version is None:
            AtomicPusherExecutor(self._context).Do(input_dict, output_dict, exec_properties)
            version = _registered(entry, serving.settings, input_dict, pushed, setting, run)
        else:
            logger.info("version %s was registered before the task was started again", version.id)
            io_utils.copy_dir(self.GetModelPath(input_dict), pushed.uri)
            self._MarkPushed(pushed, pushed_destination=version.folder, pushed_version=os.path.basename(version.folder))
        if version.labels.get(registry.STATE) == registry.ROLLED_BACK:
            raise UserError(
                f"version {version.id} of {version.entry} is this model, and was rolled back; to deploy it again "
                f"all the same: python vertex_runner.py rollback {version.id}"
            )
        kept = read_smoke_rows(artifact_utils.get_single_uri(input_dict["infra_blessing"]))
        rows = SmokeRows.from_json(kept, serving.settings.canary.smoke_rows)
        try:
            old = RollOut(serving, run, lambda holder: has_ended(serving.cloud, holder), rows, logger.info).run(version)
        except CanaryFailed:
            entry.label(version, **{registry.STATE: registry.FAILED})
            raise
        entry.make_live(version)
        pushed.set_string_custom_property("endpoint", serving.name)
        pushed.set_string_custom_property("model_version", version.name)
        wait_for_grace(serving, old, logger.info)


def _registered(
    entry: registry.Registry,
    endpoint: Endpoint,
    input_dict: Artifacts,
    pushed: types.Artifact,
    setting: dict[str, Any],
    run: str,
) -> registry.Version:
    measured = read_measured(artifact_utils.get_single_uri(input_dict["model_blessing"]))
    metrics = measured.get("metrics", {})
    description = registry.described(metrics, run)
    version = entry.add(
        model=artifact_utils.get_single_uri(input_dict["model"]),
        folder=pushed.get_string_custom_property("pushed_destination"),
        container=container_of(setting["image"], endpoint),
        labels={
            **setting["labels"],
            registry.RUN: registry.as_label(run),
            "tensorflow": registry.as_label(importlib.metadata.version("tensorflow")),
            "schema": str(measured.get("schema_sha256") or "")[:16],
            "span": str(measured.get("data_span") or ""),
        },
        description=description,
        encryption_key=setting["encryption_key"],
    )
    logger.info("registered version %s of %s: %s", version.id, version.entry, description)
    try:
        entry.add_metrics(version, metrics)
    except exceptions.GoogleAPICallError as error:
        logger.warning("the metrics are not shown with the version: %s", error.message)
    return version


def run_of(output: str) -> str:
    """Return the id of a task's job from the address of an output: .../<job>/<task>_<number>/<name>."""
    parts = output.rstrip("/").split("/")
    return parts[-3] if len(parts) > 2 else "run"


def has_ended(cloud: Cloud, run: str) -> bool:
    """Return whether a job is known to have ended."""
    try:
        client = cloud.client(v1.PipelineServiceClient)
        job = client.get_pipeline_job(name=f"{cloud.parent}/pipelineJobs/{run}", retry=RETRY)
    except (exceptions.NotFound, exceptions.InvalidArgument):
        return False  # of somebody else, or too long for a label
    return job.state in ENDED_STATES
