"""Upload what a compiled job needs, and submit it, once however often that is repeated; or schedule it."""

import base64
import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any, Literal, NamedTuple

import google_crc32c
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format

from pipeline.errors import UserError
from pipeline.settings.target import Vertex
from pipeline.vertex import JOB, UPLOADS
from pipeline.vertex.cloud import ENDED_STATES, FAILURES, RETRY, Cloud, explained, explaining

SUBMISSION = "submission"
UPLOADS_AT_ONCE = 8
SECONDS_FOR_CONTEXT, SECONDS_FOR_STORE = 60.0, 300.0


class Submitted(NamedTuple):
    """A job that was submitted."""

    name: str  # "projects/P/locations/R/pipelineJobs/ID"
    already: bool  # the same job was submitted before and has not ended


def submit(folder: Path, vertex: Vertex, cloud: Cloud, note: Callable[[str], None]) -> Submitted:
    """Submit what ``compile`` wrote to a folder; two submissions of the same content are one job as long as it runs."""
    with explaining(f"uploading to gs://{vertex.bucket}"):
        upload(folder, cloud, note)
    job, fingerprint = job_of(folder, vertex)
    job.preflight_validations = True  # what can be seen to be wrong is said before the job is made
    with explaining("submitting the job"):
        submitted = _create(job, fingerprint, cloud)
    if vertex.experiment and not submitted.already:
        try:
            _add_to_experiment(submitted.name, vertex.experiment, vertex.encryption_key, cloud)
        except (*FAILURES, futures.TimeoutError) as error:
            note(f"the job runs, but not in its experiment: {explained(error, f'adding it to {vertex.experiment}')}")
    return submitted


def upload(folder: Path, cloud: Cloud, note: Callable[[str], None]) -> None:
    """Upload the files of a compiled job; pass over those that are in the bucket already, byte for byte."""
    client = cloud.storage()

    def missing(name_here: str, address: str) -> tuple[Path, Any, int] | None:
        file = Path(name_here)
        bucket, _, name = address.removeprefix("gs://").partition("/")
        blob = client.bucket(bucket).get_blob(name)
        if blob is not None and blob.size == file.stat().st_size and blob.crc32c == _crc32c(file):
            return None
        # Written only if its generation is still this one; 0 means that it does not exist.
        return file, client.bucket(bucket).blob(name), blob.generation if blob else 0

    def write(file: Path, blob: Any, generation: int) -> None:
        try:
            blob.upload_from_filename(str(file), if_generation_match=generation)
        except exceptions.PreconditionFailed as error:
            blob.reload()
            if blob.crc32c != _crc32c(file):
                raise UserError(
                    f"gs://{blob.bucket.name}/{blob.name} was written by somebody else at the same moment, with other "
                    "content; submit again, and if that does not help look for who else writes there"
                ) from error

    addresses = json.loads((folder / UPLOADS).read_text(encoding="utf-8"))
    with futures.ThreadPoolExecutor(UPLOADS_AT_ONCE) as pool:  # of many small images, the most time is waited
        to_write = [found for found in pool.map(missing, *zip(*addresses.items(), strict=True)) if found]
        if to_write:
            size = sum(file.stat().st_size for file, *_ in to_write)
            note(f"uploading {len(to_write)} files, {size / 1e6:,.1f} MB")
            list(pool.map(write, *zip(*to_write, strict=True)))


def _crc32c(file: Path) -> str:
    """Return the checksum of a file as Cloud Storage writes it: cloud.google.com/storage/docs/data-validation."""
    checksum = google_crc32c.Checksum()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            checksum.update(block)
    return base64.b64encode(checksum.digest()).decode()


def console_url(name: str) -> str:
    """Return the page of a pipeline job in Google Cloud's console."""
    _, project, _, region, _, job_id = name.split("/")
    return f"https://console.cloud.google.com/vertex-ai/locations/{region}/pipelines/runs/{job_id}?project={project}"


def job_of(folder: Path, vertex: Vertex) -> tuple[v1.PipelineJob, str]:
    """Return the compiled job as it is submitted, and a fingerprint of its content."""
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
    same_content = v1.ListPipelineJobsRequest(parent=cloud.parent, filter=f'labels.{SUBMISSION}="{fingerprint}"')
    # Those that a schedule has started are among them; their ids are Vertex AI's.
    jobs = list(cloud.client(v1.PipelineServiceClient).list_pipeline_jobs(same_content, retry=RETRY))
    running = next((job for job in jobs if job.state not in ENDED_STATES), None)
    if running:
        return Submitted(running.name, already=True)
    stem = f"{job.pipeline_spec['pipelineInfo']['name']}-{fingerprint}-"
    ours = [re.fullmatch(rf"{re.escape(stem)}(\d+)", job.name.rpartition("/")[2]) for job in jobs]
    job_id = f"{stem}{1 + max((int(match[1]) for match in ours if match), default=0)}"
    return create_job(job, job_id, cloud)


def create_job(job: v1.PipelineJob, job_id: str, cloud: Cloud) -> Submitted:
    """Create a job under an id of ours, once however often that is repeated."""
    client = cloud.client(v1.PipelineServiceClient)
    try:
        created = client.create_pipeline_job(
            parent=cloud.parent, pipeline_job=job, pipeline_job_id=job_id, retry=RETRY, timeout=60.0
        )
    except exceptions.AlreadyExists:
        # Submitted at the same moment by someone else, or by us with the answer lost.
        created = client.get_pipeline_job(name=f"{cloud.parent}/pipelineJobs/{job_id}", retry=RETRY)
        return Submitted(created.name, already=True)
    except exceptions.InvalidArgument as error:
        found = re.findall(r"message=(.*), cause=null", str(error))  # in the details of a refusal by the validations
        if not found:
            raise
        raise UserError("\n  ".join(["Vertex AI's validations of the job found:", *found])) from error
    return Submitted(created.name, already=False)


def _add_to_experiment(name: str, experiment: str, encryption_key: str | None, cloud: Cloud) -> None:
    """Show the run in a Vertex AI Experiment, as the SDK's ``PipelineJob.submit(experiment=...)`` does."""
    client = cloud.client(v1.MetadataServiceClient)
    store = _metadata_store(client, encryption_key, cloud)
    context = v1.Context(
        display_name=experiment,
        schema_title="system.Experiment",
        schema_version="0.0.1",
        metadata={"experiment_deleted": False},
    )
    try:
        created = client.create_context(parent=store, context=context, context_id=experiment, retry=RETRY)
    except exceptions.AlreadyExists:
        created = client.get_context(name=f"{store}/contexts/{experiment}", retry=RETRY)
    if created.schema_title != context.schema_title:
        raise exceptions.FailedPrecondition(f"{created.name} is there, and is no experiment: {created.schema_title}")
    jobs = cloud.client(v1.PipelineServiceClient)
    until = time.monotonic() + SECONDS_FOR_CONTEXT
    # Vertex AI makes the context of the run when it starts the job.
    while not (run := jobs.get_pipeline_job(name=name, retry=RETRY).job_detail.pipeline_run_context.name):
        if time.monotonic() > until:
            raise exceptions.NotFound(f"the job has no context after {SECONDS_FOR_CONTEXT:.0f} s")
        time.sleep(1)
    client.add_context_children(context=created.name, child_contexts=[run], retry=RETRY)


def _metadata_store(client: v1.MetadataServiceClient, encryption_key: str | None, cloud: Cloud) -> str:
    """Return the name of the default metadata store, which a new project does not have: then it is made."""
    name = f"{cloud.parent}/metadataStores/default"
    try:
        client.get_metadata_store(name=name, retry=RETRY)
    except exceptions.NotFound:
        key = v1.EncryptionSpec(kms_key_name=encryption_key) if encryption_key else None
        with contextlib.suppress(exceptions.AlreadyExists):  # the job has made it meanwhile
            client.create_metadata_store(
                parent=cloud.parent,
                metadata_store=v1.MetadataStore(encryption_spec=key),
                metadata_store_id="default",
                retry=RETRY,
            ).result(timeout=SECONDS_FOR_STORE)
    return name


Change = Literal["pause", "resume", "delete"]
SECONDS_TO_DELETE = 300.0


def create_schedule(
    folder: Path, vertex: Vertex, name: str, cron: str, cloud: Cloud, note: Callable[[str], None]
) -> v1.Schedule:
    """Create the one schedule of a pipeline, or change it to the job compiled to ``folder`` and these times.

    ``cron`` is as Vertex AI takes it: cloud.google.com/vertex-ai/docs/pipelines/schedule-pipeline-run
    """
    upload(folder, cloud, note)
    job, _ = job_of(folder, vertex)
    schedule = v1.Schedule(
        display_name=name,
        cron=cron,
        create_pipeline_job_request=v1.CreatePipelineJobRequest(parent=cloud.parent, pipeline_job=job),
        # A run that takes longer than the time between two is not joined by a second one, which would push as well.
        # The first number only limits how many are being started, the second how many have not ended.
        max_concurrent_run_count=1,
        max_concurrent_active_run_count=1,
    )
    client = cloud.client(v1.ScheduleServiceClient)
    existing = [schedule for schedule in list_schedules(cloud) if schedule.display_name == name]
    if len(existing) > 1:
        names = ", ".join(schedule.name for schedule in existing)
        raise UserError(f"{len(existing)} schedules are called {name}; delete all but one: {names}")
    if existing:
        schedule.name = existing[0].name
        paths = [
            "cron",
            "create_pipeline_job_request",
            "max_concurrent_run_count",
            "max_concurrent_active_run_count",
        ]
        schedule = client.update_schedule(schedule=schedule, update_mask={"paths": paths}, retry=RETRY)
    else:
        schedule = client.create_schedule(parent=cloud.parent, schedule=schedule)
    note(f"{'changed' if existing else 'created'} the schedule\n{described(schedule)}")
    return schedule


def list_schedules(cloud: Cloud) -> list[v1.Schedule]:
    """Return all schedules of the project in the region."""
    return list(cloud.client(v1.ScheduleServiceClient).list_schedules(parent=cloud.parent, retry=RETRY))


def described(schedule: v1.Schedule) -> str:
    """Return the lines of a schedule for the terminal."""
    state = schedule.state.name.lower()
    start = f"{schedule.next_run_time:%Y-%m-%d %H:%M UTC}" if schedule.next_run_time and state == "active" else ""
    runs = f"{schedule.started_run_count} runs so far{f', next {start}' if start else ''}"
    return f"{schedule.display_name}  {state}  {schedule.cron!r}, {runs}\n  {schedule.name}"


def change_schedule(name: str, change: Change, cloud: Cloud) -> v1.Schedule | None:
    """Pause, resume or delete a schedule, given by its pipeline, resource name or id; return it unless deleted."""
    client = cloud.client(v1.ScheduleServiceClient)
    schedules = list_schedules(cloud)
    # A resource name may have the project's id where Vertex AI's answers have its number.
    matching = [s for s in schedules if name == s.display_name or name.rpartition("/")[2] == s.name.rpartition("/")[2]]
    if len(matching) != 1:
        names = ", ".join(sorted(schedule.display_name for schedule in schedules)) or "none"
        remedy = "give its resource name, as the command schedules shows it" if matching else f"there are: {names}"
        raise UserError(f"{len(matching) or 'no'} schedules are called {name}; {remedy}")
    (schedule,) = matching
    if change == "delete":
        try:
            client.delete_schedule(name=schedule.name).result(timeout=SECONDS_TO_DELETE)
        except futures.TimeoutError as error:
            raise UserError(
                f"{schedule.name} is not deleted after {SECONDS_TO_DELETE:.0f} s; list the schedules later"
            ) from error
        return None
    if change == "pause":
        client.pause_schedule(name=schedule.name, retry=RETRY)
    elif schedule.state != v1.Schedule.State.ACTIVE:
        # What was missed meanwhile is not made up for: the newest data is what there is to train on.
        client.resume_schedule(request=v1.ResumeScheduleRequest(name=schedule.name, catch_up=False), retry=RETRY)
    return client.get_schedule(name=schedule.name, retry=RETRY)


def start_now(name: str, cloud: Cloud) -> str:
    """Start the job of a schedule now; return its resource name."""
    request = next((s.create_pipeline_job_request for s in list_schedules(cloud) if s.display_name == name), None)
    if request is None:
        raise UserError(
            f"there is no schedule {name}, whose job would be started; create one with "
            "python vertex_runner.py schedule CRON"
        )
    job = request.pipeline_job
    job_id = f"{job.pipeline_spec['pipelineInfo']['name']}-{time.strftime('%Y%m%d%H%M%S', time.gmtime())}"
    return create_job(job, job_id, cloud).name
