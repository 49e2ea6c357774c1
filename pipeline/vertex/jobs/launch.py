"""Starts a job of Vertex AI from within a task of the pipeline and waits for it.

In a rehearsal the job runs as processes on this machine, see ``pipeline.vertex.jobs.local_jobs``.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tfx import types
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.io import fileio
from tfx.types import artifact_utils
from tfx.utils import json_utils, name_utils

from pipeline.errors import UserError
from pipeline.vertex import rehearsing, termination
from pipeline.vertex.jobs import local_jobs

logger = logging.getLogger("pipeline.vertex")

# Where the job stands among the settings of a component (custom_config).
SETTING = "vertex_job"
# The place of a pool says what it is for; the third one's containers, Reduction Servers, have a command of their own.
POOLS_WITH_OUR_COMMAND = 2
# gcloud's own: another address of Vertex AI than the region's.
ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM"
SECONDS_BETWEEN_LOOKS = 15.0
LONGEST_OUTAGE = 30 * 60.0
ENDED = ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED")

Artifacts = dict[str, list[types.Artifact]]
_Job = TypeVar("_Job")


class JobFailed(UserError):
    """A job ended without success; says its state, cause and page."""


class Ended(JobFailed):
    """This task was ended while its job ran."""


def command_of(
    executor: type[BaseExecutor], inputs: Artifacts, outputs: Artifacts, exec_properties: dict[str, Any]
) -> list[str]:
    """The command that runs an executor in a container of the job."""
    return [
        "python",
        "-m",
        "tfx.scripts.run_executor",
        "--executor_class_path",
        name_utils.get_full_name(executor),
        "--inputs",
        artifact_utils.jsonify_artifact_dict(inputs),
        "--outputs",
        artifact_utils.jsonify_artifact_dict(outputs),
        "--exec-properties",
        json.dumps(without_setting(exec_properties), sort_keys=True),
    ]


def setting_of(exec_properties: dict[str, Any]) -> dict[str, Any]:
    """The job that ``pipeline.vertex.pipelines.worker_pools`` has put among the settings."""
    return copy.deepcopy(json_utils.loads(exec_properties["custom_config"])[SETTING])


def without_setting(exec_properties: dict[str, Any]) -> dict[str, Any]:
    """The same properties without the job, as the user's code expects them."""
    settings = json_utils.loads(exec_properties["custom_config"])
    settings.pop(SETTING)
    return {**exec_properties, "custom_config": json_utils.dumps(settings)}


def run_as_job(
    executor: type[BaseExecutor],
    inputs: Artifacts,
    outputs: Artifacts,
    exec_properties: dict[str, Any],
    beside: str,
) -> None:
    """Runs an executor in every replica of a CustomJob and waits for its end.

    Args:
        executor: Does the work in each replica.
        inputs: As a task's executor gets them.
        outputs: The same.
        exec_properties: The same, with the job that ``pipeline.vertex.pipelines.worker_pools`` has put there.
        beside: The output beside which checkpoints and logs go: in the same place when Vertex AI starts the job, or the
            task, again.

    Raises:
        JobFailed: it did not succeed.
    """
    setting = setting_of(exec_properties)
    folder = os.path.dirname(artifact_utils.get_single_uri(outputs[beside]).rstrip("/"))
    command = command_of(executor, inputs, outputs, exec_properties)
    with_command(setting["job"]["jobSpec"], command, f"{folder}/job")
    run_custom_job(setting["job"], setting["parent"], f"{folder}/job/name.txt")


def with_command(job_spec: dict[str, Any], command: list[str], folder: str) -> dict[str, Any]:
    """A CustomJobSpec whose replicas run ``command``, and whose checkpoints and logs go below ``folder``."""
    for pool in job_spec["workerPoolSpecs"][:POOLS_WITH_OUR_COMMAND]:
        pool["containerSpec"]["command"] = command
    job_spec["baseOutputDirectory"] = {"outputUriPrefix": folder}
    return job_spec


def run_custom_job(job: dict[str, Any], parent: str, marker: str) -> None:
    """Runs a CustomJob to its end.

    Args:
        job: As in Vertex AI's REST documentation.
        parent: "projects/P/locations/R".
        marker: File for the name of the job: a task that is started again goes on waiting for it.

    Raises:
        JobFailed: it did not succeed.
    """
    if rehearsing():
        local_jobs.run(job["displayName"], job["jobSpec"])
        return
    from google.cloud import aiplatform_v1

    client = _client(parent)
    _run(
        create=lambda: client.create_custom_job(
            parent=parent, custom_job=aiplatform_v1.CustomJob.from_json(json.dumps(job))
        ),
        get=lambda name: client.get_custom_job(name=name),
        cancel=lambda name: client.cancel_custom_job(name=name),
        marker=marker,
    )


def run_search(job: dict[str, Any], parent: str, marker: str) -> list[dict[str, Any]]:
    """Runs a HyperparameterTuningJob to its end; arguments as for ``run_custom_job``.

    Returns:
        The trials that succeeded: {"id", "values": {parameter: value}, "measured": the metric}.

    Raises:
        JobFailed: it did not succeed.
    """
    if rehearsing():
        return local_jobs.search(job)
    from google.cloud import aiplatform_v1

    client = _client(parent)
    done = _run(
        create=lambda: client.create_hyperparameter_tuning_job(
            parent=parent,
            hyperparameter_tuning_job=aiplatform_v1.HyperparameterTuningJob.from_json(json.dumps(job)),
        ),
        get=lambda name: client.get_hyperparameter_tuning_job(name=name),
        cancel=lambda name: client.cancel_hyperparameter_tuning_job(name=name),
        marker=marker,
    )
    return [
        {
            "id": trial.id,
            "values": {parameter.parameter_id: parameter.value for parameter in trial.parameters},
            "measured": trial.final_measurement.metrics[0].value,
        }
        for trial in done.trials
        if trial.state.name == "SUCCEEDED" and trial.final_measurement.metrics
    ]


def _client(parent: str) -> Any:
    from google.cloud import aiplatform_v1

    from pipeline.vertex.cloud import Cloud

    _, project, _, region = parent.split("/")
    address = os.environ.get(ENDPOINT_VARIABLE)
    cloud = Cloud.connect(project, region, {"aiplatform": address} if address else {})
    return cloud.client(aiplatform_v1.JobServiceClient)


def _run(
    create: Callable[[], _Job],
    get: Callable[[str], _Job],
    cancel: Callable[[str], Any],
    marker: str,
) -> _Job:
    from google.api_core import exceptions

    from pipeline.vertex.cloud import explained

    job: Any = None
    if fileio.exists(marker):
        with fileio.open(marker) as file:
            job = get(file.read())
        if job.state.name in ENDED and job.state.name != "JOB_STATE_SUCCEEDED":
            job = None
    if job is None:
        try:
            job = create()
        except exceptions.GoogleAPICallError as error:
            raise explained(error, "starting the job") from error
        fileio.makedirs(os.path.dirname(marker))
        with fileio.open(marker, "w") as file:
            file.write(job.name)
    url = _url(job.name)
    logger.info("Waiting for %s: %s", job.name, url)
    try:
        with termination.raised(Ended("this task was ended, and its job was cancelled")):
            job = _wait(job, get)
    except Ended:
        cancel(job.name)  # nothing else would, and it would be paid for
        raise
    if job.state.name != "JOB_STATE_SUCCEEDED":
        cause = f": {job.error.message}" if job.error.message else ""
        raise JobFailed(f"the job {job.name} ended with {job.state.name}{cause}; its log is at {url}")
    return job


def _wait(job: Any, get: Callable[[str], Any]) -> Any:
    """The job at its end; short outages of the network or the service are waited through."""
    from pipeline.vertex.cloud import PASSING

    seen, reached = None, time.monotonic()
    while job.state.name not in ENDED:
        if job.state.name != seen:
            seen = job.state.name
            logger.info("%s", seen)
        time.sleep(SECONDS_BETWEEN_LOOKS)
        try:
            job = get(job.name)
            reached = time.monotonic()
        except PASSING as error:
            if time.monotonic() - reached > LONGEST_OUTAGE:
                raise JobFailed(f"Vertex AI has not answered for {LONGEST_OUTAGE / 60:g} minutes: {error}") from error
            logger.warning("Vertex AI cannot be reached, waiting on: %s", error)
    return job


def _url(name: str) -> str:
    """The job's page in the Google Cloud console."""
    _, project, _, region, _, number = name.split("/")
    return f"https://console.cloud.google.com/agent-platform/locations/{region}/training/{number}?project={project}"
