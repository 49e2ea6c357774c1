"""WHERE a pushed model answers on Vertex AI: ``configs/endpoint.py`` holds one ``ENDPOINT = Endpoint(...)``."""

import itertools
from dataclasses import dataclass, field
from typing import Annotated

from pipeline.settings.checks import ConfigError, Count, NotNegative, Share, check_settings, number, text, whole
from pipeline.settings.machines import MachineType, ServiceAccount, check_accelerator, is_tpu

PIPELINE_IMAGE = "pipeline"  # the image of the pipeline's tasks
Percent = Annotated[int, whole(1, 100, "percent")]
Ratio = Annotated[float, number("a number of 1 or more", lambda value: value >= 1)]
# Requests carry an access token.
Address = Annotated[str, text("the address that leads to the endpoint over TLS, https://HOST", r"https://[^/\s]+")]
IMAGE_NAME = r"(?!\w+://)[^/\s]+/.*\S[:@]\S+"  # HOST/PATH:TAG; no https:// before it
ServingImage = Annotated[str, text('"pipeline" or an image with its tag or digest', rf"{PIPELINE_IMAGE}|{IMAGE_NAME}")]
RESOURCE_NAME = r"projects/[^/]+/locations/[^/]+/endpoints/[a-z0-9-]+"


@dataclass(frozen=True)
class Canary:
    """Steps by which a new version takes over from the current one.

    Attributes:
        steps: Percent of the traffic for the new version at each step; after the last step it gets all traffic.
        minutes: How long each step lasts. Cloud Monitoring shows a request after two or three minutes.
        max_error_share: Largest share of failed requests at a step.
        max_latency_ms: Highest 95th percentile, in milliseconds; None: only ``max_latency_ratio`` counts.
        max_latency_ratio: Highest ratio of the 95th percentile to the previous version's at the same time; None: any.
        smoke_rows: Rows of the model check whose answers must be the same from the endpoint.
        probe_seconds: Time between two of these rows during a step, for periods without traffic.
        grace_minutes: How long the previous version stays deployed without traffic, for a rollback within seconds; the
            Pusher's task waits.
        drain_seconds: Time between taking the traffic from a rejected version and undeploying it.
    """

    steps: tuple[int, ...] = (10, 50)
    minutes: NotNegative = 10
    max_error_share: Share = 0.01
    max_latency_ms: NotNegative | None = None
    max_latency_ratio: Ratio | None = 1.5
    smoke_rows: Count = 20
    probe_seconds: NotNegative = 1
    grace_minutes: NotNegative = 60
    drain_seconds: NotNegative = 30

    def __post_init__(self) -> None:
        steps = self.steps
        if not all(isinstance(step, int) and not isinstance(step, bool) and 0 < step < 100 for step in steps) or any(
            later <= earlier for earlier, later in itertools.pairwise(steps)
        ):
            raise ConfigError(
                f"canary.steps must be growing whole percents between 0 and 100, such as (10, 50), got {steps!r}; "
                "all of the traffic comes after the last step by itself"
            )
        check_settings("canary.", self)


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of Vertex AI and the resources of each version of the model.

    Attributes:
        name: "projects/P/locations/R/endpoints/ID", or an id such as "late-flights", which is created if missing.
        machine_type: Machine type of a replica.
        accelerator: Accelerator of a replica, such as "NVIDIA_L4"; None: none.
        accelerators: Number of accelerators per replica.
        processes: Server processes on each replica, each with the model in memory and, where calls are short, busy with
            one core. With fewer than the machine has cores, ``cpu_target`` may never be reached.
        min_replicas: Fewest machines for a version, 1 or more; they also cost money without requests.
        max_replicas: Most machines for a version.
        cpu_target: Percent of the CPUs above which a replica is added.
        accelerator_target: Percent of the accelerators' use above which a replica is added.
        image: "pipeline": the image of the tasks, running ``pipeline serve``. Or the address of an image that keeps to
            cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
        service_account: E-mail address that the model's containers run as, here and in batch jobs; None: an account of
            Vertex AI's that may read the model only, as "pipeline" needs.
        log_to: Table "bq://project.dataset.table" for requests and answers; None: they are not logged.
        log_share: Share of the requests that is logged.
        private_to: Projects that may reach the endpoint, by Private Service Connect; empty: it is public.
        address: Where tasks reach a private endpoint, such as "https://late-flights.example.com"; None: the endpoint's
            dedicated address if it has one, else the region's.
        canary: How a new version takes over.
    """

    name: Annotated[
        str,
        text(
            "an id such as late-flights, or the whole name projects/P/locations/R/endpoints/ID",
            rf"{RESOURCE_NAME}|[a-z]([a-z0-9-]{{0,61}}[a-z0-9])?",
        ),
    ]
    machine_type: MachineType = "n2-standard-4"
    accelerator: str | None = None
    accelerators: int = 0
    processes: Annotated[int, whole(1, 256)] = 1
    min_replicas: Count = 1
    max_replicas: Count = 2
    cpu_target: Percent = 60
    accelerator_target: Percent = 60
    image: ServingImage = PIPELINE_IMAGE
    service_account: ServiceAccount | None = None
    log_to: Annotated[str, text("a table bq://project.dataset.table", r"bq://[^.\s]+\.[^.\s]+\.[^.\s]+")] | None = None
    log_share: Share = 0.1
    private_to: tuple[str, ...] = ()
    address: Address | None = None
    canary: Canary = field(default_factory=Canary)

    def __post_init__(self) -> None:
        if self.min_replicas == 0:
            # "greater than or equal to 1" (DedicatedResources.min_replica_count of v1); limitations of the preview:
            # docs.cloud.google.com/vertex-ai/docs/predictions/autoscaling, "Scale To Zero".
            raise ConfigError(
                "endpoint.min_replicas is 0: Vertex AI scales to zero in a preview only (v1beta1), which takes one "
                "model an endpoint, and a canary has two; take 1, or deploy nothing and answer with "
                "python vertex_runner.py batch-predict (docs/serving_vertex.md, Scale to zero)"
            )
        check_settings("endpoint.", self)
        if is_tpu(self.machine_type):
            raise ConfigError(
                f"endpoint.machine_type is {self.machine_type!r}: the image of the server has no libtpu, so that the "
                "model would answer on the CPUs of a TPU host; take a machine such as n2-standard-4, or one with GPUs"
            )
        check_accelerator(self.machine_type, self.accelerator, self.accelerators)
        if self.processes > 1 and (self.accelerator or self.image != PIPELINE_IMAGE):
            with_what = f"image={self.image!r}"
            if self.image == PIPELINE_IMAGE:
                with_what = "an accelerator, which one process takes"
            raise ConfigError(
                f"endpoint.processes is {self.processes} with {with_what}; expected 1: several are for the pipeline's "
                "image on CPUs"
            )
        if self.max_replicas < self.min_replicas:
            raise ConfigError(
                f"endpoint.max_replicas is {self.max_replicas} and min_replicas {self.min_replicas}; expected at least "
                "as many"
            )
        if self.log_to and not self.log_share:
            raise ConfigError("endpoint.log_share is 0, so that nothing would be logged; leave log_to out instead")
        if self.private_to and not self.address:
            raise ConfigError(
                "endpoint.private_to without address: the canary could not ask the new version anything; give the "
                "address by which the pipeline's tasks reach the endpoint, https://HOST"
            )

    @property
    def is_resource_name(self) -> bool:
        """Return whether the name is a resource name; such an endpoint must exist."""
        return "/" in self.name

    def resource_name(self, project: str, region: str) -> str:
        """Return the whole resource name."""
        return self.name if self.is_resource_name else f"projects/{project}/locations/{region}/endpoints/{self.name}"
