"""WHERE a pushed model answers on Vertex AI: the endpoint, its machines and logs, and how a new version comes to it.

Frozen and checked when built, standard library only. A file such as ``configs/endpoint.py`` holds one
``ENDPOINT = Endpoint(...)``.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.settings.checks import ConfigError, check_positive, check_share, read_settings
from pipeline.settings.machines import check_accelerator

# Images that are not named by their address: the one of the pipeline's tasks, and Google's for TensorFlow.
PIPELINE_IMAGE, PREBUILT_IMAGE = "pipeline", "prebuilt"
RESOURCE_NAME = r"projects/[^/]+/locations/[^/]+/endpoints/[a-z0-9-]+"


@dataclass(frozen=True)
class Canary:
    """How a new version takes over from the one that answers now.

    Attributes:
        steps: Percent of the traffic that it gets, step by step; after the last one it gets all of it.
        minutes: How long it is watched at each step. Cloud Monitoring shows a request after two or three minutes.
        max_error_share: Of the requests that it answers at a step, at most this share may fail.
        max_latency_ms: Highest 95th percentile, in milliseconds; None: only ``max_latency_ratio`` counts.
        max_latency_ratio: Highest 95th percentile against that of the version before in the same minutes; None: it is
            not compared.
        smoke_rows: Rows of the model check whose answers must be the same from the endpoint.
        probe_seconds: Between two of these rows while it is watched, so that there is something to see without traffic.
        grace_minutes: How long the version before stays deployed without traffic, for a rollback within seconds. The
            Pusher's task waits for it.
        drain_seconds: Between taking the traffic from a version that is not wanted and undeploying it.
    """

    steps: tuple[int, ...] = (10, 50)
    minutes: float = 10
    max_error_share: float = 0.01
    max_latency_ms: float | None = None
    max_latency_ratio: float | None = 1.5
    smoke_rows: int = 20
    probe_seconds: float = 1
    grace_minutes: float = 60
    drain_seconds: float = 30

    def __post_init__(self) -> None:
        steps = self.steps
        if not all(isinstance(step, int) and not isinstance(step, bool) and 0 < step < 100 for step in steps) or any(
            later <= earlier for earlier, later in itertools.pairwise(steps)
        ):
            raise ConfigError(
                f"canary.steps must be growing whole percents between 0 and 100, such as (10, 50), got {steps!r}; "
                "all of the traffic comes after the last step by itself"
            )
        for name in ("minutes", "probe_seconds", "grace_minutes", "drain_seconds"):
            _check_from("canary." + name, getattr(self, name), 0)
        for name, least in (("max_latency_ms", 0), ("max_latency_ratio", 1)):
            if getattr(self, name) is not None:
                _check_from("canary." + name, getattr(self, name), least)
        check_share("canary.max_error_share", self.max_error_share)
        check_positive("canary.smoke_rows", self.smoke_rows)


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of Vertex AI and what each version of the model gets there.

    Attributes:
        name: "projects/P/locations/R/endpoints/ID" of one that is there, or an id such as "late-flights", under which
            one is made if there is none.
        machine_type: Of a replica.
        accelerator: Of a replica, such as "NVIDIA_L4"; None: none.
        accelerators: How many each replica has.
        min_replicas: Fewest machines for a version; they are paid for also when nobody asks.
        max_replicas: Most machines for a version.
        cpu_target: Percent of the CPUs above which a replica is added.
        accelerator_target: The same of the accelerators.
        image: "pipeline": the image of the pipeline's tasks, running ``pipeline serve``, with the TensorFlow that the
            model was trained with. "prebuilt": Google's image for that TensorFlow, if there is one. Or the address of
            an image that keeps to Vertex AI's contract for containers
            (cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements).
        service_account: E-mail address the containers act as; None: that of the pipeline's tasks.
        log_to: Table "bq://project.dataset.table" for requests and answers; None: they are not kept.
        log_share: Share of the requests that is kept.
        private_to: Projects that may reach the endpoint, by Private Service Connect; empty: it is public. With Private
            Service Connect, not peering: a peered endpoint cannot split its traffic.
        address: Where the pipeline's tasks reach a private endpoint, such as "https://late-flights.example.com".
        canary: How a new version takes over.
    """

    name: str
    machine_type: str = "n2-standard-4"
    accelerator: str | None = None
    accelerators: int = 0
    min_replicas: int = 1
    max_replicas: int = 2
    cpu_target: int = 60
    accelerator_target: int = 60
    image: str = PIPELINE_IMAGE
    service_account: str | None = None
    log_to: str | None = None
    log_share: float = 0.1
    private_to: tuple[str, ...] = ()
    address: str | None = None
    canary: Canary = field(default_factory=Canary)

    def __post_init__(self) -> None:
        kinds = (
            (
                "name",
                rf"{RESOURCE_NAME}|[a-z]([a-z0-9-]{{0,61}}[a-z0-9])?",
                "an id such as late-flights, or the whole name projects/P/locations/R/endpoints/ID",
            ),
            ("machine_type", r"[a-z0-9]+-[a-z0-9-]+", "a machine type, such as n2-standard-4"),
            (
                "image",
                rf"{PIPELINE_IMAGE}|{PREBUILT_IMAGE}|[^/\s]+/.*\S[:@]\S+",
                '"pipeline", "prebuilt" or an image with its tag or digest',
            ),
            ("service_account", r"[^@\s]+@[^@\s]+\.gserviceaccount\.com", "its e-mail address, ...gserviceaccount.com"),
            ("log_to", r"bq://[^.\s]+\.[^.\s]+\.[^.\s]+", "a table bq://project.dataset.table"),
            ("address", r"https?://[^/\s]+", "the address that leads to the endpoint, https://HOST"),
        )
        for key, pattern, example in kinds:
            value = getattr(self, key)
            if value is None and key in ("service_account", "log_to", "address"):
                continue
            if not isinstance(value, str) or not re.fullmatch(pattern, value):
                raise ConfigError(f"endpoint.{key} must be {example}, got {value!r}")
        check_accelerator(self.machine_type, self.accelerator, self.accelerators)
        check_positive("endpoint.min_replicas", self.min_replicas)
        check_positive("endpoint.max_replicas", self.max_replicas)
        if self.max_replicas < self.min_replicas:
            raise ConfigError(
                f"endpoint.max_replicas is {self.max_replicas} and min_replicas {self.min_replicas}; expected at least "
                "as many"
            )
        for name in ("cpu_target", "accelerator_target"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100:
                raise ConfigError(f"endpoint.{name} must be a whole percent from 1 to 100, got {value!r}")
        check_share("endpoint.log_share", self.log_share)
        if self.log_to and not self.log_share:
            raise ConfigError("endpoint.log_share is 0, so that nothing would be logged; leave log_to out instead")
        if self.private_to and not self.address:
            raise ConfigError(
                "endpoint.private_to without address: the canary could not ask the new version anything; give the "
                "address by which the pipeline's tasks reach the endpoint, https://HOST"
            )

    @property
    def is_resource_name(self) -> bool:
        """Whether it names an endpoint that must be there."""
        return "/" in self.name

    def resource_name(self, project: str, region: str) -> str:
        """The whole name."""
        return self.name if self.is_resource_name else f"projects/{project}/locations/{region}/endpoints/{self.name}"

    def other_region(self, region: str) -> Iterator[str]:
        """A sentence when the endpoint is elsewhere than the pipeline runs."""
        if self.is_resource_name and f"/locations/{region}/" not in self.name:
            yield (
                f"endpoint.name is {self.name} and the pipeline runs in {region}; take an endpoint there, or --region "
                f"{self.name.split('/')[3]}"
            )

    def to_json(self) -> str:
        """As JSON, for the settings of a task."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Endpoint:
        """Reads what ``to_json`` wrote."""
        read = json.loads(text)
        canary = read.pop("canary")
        read["private_to"] = tuple(read["private_to"])
        return cls(**read, canary=Canary(**{**canary, "steps": tuple(canary["steps"])}))


def load_endpoint(path: Path) -> Endpoint:
    """Reads ``ENDPOINT`` from a file.

    Raises:
        ConfigError: the file is missing, does not run, or has no ``ENDPOINT`` that is an Endpoint.
    """
    return read_settings(path, "ENDPOINT", Endpoint)


def _check_from(name: str, value: object, least: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < least:  # type: ignore[operator]
        raise ConfigError(f"{name} must be a number of {least:g} or more, got {value!r}")
