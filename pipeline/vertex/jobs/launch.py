"""Start a job of Vertex AI from within a task of the pipeline and wait for it.

In a rehearsal the job runs as processes on this machine, see ``pipeline.vertex.jobs.local_jobs``.
"""

import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from google.cloud import aiplatform_v1
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils
from tfx.utils import json_utils, path_utils

from pipeline import filesystem
from pipeline.components import trainer, tuner
from pipeline.components.base import Artifacts
from pipeline.errors import UserError
from pipeline.vertex import rehearsing, training_page
from pipeline.vertex.cloud import Cloud, explaining, poll, raised_on_sigterm
from pipeline.vertex.jobs import local_jobs
from pipeline.vertex.jobs.require_gpus import on_gpus

logger = logging.getLogger("pipeline.vertex")

# Name of the job among the settings of a component (custom_config).
SETTING = "vertex_job"
# The third pool, of Reduction Servers, keeps the command of its image.
POOLS_WITH_OUR_COMMAND = 2
SECONDS_BETWEEN_LOOKS = 15.0
LONGEST_OUTAGE = 30 * 60.0
ENDED_STATES = ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED")


class JobFailed(UserError):
    """A job ended without success; the message has its state, cause and page."""


class TaskCancelled(JobFailed):
    """This task was ended from outside while its job ran."""


class JobExecutor(BaseExecutor):
    """Run the setting's executor in every replica of a CustomJob and wait for its end."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Run the job with the component's inputs and outputs."""
        setting, properties = without_setting(exec_properties)
        folder, job = job_folder(output_dict), setting["job"]
        with_command(job["jobSpec"], command_of(setting["executor"], input_dict, output_dict, properties), folder)
        if rehearsing():
            local_jobs.run(job["displayName"], job["jobSpec"])
        else:
            _run("CustomJob", "custom_job", job, setting["parent"], folder)


def command_of(executor: str, inputs: Artifacts, outputs: Artifacts, exec_properties: dict[str, Any]) -> list[str]:
    """Return the command that runs an executor in a container of the job."""
    flags = {
        "--executor_class_path": executor,
        "--inputs": artifact_utils.jsonify_artifact_dict(inputs),
        "--outputs": artifact_utils.jsonify_artifact_dict(outputs),
        "--exec-properties": json.dumps(exec_properties, sort_keys=True),
    }
    return ["python", "-m", "tfx.scripts.run_executor", *itertools.chain.from_iterable(flags.items())]


def without_setting(exec_properties: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the job that ``worker_pools`` has put among the settings, and the properties without it."""
    settings = json_utils.loads(exec_properties["custom_config"])
    setting = settings.pop(SETTING)
    return setting, {**exec_properties, "custom_config": json_utils.dumps(settings)}


def job_folder(outputs: Artifacts) -> str:
    """Return the folder for checkpoints, logs and the job's name, the same when a job or task is started again."""
    (first, *_) = outputs.values()
    return f"{os.path.dirname(artifact_utils.get_single_uri(first).rstrip('/'))}/job"


def with_command(job_spec: dict[str, Any], command: list[str], folder: str) -> dict[str, Any]:
    """Let the replicas of a CustomJobSpec run ``command``, with checkpoints and logs below ``folder``; return it."""
    for pool in job_spec["workerPoolSpecs"][:POOLS_WITH_OUR_COMMAND]:
        pool["containerSpec"]["command"] = on_gpus(command, pool["machineSpec"].get("acceleratorType"))
    job_spec["baseOutputDirectory"] = {"outputUriPrefix": folder}
    return job_spec


def run_search(job: dict[str, Any], parent: str, folder: str) -> list[dict[str, Any]]:
    """Run a HyperparameterTuningJob to its end and return the trials that succeeded.

    A trial is {"id", "values": {parameter: value}, "measured": the metric}.
    """
    if rehearsing():
        return local_jobs.search(job)
    search = _run("HyperparameterTuningJob", "hyperparameter_tuning_job", job, parent, folder, progress_of)
    return [
        {
            "id": trial.id,
            "values": {parameter.parameter_id: parameter.value for parameter in trial.parameters},
            "measured": trial.final_measurement.metrics[0].value,
        }
        for trial in _succeeded(search)
    ]


def _succeeded(search: Any) -> list[Any]:
    return [trial for trial in search.trials if trial.state.name == "SUCCEEDED" and trial.final_measurement.metrics]


def progress_of(search: Any) -> str:
    """Return how far a HyperparameterTuningJob has come: "2 of 9 trials have succeeded, best val_auc so far 0.7132"."""
    (metric,) = search.study_spec.metrics
    measured = [trial.final_measurement.metrics[0].value for trial in _succeeded(search)]
    if not measured:
        return ""
    best = (min if metric.goal.name == "MINIMIZE" else max)(measured)
    return (
        f"{len(measured)} of {search.max_trial_count} trials have succeeded, best {metric.metric_id} so far {best:.4f}"
    )


def _run(
    message: str,
    method: str,
    content: dict[str, Any],
    parent: str,
    folder: str,
    progress: Callable[[Any], str] = lambda job: "",
) -> Any:
    """Run a job of either kind to its end and return it; ``message`` and ``method`` are the client's names of it.

    Its name is kept in ``folder``: a task that is started again goes on waiting for it.
    """
    client = Cloud.connect_to(parent).client(aiplatform_v1.JobServiceClient)
    create, get, cancel = (getattr(client, f"{verb}_{method}") for verb in ("create", "get", "cancel"))
    marker = f"{folder}/name.txt"
    name = filesystem.read_text(marker) if filesystem.exists(marker) else None
    if name is None or get(name=name).state.name in ENDED_STATES[1:]:
        with explaining("starting the job"):
            job = getattr(aiplatform_v1, message).from_json(json.dumps(content))
            name = create(parent=parent, **{method: job}).name
        filesystem.write(marker, name)
    url = training_page(name)
    logger.info("Waiting for %s: %s", name, url)
    state = shown = ""
    try:
        with raised_on_sigterm(TaskCancelled("this task was ended, and its job was cancelled")):
            for job in poll(lambda: get(name=name), SECONDS_BETWEEN_LOOKS, LONGEST_OUTAGE, logger.warning):
                state = job.state.name
                now = ", ".join(filter(None, (state, progress(job))))
                if now != shown:
                    logger.info("%s", now)
                    shown = now
                if state in ENDED_STATES:
                    break
    except TaskCancelled:
        cancel(name=name)  # nothing else would, and it would be paid for
        raise
    if state != "JOB_STATE_SUCCEEDED":
        cause = f": {job.error.message}" if job.error.message else ""
        raise JobFailed(f"the job {name} ended with {state}{cause}; its log is at {url}")
    return job


CHIEF = "chief"


class TrainerReplica(trainer.TrainerExecutor):
    """The Trainer in one of several processes that train together: only the chief's outputs count."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Train; a replica that is not the chief writes to a temporary folder."""
        from pipeline.training import strategy

        _, index = strategy.cluster()
        if index == 0:
            super().Do(input_dict, output_dict, exec_properties)
            return
        with tempfile.TemporaryDirectory() as scratch:
            for name, (artifact,) in output_dict.items():
                artifact.uri = os.path.join(scratch, name)
            # TFX looks for a model when run_fn has ended, and training.run exports the chief's only.
            os.makedirs(path_utils.serving_model_dir(artifact_utils.get_single_uri(output_dict["model"])))
            super().Do(input_dict, output_dict, exec_properties)


class TunerReplica(BaseExecutor):
    """One of several processes that search together."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Train trials until there are no more; the first replica also runs the chief."""
        if os.environ.get("KERASTUNER_TUNER_ID") == CHIEF:
            search = tuner.search(input_dict, exec_properties, tempfile.mkdtemp())
            tuner.write_results(search, output_dict)
            return
        address, index = place_in_cluster(os.environ.get("CLUSTER_SPEC"))
        host, port = address.rsplit(":", 1)
        chief = None
        if index == 0:
            environment = {
                **os.environ,
                "KERASTUNER_TUNER_ID": CHIEF,
                "KERASTUNER_ORACLE_IP": "127.0.0.1" if host == "localhost" else "0.0.0.0",
                "KERASTUNER_ORACLE_PORT": port,
                "CUDA_VISIBLE_DEVICES": "-1",  # it trains nothing, and the GPUs' memory is the trials'
            }
            chief = subprocess.Popen([sys.executable, "-m", "tfx.scripts.run_executor", *sys.argv[1:]], env=environment)
            host = "127.0.0.1"
            # Without it this process would wait for the chief for an hour.
            threading.Thread(target=_end_with, args=[chief], daemon=True).start()
        os.environ.update(KERASTUNER_TUNER_ID=f"tuner{index}", KERASTUNER_ORACLE_IP=host, KERASTUNER_ORACLE_PORT=port)
        try:
            tuner.search(input_dict, exec_properties, tempfile.mkdtemp())
            if chief:
                chief.wait()
        finally:
            if chief and chief.poll() is None:
                chief.kill()


def _end_with(chief: subprocess.Popen[bytes]) -> None:
    """End this process when the chief fails; the chief's last lines are in the same log."""
    if chief.wait():
        os._exit(1)


def place_in_cluster(text: str | None) -> tuple[str, int]:
    """Return the address of the first replica and the index of this one, from Vertex AI's CLUSTER_SPEC.

    cloud.google.com/vertex-ai/docs/training/distributed-training#cluster-variables
    """
    try:
        spec = json.loads(text or "")
        # With one replica only, the pool has the name of its task.
        first = spec["cluster"].get("workerpool0") or spec["cluster"]["chief"]
        kind, index = spec["task"]["type"], int(spec["task"]["index"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the environment variable CLUSTER_SPEC is {text!r} ({type(error).__name__}: {error}); expected that of "
            'Vertex AI: {"cluster": {"workerpool0": ["host:port"], ...}, "task": {"type": "workerpool0", "index": 0}}'
        ) from error
    return first[0], 0 if kind in ("workerpool0", "chief") else 1 + index
