"""Upload what a compiled job needs, and submit it: once, however often that is repeated while it runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format

from pipeline.settings.target import Vertex
from pipeline.vertex import JOB, UPLOADS
from pipeline.vertex.cloud import ENDED_STATES, FAILURES, RETRY, Cloud, explained, explaining

SUBMISSION = "submission"
SECONDS_FOR_CONTEXT = 60.0


@dataclass(frozen=True)
class Submitted:
    """A job that was submitted.

    Attributes:
        name: "projects/P/locations/R/pipelineJobs/ID".
        already: Whether the same job was submitted before and has not ended.
    """

    name: str
    already: bool


def submit(folder: Path, vertex: Vertex, cloud: Cloud, note: Callable[[str], None]) -> Submitted:
    """Submit what ``pipeline.vertex.pipelines.compile`` wrote to a folder.

    The id of the job is made of its content, so that two submissions of the same content are one job as long as that
    runs. Once it has ended, the same content may run again, as the next in number.

    Args:
        folder: With pipeline_job.json and uploads.json.
        vertex: Service account, network, labels and policies of the job.
        cloud: Where to submit.
        note: Receives a line about what is uploaded, and when the job could not be added to its experiment.

    Raises:
        UserError: Google Cloud refuses, or cannot be reached.
    """
    with explaining(f"uploading to gs://{vertex.bucket}"):
        upload(folder, cloud, note)
    job, fingerprint = job_of(folder, vertex)
    with explaining("submitting the job"):
        submitted = _create(job, fingerprint, cloud)
    if vertex.experiment and not submitted.already:
        try:
            _add_to_experiment(submitted.name, vertex.experiment, cloud)
        except FAILURES as error:
            note(f"the job runs, but not in its experiment: {explained(error, f'adding it to {vertex.experiment}')}")
    return submitted


def upload(folder: Path, cloud: Cloud, note: Callable[[str], None]) -> None:
    """Upload the files of a compiled job; pass over those in the bucket, whose addresses hold a digest.

    Args:
        folder: With uploads.json, {file here: gs://bucket/name}.
        cloud: Project of the bucket.
        note: Receives a line about how much there is to upload.
    """
    client = cloud.storage()
    missing = []
    for name_here, address in json.loads((folder / UPLOADS).read_text(encoding="utf-8")).items():
        file = Path(name_here)
        bucket, _, name = address.removeprefix("gs://").partition("/")
        blob = client.bucket(bucket).get_blob(name)
        if blob is None or blob.size != file.stat().st_size:
            missing.append((file, client.bucket(bucket).blob(name)))
    if missing:
        size = sum(file.stat().st_size for file, _ in missing)
        note(f"uploading {len(missing)} files, {size / 1e6:,.1f} MB")
    for file, blob in missing:
        blob.upload_from_filename(str(file))


def console_url(name: str) -> str:
    """Return the page of a pipeline job in Google Cloud's console."""
    _, project, _, region, _, job_id = name.split("/")
    return f"https://console.cloud.google.com/vertex-ai/locations/{region}/pipelines/runs/{job_id}?project={project}"


def job_of(folder: Path, vertex: Vertex) -> tuple[v1.PipelineJob, str]:
    """Return the compiled job as it is submitted, and a fingerprint of all that is in it."""
    compiled = json.loads((folder / JOB).read_text(encoding="utf-8"))
    job = v1.PipelineJob(
        display_name=compiled["displayName"],
        labels={**compiled.get("labels", {}), **vertex.labels},
        service_account=vertex.service_account or "",
        network=vertex.network or "",
    )
    message = v1.PipelineJob.pb(job)
    json_format.ParseDict(compiled["pipelineSpec"], message.pipeline_spec)
    json_format.ParseDict(compiled["runtimeConfig"], message.runtime_config)
    if vertex.encryption_key:
        job.encryption_spec = v1.EncryptionSpec(kms_key_name=vertex.encryption_key)
    content = json.dumps([json_format.MessageToDict(message), vertex.experiment], sort_keys=True)
    fingerprint = hashlib.sha256(content.encode()).hexdigest()[:12]
    job.labels[SUBMISSION] = fingerprint
    return job, fingerprint


def _create(job: v1.PipelineJob, fingerprint: str, cloud: Cloud) -> Submitted:
    client = cloud.client(v1.PipelineServiceClient)
    same_content = v1.ListPipelineJobsRequest(
        parent=cloud.parent,
        filter=f'labels.{SUBMISSION}="{fingerprint}"',
        order_by="create_time desc",
        page_size=1,
    )
    newest = next(iter(client.list_pipeline_jobs(same_content, retry=RETRY)), None)
    if newest and newest.state not in ENDED_STATES:
        return Submitted(newest.name, already=True)
    number = int(newest.name.rpartition("-")[2]) + 1 if newest else 1
    job_id = f"{job.pipeline_spec['pipelineInfo']['name']}-{fingerprint}-{number}"
    try:
        created = client.create_pipeline_job(
            parent=cloud.parent, pipeline_job=job, pipeline_job_id=job_id, retry=RETRY, timeout=60.0
        )
    except exceptions.AlreadyExists:
        # Submitted at the same moment by someone else, or by us with the answer lost.
        return Submitted(f"{cloud.parent}/pipelineJobs/{job_id}", already=True)
    return Submitted(created.name, already=False)


def _add_to_experiment(name: str, experiment: str, cloud: Cloud) -> None:
    """Show the run in a Vertex AI Experiment, as the SDK's ``PipelineJob.submit(experiment=...)`` does."""
    client = cloud.client(v1.MetadataServiceClient)
    store = f"{cloud.parent}/metadataStores/default"
    context = v1.Context(
        display_name=experiment,
        schema_title="system.Experiment",
        schema_version="0.0.1",
        metadata={"experiment_deleted": False},
    )
    with contextlib.suppress(exceptions.AlreadyExists):
        client.create_context(parent=store, context=context, context_id=experiment, retry=RETRY)
    run = f"{store}/contexts/{name.rpartition('/')[2]}"
    until = time.monotonic() + SECONDS_FOR_CONTEXT
    while True:
        try:
            client.get_context(name=run, retry=RETRY)
            break
        except exceptions.NotFound:  # Vertex AI makes it when it starts the job
            if time.monotonic() > until:
                raise
            time.sleep(1)
    client.add_context_children(context=f"{store}/contexts/{experiment}", child_contexts=[run], retry=RETRY)
