"""Whether a region has the machines that a run asks for, and the project the quota."""

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
    """What a look at one thing came to.

    Attributes:
        what: The thing, such as "bucket".
        state: "ok", "wrong", or "unsure" when it cannot be told; that does not stop a run.
        text: What was found, and expected.
        remedy: What to do; empty when there is nothing.
    """

    what: str
    state: State
    text: str
    remedy: str = ""


def machines(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """Whether the region has the machines and accelerators; which go together is checked when the table is built."""
    types, accelerators = _wanted(vertex)
    lacking = []
    for kind, names in (("machineTypes", types), ("acceleratorTypes", accelerators)):
        for name in sorted(names):
            path = f"compute/v1/projects/{vertex.project}/aggregated/{kind}?filter=name={name}"
            items = cloud.ask("compute", path).get("items", {})
            zones = {zone.rpartition("/")[2] for zone, found in items.items() if found.get(kind)}
            if not any(zone.startswith(f"{vertex.region}-") for zone in zones):
                regions = sorted({zone.rpartition("-")[0] for zone in zones})
                lacking.append(f"{name} (in {', '.join(regions[:4]) or 'no region'})")
    if lacking:
        remedy = "take another machine in the table of machines, or another --region"
        yield Finding("machines", "wrong", f"{vertex.region} does not have {'; '.join(lacking)}", remedy)
    elif types or accelerators:
        yield Finding("machines", "ok", ", ".join(sorted(types | accelerators)))


def _wanted(vertex: Vertex) -> tuple[set[str], set[str]]:
    """Machine and accelerator types, as Compute Engine names them."""
    table = vertex.machines
    types, accelerators = set(), {one.accelerator for one in table.tasks.values()}
    for job in (table.training, table.tuning):
        if job:
            types.add(job.machine_type)
            accelerators.add(job.accelerator)
            if job.reduction_servers:
                types.add(job.reduction_machine_type)
    if vertex.dataflow:
        types.add(vertex.dataflow.machine_type)
    gpus = {name for name in accelerators if name and not name.startswith("TPU")}
    # cloud-tpu is Vertex AI's own name; Compute Engine does not know it.
    return types - {"cloud-tpu"}, {name.lower().replace("_", "-") for name in gpus}


def quota(vertex: Vertex, cloud: Cloud) -> Iterator[Finding]:
    """The limits of accelerators in training jobs; CPUs have generous ones."""
    table = vertex.machines
    takes = [(one.accelerator, one.accelerators, "") for one in table.tasks.values()]
    for job in (table.training, table.tuning):
        if job:
            takes.append((job.accelerator, job.replicas * job.accelerators, "preemptible_" if job.spot else ""))
    wanted: dict[str, int] = {}
    for accelerator, count, kind in takes:
        if accelerator and accelerator.startswith("NVIDIA"):
            name = accelerator.lower().replace("nvidia_tesla_", "nvidia_")
            metric = f"custom_model_training_{kind}{name}_gpus"
            wanted[metric] = max(wanted.get(metric, 0), count)
    for metric, count in wanted.items():
        path = f"consumerQuotaMetrics/{quote(f'aiplatform.googleapis.com/{metric}', safe='')}"
        try:
            answer = cloud.ask(
                "serviceusage", f"v1beta1/projects/{vertex.project}/services/aiplatform.googleapis.com/{path}"
            )
        except exceptions.NotFound:
            yield Finding("quota", "unsure", f"no limit named {metric}")
            continue
        limit = _limit(answer, vertex.region)
        if limit is None:
            yield Finding("quota", "unsure", f"{metric} has no limit for {vertex.region}")
        elif 0 <= limit < count:
            yield Finding(
                "quota",
                "wrong",
                f"{metric} is {limit} in {vertex.region}, the job takes {count}",
                "ask for more at https://console.cloud.google.com/iam-admin/quotas, or take fewer machines",
            )
        else:
            yield Finding("quota", "ok", f"{metric}: {count} of {limit if limit >= 0 else 'no limit'}")


def _limit(answer: Mapping[str, Any], region: str) -> int | None:
    """The limit of a region, of all regions where it has none of its own; -1 means no limit."""
    general = None
    for one in answer.get("consumerQuotaLimits", []):
        for bucket in one.get("quotaBuckets", []):
            value = int(bucket.get("effectiveLimit", 0))
            where = bucket.get("dimensions", {}).get("region")
            if where == region:
                return value
            if where is None:
                general = value
    return general
