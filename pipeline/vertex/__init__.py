"""Code that only Vertex AI needs; here are the names that its rooms share."""

import os
from collections.abc import Mapping
from typing import Any

# Files that compiling writes to a folder and submitting reads from it: the PipelineJob, and {file here: address}.
JOB = "pipeline_job.json"
UPLOADS = "uploads.json"
# The exit handler, which is no node of the graph, and its output: ``pipeline.vertex.pipelines.report_task``.
REPORT_TASK, REPORT = "Report", "report"
# The task that holds all nodes of the graph, which the exit handler waits for; TFX's own name for it.
ALL_NODES = "tfx-dag"
# Vertex AI replaces it by the resource name of the job.
JOB_NAME = "{{$.pipeline_job_resource_name}}"
# TFX makes two tasks of the resolver of the latest blessed model: one finds the blessing, one the model it is of.
FIRST_OF_RESOLVER, LAST_OF_RESOLVER = "-model-blessing-resolver", "-model-resolver"
# Set by a rehearsal in every task: the folder for the logs of the replicas.
REHEARSAL_VARIABLE = "VERTEX_REHEARSAL_LOGS"
# Command that runs another one in the image, for a rehearsal: set by tools/rehearse_image.py.
RUN_IN_IMAGE = "VERTEX_REHEARSAL_RUN_IN"


def rehearsing() -> bool:
    """Return whether this process is a task of a rehearsal."""
    return bool(os.environ.get(REHEARSAL_VARIABLE))


def tasks_of_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tasks of a pipeline spec by name, those inside of other tasks too."""
    dags = [part["dag"] for part in (spec["root"], *spec["components"].values()) if "dag" in part]
    return {name: task for dag in dags for name, task in dag["tasks"].items()}


def training_page(name: str) -> str:
    """Return the page of a training job in Google Cloud's console."""
    _, project, _, region, _, number = name.split("/")
    return f"https://console.cloud.google.com/agent-platform/locations/{region}/training/{number}?project={project}"


def node_of(task: str) -> str:
    """Return the node of the graph that a task of the compiled job belongs to."""
    return task.removesuffix(FIRST_OF_RESOLVER).removesuffix(LAST_OF_RESOLVER)
