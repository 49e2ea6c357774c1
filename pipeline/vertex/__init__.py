"""What only Vertex AI needs; here are the names that its rooms share."""

import os

# What compiling writes to a folder and submitting reads from it: the PipelineJob, and {file here: address}.
JOB = "pipeline_job.json"
UPLOADS = "uploads.json"
# The task after all others, which is no node of the graph: see ``pipeline.vertex.pipelines.ending``.
ENDING, REPORT = "Report", "report"
# The one task of monitoring: see ``pipeline.vertex.pipelines.monitoring``.
MONITOR = "Monitor"
# What Vertex AI puts the resource name of the job in place of.
JOB_NAME = "{{$.pipeline_job_resource_name}}"
# TFX makes two tasks of the resolver of the latest blessed model: one finds the blessing, one the model it is of.
FIRST_OF_RESOLVER, LAST_OF_RESOLVER = "-model-blessing-resolver", "-model-resolver"
# Set by a rehearsal in every task: the folder for the logs of the replicas.
REHEARSAL_VARIABLE = "VERTEX_REHEARSAL_LOGS"


def rehearsing() -> bool:
    """Return whether this process is a task of a rehearsal."""
    return bool(os.environ.get(REHEARSAL_VARIABLE))


def node_of(task: str) -> str:
    """The node of the graph that a task of the compiled job belongs to."""
    return task.removesuffix(FIRST_OF_RESOLVER).removesuffix(LAST_OF_RESOLVER)
