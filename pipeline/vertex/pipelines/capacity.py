"""Check that a region has the machines that a run needs, and the project the quota."""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from google.api_core import exceptions

from pipeline.settings.endpoint import Endpoint
from pipeline.settings.machines import Job
from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines.finding import Finding, State

MORE_QUOTA = "ask for more at https://console.cloud.google.com/iam-admin/quotas, or take fewer machines"
# Accelerators in the names of quota metrics, where it is not the accelerator's own name without "TESLA": as Google's
# samples have them (GoogleCloudPlatform/vertex-ai-samples, notebook_util/common_util.py) and
# cloud.google.com/vertex-ai/docs/training/schedule-jobs-dws#quota
METRICS = {
    "NVIDIA_H100_80GB": "nvidia_h100_gpus",
    "NVIDIA_H100_MEGA_80GB": "nvidia_h100_mega_gpus",
    "NVIDIA_H200_141GB": "nvidia_h200_gpus",
}
# CPUs count by the family of the machine; of other families, and of spot machines but these, no name is written down.
CPU_METRICS = {"n1": "cpus", "e2": "cpus", "n2": "n2_cpus", "c2": "c2_cpus"}
CPUS = r"(n1|e2|n2|c2)-(?:standard|highmem|highcpu)-(\d+)"
TPU_V5E = r"ct5lp-hightpu-(\d)t"  # and its number of chips


def check_machines(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """Check that the region has the machines and accelerators; their combinations were checked with the table."""
    types, accelerators = _needed(vertex)
    missing = []
    for kind, names in (("machineTypes", types), ("acceleratorTypes", accelerators)):
        for name in sorted(names):
            path = f"compute/v1/projects/{vertex.project}/aggregated/{kind}?{urlencode({'filter': f'name={name}'})}"
            items = {zone: content for page in cloud.pages("compute", path) for zone, content in page["items"].items()}
            zones = {zone.rpartition("/")[2] for zone, content in items.items() if content.get(kind)}
            if not any(zone.startswith(f"{vertex.region}-") for zone in zones):
                regions = sorted({zone.rpartition("-")[0] for zone in zones})
                missing.append(f"{name} (in {', '.join(regions[:4]) or 'no region'})")
    if missing:
        remedy = "take another machine in the table of machines, or another --region"
        yield Finding("wrong", f"{vertex.region} does not have {'; '.join(missing)}", remedy)
    elif types or accelerators:
        yield Finding("ok", ", ".join(sorted(types | accelerators)))


def _needed(vertex: Vertex) -> tuple[set[str], set[str]]:
    """Return the machine and accelerator types, as Compute Engine names them."""
    table = vertex.machines
    types, accelerators = set(), {resources.accelerator for resources in table.tasks.values()}
    users: tuple[Job | Endpoint | None, ...] = (table.training, table.tuning, vertex.endpoint)
    for user in users:
        if user:
            types.add(user.machine_type)
            accelerators.add(user.accelerator)
    for job in filter(None, (table.training, table.tuning)):
        if job.reduction_servers:
            types.add(job.reduction_machine_type)
    if vertex.dataflow:
        types.add(vertex.dataflow.machine_type)
    gpus = {name for name in accelerators if name and not name.startswith("TPU")}
    # cloud-tpu is Vertex AI's own name; Compute Engine does not know it.
    return types - {"cloud-tpu"}, {name.lower().replace("_", "-") for name in gpus}


def check_quota(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """Check the limits of CPUs and accelerators in training jobs, and of accelerators on the endpoint.

    A limit is no promise: what else runs in the project counts, too, and the region may have no machine left.
    """
    table = vertex.machines
    # By metric, how many are needed at a time: by one task or job after the other.
    needed: dict[str, int] = {}
    for resources in table.tasks.values():
        _add(needed, "custom_model_training", resources.accelerator, resources.accelerators)
    for job in filter(None, (table.training, table.tuning)):
        use = "custom_model_training_preemptible" if job.spot else "custom_model_training"
        cpus = re.fullmatch(CPUS, job.machine_type)
        if cpus and (not job.spot or CPU_METRICS[cpus[1]] == "cpus"):
            metric = f"{use}_{CPU_METRICS[cpus[1]]}"
            needed[metric] = max(needed.get(metric, 0), job.replicas * int(cpus[2]))
        _add(needed, use, job.accelerator, job.replicas * job.accelerators)
        if chips := re.fullmatch(TPU_V5E, job.machine_type):
            _add(needed, use, "TPU_V5E", job.replicas * int(chips[1]))
    for metric, count in needed.items():
        yield from _compare(metric, f"the job takes {count}", count, count, vertex, cloud)
    serving: dict[str, int] = {}
    if vertex.endpoint:
        count = vertex.endpoint.min_replicas * vertex.endpoint.accelerators
        _add(serving, "custom_model_serving", vertex.endpoint.accelerator, count)
    for metric, count in serving.items():
        text = f"a version takes {count}, and the canary has two versions side by side"
        yield from _compare(metric, text, count, 2 * count, vertex, cloud)


def _add(needed: dict[str, int], use: str, accelerator: str | None, count: int) -> None:
    if accelerator:
        own = accelerator.lower().replace("nvidia_tesla_", "nvidia_")
        metric = f"{use}_{METRICS.get(accelerator, f'{own}_gpus' if own.startswith('nvidia') else own)}"
        needed[metric] = max(needed.get(metric, 0), count)


def _compare(metric: str, use: str, least: int, wanted: int, vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """Compare the limit of a metric with what must be there at least, and with what should be."""
    service = f"v1beta1/projects/{vertex.project}/services/aiplatform.googleapis.com"
    # Without view=FULL a region is only there where its limit was changed.
    path = f"{service}/consumerQuotaMetrics/{quote(f'aiplatform.googleapis.com/{metric}', safe='')}?view=FULL"
    try:
        limit = _limit(cloud.request("serviceusage", path), vertex.region)
    except exceptions.NotFound:
        yield Finding("unsure", f"no limit named {metric}")
        return
    if limit is None:
        yield Finding("unsure", f"{metric} has no limit for {vertex.region}")
    elif 0 <= limit < wanted:
        state: State = "wrong" if limit < least else "unsure"
        yield Finding(state, f"{metric} is {limit} in {vertex.region}, {use}", MORE_QUOTA)
    else:
        yield Finding("ok", f"{metric}: {wanted} of {limit if limit >= 0 else 'no limit'}")


def _limit(response: Mapping[str, Any], region: str) -> int | None:
    """Return the limit of a region, or of all regions where it has none of its own; -1 means no limit."""
    general = None
    for limit in response.get("consumerQuotaLimits", []):
        for bucket in limit.get("quotaBuckets", []):
            value = int(bucket.get("effectiveLimit", 0))
            place = bucket.get("dimensions", {}).get("region")
            if place == region:
                return value
            if place is None:
                general = value
    return general
