"""What only Vertex AI needs: settings, compiling, preflight, submitting, waiting, rehearsal."""

# What compiling writes to a folder and submitting reads from it: the PipelineJob, and {file here: address}.
JOB = "pipeline_job.json"
UPLOADS = "uploads.json"
# TFX makes two tasks of the resolver of the latest blessed model: one finds the blessing, one the model it is of.
FIRST_OF_RESOLVER, LAST_OF_RESOLVER = "-model-blessing-resolver", "-model-resolver"


def node_of(task: str) -> str:
    """The node of the graph that a task of the compiled job belongs to."""
    return task.removesuffix(FIRST_OF_RESOLVER).removesuffix(LAST_OF_RESOLVER)
