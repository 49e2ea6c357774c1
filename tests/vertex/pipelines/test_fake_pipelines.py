"""The fake's pipelines, schedules and metadata refuse and do what Google's comments say; ``rules`` and ``engine``."""

from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from pipeline.vertex.cloud import Cloud
from tests.fakes.google_cloud import NUMBER, PROJECT, GoogleCloud

IMAGE = "europe-docker.pkg.dev/p/r/i:1"
COMPLETED = {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
FAST = v1.PipelineFailurePolicy.PIPELINE_FAILURE_POLICY_FAIL_FAST


def job_of(tasks: dict[str, dict[str, Any]], policy: Any = 0, **fields: Any) -> v1.PipelineJob:
    """A job of tasks that all run one container; with "group" a task is one of those of the task Group."""
    executors = {"one": {"container": {"image": IMAGE}}}
    groups: dict[str, dict[str, Any]] = {"": {}, "Group": {}}
    for name, task in tasks.items():
        fields_of = {key: value for key, value in task.items() if key != "group"}
        groups[task.get("group", "")][name] = {"componentRef": {"name": "one"}, **fields_of}
    components: dict[str, Any] = {"one": {"executorLabel": "one"}}
    if groups["Group"]:
        components["Group"] = {"dag": {"tasks": groups["Group"]}}
        groups[""]["Group"] = {"componentRef": {"name": "Group"}}
    spec = {
        "schemaVersion": "2.1.0",
        "pipelineInfo": {"name": "some"},
        "root": {"dag": {"tasks": groups[""]}},
        "components": components,
        "deploymentSpec": {"executors": executors},
    }
    runtime = v1.PipelineJob.RuntimeConfig(gcs_output_directory="gs://demo-bucket/x", failure_policy=policy)
    return v1.PipelineJob(pipeline_spec=spec, runtime_config=runtime, **fields)


def schedule_of(cloud: Cloud, **fields: Any) -> v1.Schedule:
    request = v1.CreatePipelineJobRequest(parent=cloud.parent, pipeline_job=job_of({"A": {}}))
    defaults = {"display_name": "some", "cron": "0 3 * * 1", "max_concurrent_run_count": 1}
    return v1.Schedule(create_pipeline_job_request=request, **{**defaults, **fields})


def create_job(cloud: Cloud, job: v1.PipelineJob, job_id: str = "") -> v1.PipelineJob:
    return cloud.client(v1.PipelineServiceClient).create_pipeline_job(
        parent=cloud.parent, pipeline_job=job, pipeline_job_id=job_id
    )


def create_schedule(cloud: Cloud, **fields: Any) -> v1.Schedule:
    schedule = schedule_of(cloud, **fields)
    return cloud.client(v1.ScheduleServiceClient).create_schedule(parent=cloud.parent, schedule=schedule)


def update_schedule(cloud: Cloud, *paths: str, **fields: Any) -> v1.Schedule:
    schedule = create_schedule(cloud)
    for name, value in fields.items():
        setattr(schedule, name, value)
    client = cloud.client(v1.ScheduleServiceClient)
    return client.update_schedule(schedule=schedule, update_mask={"paths": list(paths)})


def create_context(cloud: Cloud, context_id: str, **fields: Any) -> v1.Context:
    client, store = cloud.client(v1.MetadataServiceClient), f"{cloud.parent}/metadataStores/default"
    client.create_metadata_store(
        parent=cloud.parent, metadata_store=v1.MetadataStore(), metadata_store_id="default"
    ).result()
    return client.create_context(parent=store, context=v1.Context(**fields), context_id=context_id)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda cloud: create_job(cloud, job_of({"A": {}}, display_name="x" * 129)), "has 129 characters, at most 128"),
        (lambda cloud: create_job(cloud, job_of({"A": {}}), "a" * 128), "bad pipeline_job_id"),
        (lambda cloud: create_job(cloud, job_of({"A": {}}), "A"), "bad pipeline_job_id"),
        (lambda cloud: create_schedule(cloud, display_name=""), "schedule.display_name is required"),
        (lambda cloud: create_schedule(cloud, display_name="x" * 129), "has 129 characters, at most 128"),
        (lambda cloud: create_schedule(cloud, max_concurrent_run_count=0), "max_concurrent_run_count is required"),
        (lambda cloud: create_schedule(cloud, cron="0 3 * *"), "has not five fields"),
        (lambda cloud: update_schedule(cloud), "update_mask is required"),
        (lambda cloud: update_schedule(cloud, "name"), "name is immutable"),
        (lambda cloud: update_schedule(cloud, "crone"), "there is no field 'crone'"),
        (lambda cloud: update_schedule(cloud, "cron", cron=""), "cron cannot be unset"),
        (lambda cloud: create_context(cloud, "abc"), "bad context_id 'abc'"),
        (lambda cloud: create_context(cloud, "Late"), "bad context_id 'Late'"),
        (lambda cloud: create_context(cloud, "late", display_name="x" * 129), "has 129 characters, at most 128"),
    ],
)
def test_what_a_comment_forbids_is_refused(
    refused: Callable[[Cloud], Any], message: str, cloud: Cloud, there: GoogleCloud
):
    with pytest.raises(exceptions.InvalidArgument, match=message):
        refused(cloud)


def test_what_is_output_only_is_ignored(cloud: Cloud, there: GoogleCloud):
    job = create_job(cloud, job_of({"A": {}}, name="mine", schedule_name="mine"))
    assert (job.name.rpartition("/")[0], job.schedule_name) == (
        f"projects/{NUMBER}/locations/us-central1/pipelineJobs",
        "",
    )
    assert create_schedule(cloud, started_run_count=7, state=v1.Schedule.State.PAUSED).started_run_count == 0
    changed = update_schedule(cloud, "state", "cron", cron="1 3 * * 1", state=v1.Schedule.State.PAUSED)
    assert (changed.state.name, changed.cron) == ("ACTIVE", "1 3 * * 1")


def test_a_project_has_an_id_and_a_number_and_names_have_the_number(cloud: Cloud, there: GoogleCloud):
    client = cloud.client(v1.PipelineServiceClient)
    name = create_job(cloud, job_of({"A": {}}), "some-1").name
    assert name == f"projects/{NUMBER}/locations/us-central1/pipelineJobs/some-1"
    assert client.get_pipeline_job(name=name.replace(NUMBER, PROJECT)).name == name


def test_a_list_has_pages_and_no_details(cloud: Cloud, there: GoogleCloud):
    client = cloud.client(v1.PipelineServiceClient)
    names = [create_job(cloud, job_of({"A": {}})).name for _ in range(3)]
    client.get_pipeline_job(name=names[0])
    listed = list(client.list_pipeline_jobs(parent=cloud.parent))
    assert [job.name for job in listed] == names[::-1]
    assert not any(job.job_detail.task_details for job in listed)
    assert there.vertex.count("ListPipelineJobs") == 3


def test_jobs_are_listed_by_label_and_another_filter_is_refused(cloud: Cloud):
    client = cloud.client(v1.PipelineServiceClient)
    names = [create_job(cloud, job_of({"A": {}}, labels={"team": name})).name for name in "ab"]
    request = {"parent": cloud.parent, "filter": 'labels.team="a"'}
    assert [job.name for job in client.list_pipeline_jobs(request=request)] == names[:1]
    for condition in ("labels.team=a", 'pipeline_spec="x"', 'labels.team>"a"'):
        with pytest.raises(exceptions.InvalidArgument, match="filter"):
            list(client.list_pipeline_jobs(request=request | {"filter": condition}))


def test_a_schedule_is_paused_once_and_resumed_only_then(cloud: Cloud, there: GoogleCloud):
    client, name = cloud.client(v1.ScheduleServiceClient), create_schedule(cloud).name
    with pytest.raises(exceptions.InvalidArgument, match="the schedule is ACTIVE"):
        client.resume_schedule(name=name)
    client.pause_schedule(name=name)
    assert there.vertex.run_schedule(name) is None
    there.vertex.schedules[name].state = v1.Schedule.State.COMPLETED
    for change in (client.pause_schedule, client.resume_schedule):
        with pytest.raises(exceptions.InvalidArgument, match="the schedule is COMPLETED"):
            change(name=name)


def test_only_the_active_limit_holds_back_a_run(cloud: Cloud, there: GoogleCloud):
    one_started, one_active = create_schedule(cloud), create_schedule(cloud, max_concurrent_active_run_count=1)
    assert [there.vertex.run_schedule(one_started.name) is None for _ in range(2)] == [False, False]
    assert [there.vertex.run_schedule(one_active.name) is None for _ in range(2)] == [False, True]


def test_an_operation_pends_and_another_on_the_same_resource_is_refused(cloud: Cloud, there: GoogleCloud):
    client, name = cloud.client(v1.ScheduleServiceClient), create_schedule(cloud).name
    first = client.delete_schedule(name=name)
    assert name in there.vertex.schedules
    with pytest.raises(exceptions.Aborted, match="is being changed by another operation"):
        client.delete_schedule(name=name)
    first.result(timeout=120)
    assert there.vertex.schedules == {}


def test_there_is_no_context_without_a_metadata_store_and_no_ring_of_contexts(cloud: Cloud, there: GoogleCloud):
    client, store = cloud.client(v1.MetadataServiceClient), f"{cloud.parent}/metadataStores/default"
    with pytest.raises(exceptions.NotFound, match="metadataStores/default does not exist"):
        client.create_context(parent=store, context=v1.Context(), context_id="late")
    parent = create_context(cloud, "late").name
    child = client.create_context(parent=store, context=v1.Context(), context_id="early").name
    for _ in range(2):
        client.add_context_children(context=parent, child_contexts=[child])
    assert there.vertex.children == {parent: [child]}
    with pytest.raises(exceptions.InvalidArgument, match="a cycle"):
        client.add_context_children(context=child, child_contexts=[parent])


def states(cloud: Cloud, job: v1.PipelineJob, steps: int = 20, cancel_after: int | None = None) -> dict[str, str]:
    """Return how the tasks of a job ended; the job itself is called "job"."""
    client = cloud.client(v1.PipelineServiceClient)
    name = create_job(cloud, job, "some-1").name
    for step in range(steps):
        if step == cancel_after:
            client.cancel_pipeline_job(name=name)
        job = client.get_pipeline_job(name=name)
    ended = {task.task_name: task.state.name for task in job.job_detail.task_details}
    ended["job"] = job.state.name.removeprefix("PIPELINE_STATE_")
    del ended["some-1"]  # the whole pipeline
    return ended


EXIT = {"Exit": {"dependentTasks": ["Group"], "triggerPolicy": COMPLETED}}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            0,
            {
                "A": "FAILED",
                "C": "SUCCEEDED",
                "D": "SUCCEEDED",
                "Group": "FAILED",
                "Exit": "SUCCEEDED",
                "job": "FAILED",
            },
        ),
        (FAST, {"A": "FAILED", "C": "SUCCEEDED", "Group": "FAILED", "job": "FAILED"}),
    ],
)
def test_after_a_failed_task_fast_starts_nothing_and_slow_what_it_can_and_the_exit_handler(
    policy: Any, expected: dict[str, str], cloud: Cloud, there: GoogleCloud
):
    there.vertex.script.failing_tasks = {"A": "no"}
    tasks = {
        "A": {"group": "Group"},
        "B": {"group": "Group", "dependentTasks": ["A"]},
        "C": {"group": "Group"},  # is scheduled already, and "will continue to completion"
        "D": {"group": "Group", "dependentTasks": ["C"]},
    }
    assert states(cloud, job_of({**tasks, **EXIT}, policy)) == expected


def test_a_task_that_waits_for_all_others_waits_in_vain_for_those_that_never_started(cloud: Cloud, there: GoogleCloud):
    there.vertex.script.failing_tasks = {"A": "no"}
    tasks = {
        "A": {},
        "B": {"dependentTasks": ["A"]},
        "Last": {"dependentTasks": ["A", "B"], "triggerPolicy": COMPLETED},
    }
    assert states(cloud, job_of(tasks)) == {"A": "FAILED", "job": "FAILED"}


def test_a_job_that_is_being_cancelled_starts_nothing_its_exit_handler_neither(cloud: Cloud, there: GoogleCloud):
    tasks = {"A": {"group": "Group"}, "B": {"group": "Group", "dependentTasks": ["A"]}, **EXIT}
    assert states(cloud, job_of(tasks), cancel_after=2) == {"A": "CANCELLED", "Group": "CANCELLED", "job": "CANCELLED"}
