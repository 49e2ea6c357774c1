"""Machines that train for nobody: jobs whose run has ended or that take far too long, and persistent resources."""

import datetime
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from pipeline.costs.prices import HOURS_A_MONTH
from pipeline.vertex.cloud import ENDED_STATES, RETRY
from pipeline.vertex.pipelines.idle import rates
from pipeline.vertex.pipelines.idle.finding import Idle, Scope, last_part

# Times the longest of the earlier jobs; and hours where there is none, which is when our own jobs are ended.
PATIENCE = 2.0
LONGEST_FIRST = 24.0
# "The maximum job running time. The default is 7 days" (Scheduling.timeout).
DEFAULT_TIMEOUT = 7 * 24.0
# .../artifacts/<number of the project>/<run>/<task>/job: pipeline.vertex.jobs.launch
RUN_OF_FOLDER = re.compile(r"gs://[^/]+/[^/]+/artifacts/[^/]+/([^/]+)/.*")


@dataclass(frozen=True)
class Kind:
    """A kind of job.

    Attributes:
        name: In words.
        method: How the client's method that lists them ends.
        group: Gcloud's name of them.
        spec_of: Returns the machines and folder of a job.
        at_once: Returns how many times these run side by side.
    """

    name: str
    method: str
    group: str
    spec_of: Callable[[Any], v1.CustomJobSpec]
    at_once: Callable[[Any], int]


KINDS = (
    Kind("job", "custom_jobs", "custom-jobs", lambda job: job.job_spec, lambda job: 1),
    Kind(
        "tuning job",
        "hyperparameter_tuning_jobs",
        "hp-tuning-jobs",
        lambda job: job.trial_job_spec,
        lambda job: int(job.parallel_trial_count),
    ),
)


def look(scope: Scope) -> Iterator[Idle]:
    """Yield the running jobs whose run has ended, and those that take longer than jobs like them.

    Raises:
        GoogleAPICallError: they may not be listed.
    """
    client = scope.cloud.client(v1.JobServiceClient)
    for kind in KINDS:
        for job in _listed(client, kind, 'state="JOB_STATE_RUNNING"', scope):
            started = job.start_time or job.create_time
            hours = _hours(started, scope.now)
            spec = kind.spec_of(job)
            # On a persistent resource it is that which is paid for.
            why = (
                ""
                if spec.persistent_resource_id
                else _orphaned(spec, scope) or _too_long(job, kind, hours, scope, client)
            )
            if not why:
                continue
            spot = spec.scheduling.strategy == v1.Scheduling.Strategy.SPOT
            timeout = spec.scheduling.timeout.total_seconds() / 3600 or DEFAULT_TIMEOUT
            left = min(max(0.0, timeout - hours), HOURS_A_MONTH)
            pools = [(pool.machine_spec, pool.replica_count * kind.at_once(job)) for pool in spec.worker_pool_specs]
            machines, price = rates.of_machines(pools, scope, "training", spot, left)
            yield Idle(
                f"{kind.name} {job.display_name}, {last_part(job.name)}",
                f"runs for {hours:,.0f} h on {machines}, {why}; ends by itself in {left:,.0f} h",
                price,
                scope.gcloud("ai", kind.group, "cancel", last_part(job.name)),
            )


def look_at_persistent(scope: Scope) -> Iterator[Idle]:
    """Yield the persistent resources on which nothing runs; no pipeline of ours makes one.

    Raises:
        GoogleAPICallError: they may not be listed.
    """
    client = scope.cloud.client(v1.PersistentResourceServiceClient)
    for resource in client.list_persistent_resources(parent=scope.cloud.parent, retry=RETRY):
        pools = resource.resource_pools
        if resource.state != v1.PersistentResource.State.RUNNING or any(pool.used_replica_count for pool in pools):
            continue
        standing = [(pool.machine_spec, pool.replica_count) for pool in pools]
        machines, price = rates.of_machines(standing, scope, "training")
        name = last_part(resource.name)
        command = scope.gcloud("ai", "persistent-resources", "delete", name)
        yield Idle(
            f"persistent resource {resource.display_name or name}", f"nothing runs on {machines}", price, command
        )


def _listed(client: v1.JobServiceClient, kind: Kind, conditions: str, scope: Scope) -> Iterator[Any]:
    """Yield the jobs that a filter finds and that are looked at: ours have their folder below the pipeline's."""
    request = {"parent": scope.cloud.parent, "filter": conditions}
    for job in getattr(client, f"list_{kind.method}")(request=request, retry=RETRY):
        folder = kind.spec_of(job).base_output_directory.output_uri_prefix
        if scope.whole or folder.startswith(f"gs://{scope.bucket}/{scope.pipeline}/"):
            yield job


def _orphaned(spec: v1.CustomJobSpec, scope: Scope) -> str:
    """Return what shows that nobody waits for a job any more; "" if somebody may."""
    run = RUN_OF_FOLDER.fullmatch(spec.base_output_directory.output_uri_prefix)
    if not run:
        return ""
    client = scope.cloud.client(v1.PipelineServiceClient)
    try:
        job = client.get_pipeline_job(name=f"{scope.cloud.parent}/pipelineJobs/{run[1]}", retry=RETRY)
    except exceptions.NotFound:
        return f"its run {run[1]} was deleted"
    except exceptions.InvalidArgument:
        return ""  # the folder of another tool, whose part is no id of a job
    return f"its run {run[1]} has ended" if job.state in ENDED_STATES else ""


def _too_long(job: Any, kind: Kind, hours: float, scope: Scope, client: v1.JobServiceClient) -> str:
    """Return what shows that a job takes longer than it should; "" if it does not."""
    like_it = f'state="JOB_STATE_SUCCEEDED" AND display_name={json.dumps(job.display_name, ensure_ascii=False)}'
    taken = [
        _hours(earlier.start_time, earlier.end_time)
        for earlier in _listed(client, kind, like_it, scope)
        if earlier.start_time and earlier.end_time
    ]
    if hours <= max(1.0, PATIENCE * max(taken)) if taken else hours <= LONGEST_FIRST:
        return ""
    return f"the longest before took {max(taken):,.1f} h" if taken else f"over {LONGEST_FIRST:.0f} h"


def _hours(start: datetime.datetime, end: datetime.datetime) -> float:
    return (end - start).total_seconds() / 3600
