"""One endpoint of Vertex AI: found or created once, held by one push at a time, and the models deployed to it.

A push that changes the traffic first writes its name and the traffic before into the endpoint's labels: what another
push, a rollback or a person needs to know to put it back is on the endpoint itself.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.settings.endpoint import Endpoint
from pipeline.vertex.cloud import OUTAGES, RETRY, Cloud
from pipeline.vertex.endpoints.registry import WHEN_CREATED, WHEN_FREE, Version, as_label, finished

# Labels of the endpoint: the run that changes it, until when that may take, the traffic by deployed model before, and
# from when on a deployed model without traffic may go. Times are seconds since the epoch.
HOLDER, UNTIL, BEFORE, DUE = "push-by", "push-until", "push-before-", "undeploy-after-"
ALL = 100  # percent of the traffic
SECONDS_TO_DEPLOY = 3600.0
# Vertex AI refuses a change of what another call has changed since it was read; a repetition would be refused again.
CONFLICTS = (exceptions.Aborted, exceptions.FailedPrecondition)
UNLESS_CHANGED = Retry(
    if_exception_type(*(error for error in OUTAGES if error not in CONFLICTS)), initial=1.0, maximum=15.0, timeout=180.0
)
TRIES = 5
# Labels and traffic that an endpoint is to get; traffic None: as it is.
Change = tuple[dict[str, str], Mapping[str, int] | None]


class EndpointTaken(UserError):
    """Another push or a person changes the endpoint."""


class Push(NamedTuple):
    """A push that has not ended, read from the endpoint's labels."""

    holder: str  # the run
    until: float  # when it has ended in any case, in seconds since the epoch
    before: Mapping[str, int]  # the traffic before: percent by deployed model


class ServingEndpoint:
    """The endpoint of the settings, in a project and region."""

    def __init__(self, cloud: Cloud, settings: Endpoint):
        self.cloud = cloud
        self.settings = settings
        self.name = settings.resource_name(cloud.project, cloud.region)
        self._client = cloud.client(v1.EndpointServiceClient)

    @functools.cached_property
    def predictions(self) -> Any:
        """Return a client for requests to the endpoint."""
        return self.cloud.client(v1.PredictionServiceClient)

    @functools.cached_property
    def address(self) -> str | None:
        """Return the endpoint's own address, https://HOST, which speaks REST; None: it has the region's."""
        if self.settings.address:
            return self.settings.address
        # Such an endpoint does not answer at the region's address (Endpoint.dedicated_endpoint_enabled).
        dedicated = self.read().dedicated_endpoint_dns.removeprefix("https://")
        return f"https://{dedicated}" if dedicated else None

    def read(self) -> v1.Endpoint:
        """Return the endpoint as it is now."""
        try:
            return self._client.get_endpoint(name=self.name, retry=RETRY)
        except exceptions.NotFound as error:
            raise UserError(
                f"there is no endpoint {self.name}: it was deleted, or never created. What to do: correct "
                "endpoint.name, or give an id such as late-flights there, and the next push creates one under it"
            ) from error

    def create(self, labels: Mapping[str, str], encryption_key: str | None) -> None:
        """Create the endpoint if it is named by an id and does not exist, or set its logging."""
        try:
            endpoint = self._client.get_endpoint(name=self.name, retry=RETRY)
        except exceptions.NotFound:
            if self.settings.is_resource_name:
                self.read()
            # Under an id of ours, so that two pushes that create it at the same time create one.
            request = v1.CreateEndpointRequest(
                parent=self.cloud.parent, endpoint=self._new(labels, encryption_key), endpoint_id=self.settings.name
            )
            try:
                finished(self._client.create_endpoint(request=request), SECONDS_TO_DEPLOY)
            except (exceptions.AlreadyExists, *CONFLICTS):  # another push creates it at the same moment
                self._client.get_endpoint(name=self.name, retry=WHEN_CREATED)
            return
        logging = self._logging()
        if self.settings.log_to and endpoint.predict_request_response_logging_config != logging:
            self._client.update_endpoint(
                endpoint=v1.Endpoint(name=self.name, predict_request_response_logging_config=logging),
                update_mask={"paths": ["predict_request_response_logging_config"]},
                retry=RETRY,
            )

    # The push that holds it.

    def take(self, holder: str, seconds: float, has_ended: Callable[[str], bool]) -> dict[str, int]:
        """Hold the endpoint for a push, at most for ``seconds``, and keep its traffic among its labels.

        Returns the traffic to go back to: the current one, or the one before a push that was cut off.
        """
        holder = as_label(holder)
        before: dict[str, int] = {}

        def held(endpoint: v1.Endpoint) -> Change:
            nonlocal before
            push = push_of(endpoint)
            if push and push.holder != holder and push.until >= time.time() and not has_ended(push.holder):
                raise EndpointTaken(
                    f"another push, of {push.holder}, changes the endpoint {self.name} until "
                    f"{time.strftime('%H:%M UTC', time.gmtime(push.until))} at the latest; nothing was changed. "
                    "What to do: run again when it has ended, or end it with python vertex_runner.py rollback"
                )
            # The traffic before a push that was cut off is put back first.
            before = dict(push.before) if push else dict(endpoint.traffic_split)
            if not set(before) <= _deployed(endpoint):
                before = dict(endpoint.traffic_split)  # somebody has undeployed one of them since
            labels = {key: value for key, value in endpoint.labels.items() if not _of_a_push(key)}
            labels |= {HOLDER: holder, UNTIL: str(int(time.time() + seconds))}
            labels |= {f"{BEFORE}{key}": str(share) for key, share in before.items()}
            if push and push.holder != holder:  # the models that it had deployed are not wanted
                unwanted = {key for key, share in endpoint.traffic_split.items() if share and key not in before}
                labels |= {f"{DUE}{key}": str(int(time.time())) for key in unwanted}
            return labels, before if push else None

        self._change(held)
        return before

    def give_back(self, holder: str, due: Mapping[str, float] | None = None) -> None:
        """End holding it; ``due`` holds from when on deployed models may go, in seconds since the epoch."""

        def freed(endpoint: v1.Endpoint) -> Change:
            self.check_held(holder, endpoint)
            in_use = {f"{DUE}{key}" for key, share in endpoint.traffic_split.items() if share}
            kept = {key: value for key, value in endpoint.labels.items() if not _of_a_push(key) and key not in in_use}
            return kept | {f"{DUE}{key}": str(int(moment)) for key, moment in (due or {}).items()}, None

        self._change(freed)

    def set_traffic(self, holder: str, traffic: Mapping[str, int]) -> None:
        """Split the traffic: percent by deployed model, 100 together, or nothing for none."""

        def split(endpoint: v1.Endpoint) -> Change:
            self.check_held(holder, endpoint)
            return dict(endpoint.labels), traffic

        self._change(split)

    def check_held(self, holder: str, endpoint: v1.Endpoint | None = None) -> None:
        """Raise EndpointTaken when somebody else has taken the endpoint over."""
        push = push_of(endpoint or self.read())
        if push is None or push.holder != as_label(holder):
            by = push.holder if push else "a rollback"
            raise EndpointTaken(f"the push was ended by {by}, which has changed the endpoint {self.name} since")

    def _change(self, change: Callable[[v1.Endpoint], Change], tries: int = TRIES) -> None:
        """Write what ``change`` makes of the endpoint; read it again when somebody else has changed it in between."""
        for _ in range(tries):
            endpoint = self.read()
            labels, traffic = change(endpoint)
            changed = v1.Endpoint(name=self.name, etag=endpoint.etag, labels=labels, traffic_split=traffic or {})
            paths = ["labels"] if traffic is None else ["labels", "traffic_split"]
            with contextlib.suppress(*CONFLICTS):
                self._client.update_endpoint(endpoint=changed, update_mask={"paths": paths}, retry=UNLESS_CHANGED)
                return
        raise EndpointTaken(f"the endpoint {self.name} is changed by others all the time; run again later")

    # The deployed models.

    def deploy(self, version: Version) -> str:
        """Deploy a version without traffic, if it is not, and wait until it answers; return the deployed model's id."""
        deployed = deployed_id(self.read(), version)
        if deployed:
            return deployed
        model = v1.DeployedModel(
            model=version.name,
            display_name=f"{version.entry.rpartition('/')[2]}-{version.id}",
            dedicated_resources=self._resources(),
            service_account=self.settings.service_account or "",
        )
        operation = self._client.deploy_model(endpoint=self.name, deployed_model=model, retry=WHEN_FREE)
        return str(finished(operation, SECONDS_TO_DEPLOY).deployed_model.id)

    def undeploy(self, deployed: str) -> None:
        """Undeploy a model that has no traffic, if it is deployed."""
        endpoint = self.read()
        if deployed not in _deployed(endpoint):
            return
        if endpoint.traffic_split.get(deployed):
            raise UserError(f"deployed model {deployed} of {self.name} has traffic, and is not undeployed")
        operation = self._client.undeploy_model(endpoint=self.name, deployed_model_id=deployed, retry=WHEN_FREE)
        finished(operation, SECONDS_TO_DEPLOY)
        due = f"{DUE}{deployed}"
        with contextlib.suppress(EndpointTaken):  # one label more does no harm
            self._change(lambda now: ({key: text for key, text in now.labels.items() if key != due}, None), tries=1)

    def undeploy_due(self) -> list[str]:
        """Undeploy the models without traffic whose grace period is over; return their ids."""
        endpoint = self.read()
        over = [
            key
            for key in _deployed(endpoint)
            if float(endpoint.labels.get(f"{DUE}{key}", "inf")) <= time.time() and not endpoint.traffic_split.get(key)
        ]
        for key in over:
            self.undeploy(key)
        return over

    def _new(self, labels: Mapping[str, str], encryption_key: str | None) -> v1.Endpoint:
        new = v1.Endpoint(display_name=self.settings.name, labels=labels)
        if self.settings.log_to:
            new.predict_request_response_logging_config = self._logging()
        if self.settings.private_to:
            new.private_service_connect_config = v1.PrivateServiceConnectConfig(
                enable_private_service_connect=True, project_allowlist=list(self.settings.private_to)
            )
        if encryption_key:
            new.encryption_spec = v1.EncryptionSpec(kms_key_name=encryption_key)
        return new

    def _logging(self) -> v1.PredictRequestResponseLoggingConfig:
        return v1.PredictRequestResponseLoggingConfig(
            enabled=True,
            sampling_rate=self.settings.log_share,
            bigquery_destination=v1.BigQueryDestination(output_uri=self.settings.log_to or ""),
        )

    def _resources(self) -> v1.DedicatedResources:
        settings = self.settings
        metrics = [("cpu/utilization", settings.cpu_target)]
        if settings.accelerator:
            metrics.append(("accelerator/duty_cycle", settings.accelerator_target))
        # cloud.google.com/vertex-ai/docs/predictions/autoscaling
        prefix = "aiplatform.googleapis.com/prediction/online"
        return v1.DedicatedResources(
            machine_spec=machine_spec(settings),
            min_replica_count=settings.min_replicas,
            max_replica_count=settings.max_replicas,
            autoscaling_metric_specs=[
                v1.AutoscalingMetricSpec(metric_name=f"{prefix}/{name}", target=target) for name, target in metrics
            ],
        )


def machine_spec(settings: Endpoint) -> v1.MachineSpec:
    """Return the machine of a replica."""
    if not settings.accelerator:
        return v1.MachineSpec(machine_type=settings.machine_type)
    return v1.MachineSpec(
        machine_type=settings.machine_type,
        accelerator_type=v1.AcceleratorType[settings.accelerator],
        accelerator_count=settings.accelerators,
    )


def push_of(endpoint: v1.Endpoint) -> Push | None:
    """Return the push that holds an endpoint; None: none does."""
    labels = endpoint.labels
    if HOLDER not in labels:
        return None
    before = {key.removeprefix(BEFORE): int(value) for key, value in labels.items() if key.startswith(BEFORE)}
    return Push(labels[HOLDER], float(labels.get(UNTIL, "0")), before)


def deployed_id(endpoint: v1.Endpoint, version: Version) -> str | None:
    """Return the id under which a version is deployed; None: it is not."""
    return next((model.id for model in endpoint.deployed_models if _is(model, version)), None)


def shares(endpoint: v1.Endpoint) -> str:
    """Return the traffic in words."""
    names = {model.id: model.display_name or model.model for model in endpoint.deployed_models}
    split = sorted(endpoint.traffic_split.items(), key=lambda item: -item[1])
    return ", ".join(f"{share} % to {names.get(key, key)}" for key, share in split if share) or "no traffic"


def _is(deployed: Any, version: Version) -> bool:
    entry, _, number = deployed.model.partition("@")
    # Projects come back by their number.
    same = entry.split("/")[2:] == version.entry.split("/")[2:]
    return same and version.id in (deployed.model_version_id, number)


def _deployed(endpoint: v1.Endpoint) -> set[str]:
    return {model.id for model in endpoint.deployed_models}


def _of_a_push(key: str) -> bool:
    return key in (HOLDER, UNTIL) or key.startswith(BEFORE)
