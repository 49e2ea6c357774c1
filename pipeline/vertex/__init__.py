"""What only Vertex AI needs: settings, compiling, preflight, submitting, waiting, rehearsal."""

# What compiling writes to a folder and submitting reads from it: the PipelineJob, and {file here: address}.
JOB = "pipeline_job.json"
UPLOADS = "uploads.json"
