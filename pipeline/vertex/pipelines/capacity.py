"""Check that a region has the machines that a run needs, and the project the quota."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from google.api_core import exceptions

from pipeline.settings.target import Vertex
from pipeline.vertex.cloud import Cloud

State = Literal["ok", "wrong", "unsure"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        state: "ok", "wrong", or "unsure" when it cannot be told; that does not stop a run.
        text: What was found, and expected.
        remedy: What to do; empty when there is nothing.
        subject: What was checked, such as "bucket".
    """

    state: State
    text: str
    remedy: str = ""
    subject: str = ""


def check_machines(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """Check that the region has the machines and accelerators; their combinations were checked with the table."""
    types, accelerators = _needed(vertex)
    missing = []
    for kind, names in (("machineTypes", types), ("acceleratorTypes", accelerators)):
        for name in sorted(names):
            path = f"compute/v1/projects/{vertex.project}/aggregated/{kind}?filter=name={name}"
            items = cloud.request("compute", path).get("items", {})
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
    for job in filter(None, (table.training, table.tuning)):
        types.add(job.machine_type)
        accelerators.add(job.accelerator)
        if job.reduction_servers:
            types.add(job.reduction_machine_type)
    if vertex.dataflow:
        types.add(vertex.dataflow.machine_type)
    gpus = {name for name in accelerators if name and not name.startswith("TPU")}
    # cloud-tpu is Vertex AI's own name; Compute Engine does not know it.
    return types - {"cloud-tpu"}, {name.lower().replace("_", "-") for name in gpus}


def check_quota(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """Check the limits of accelerators in training jobs; CPUs have generous ones."""
    table = vertex.machines
    uses = [(resources.accelerator, resources.accelerators, "") for resources in table.tasks.values()]
    for job in filter(None, (table.training, table.tuning)):
        uses.append((job.accelerator, job.replicas * job.accelerators, "preemptible_" if job.spot else ""))
    needed: dict[str, int] = {}
    for accelerator, count, kind in uses:
        if accelerator and accelerator.startswith("NVIDIA"):
            name = accelerator.lower().replace("nvidia_tesla_", "nvidia_")
            metric = f"custom_model_training_{kind}{name}_gpus"
            needed[metric] = max(needed.get(metric, 0), count)
    service = f"v1beta1/projects/{vertex.project}/services/aiplatform.googleapis.com"
    for metric, count in needed.items():
        path = f"consumerQuotaMetrics/{quote(f'aiplatform.googleapis.com/{metric}', safe='')}"
        try:
            limit = _limit(cloud.request("serviceusage", f"{service}/{path}"), vertex.region)
        except exceptions.NotFound:
            yield Finding("unsure", f"no limit named {metric}")
            continue
        if limit is None:
            yield Finding("unsure", f"{metric} has no limit for {vertex.region}")
        elif 0 <= limit < count:
            remedy = "ask for more at https://console.cloud.google.com/iam-admin/quotas, or take fewer machines"
            yield Finding("wrong", f"{metric} is {limit} in {vertex.region}, the job takes {count}", remedy)
        else:
            yield Finding("ok", f"{metric}: {count} of {limit if limit >= 0 else 'no limit'}")


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
