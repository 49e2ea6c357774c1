"""Code that only Vertex AI needs; here are the names that its rooms share."""

import os

# Files that compiling writes to a folder and submitting reads from it: the PipelineJob, and {file here: address}.
JOB = "pipeline_job.json"
UPLOADS = "uploads.json"
# The task after all others, which is no node of the graph, and its output: ``pipeline.vertex.pipelines.report_task``.
REPORT_TASK, REPORT = "Report", "report"
# The one task of monitoring: ``pipeline.vertex.pipelines.monitoring``.
MONITOR = "Monitor"
# Vertex AI replaces it by the resource name of the job.
JOB_NAME = "{{$.pipeline_job_resource_name}}"
# TFX makes two tasks of the resolver of the latest blessed model: one finds the blessing, one the model it is of.
FIRST_OF_RESOLVER, LAST_OF_RESOLVER = "-model-blessing-resolver", "-model-resolver"
# Set by a rehearsal in every task: the folder for the logs of the replicas.
REHEARSAL_VARIABLE = "VERTEX_REHEARSAL_LOGS"


def rehearsing() -> bool:
    """Return whether this process is a task of a rehearsal."""
    return bool(os.environ.get(REHEARSAL_VARIABLE))


def node_of(task: str) -> str:
    """Return the node of the graph that a task of the compiled job belongs to."""
    return task.removesuffix(FIRST_OF_RESOLVER).removesuffix(LAST_OF_RESOLVER)
