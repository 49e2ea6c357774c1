"""One endpoint of Vertex AI: found or made once, held by one push at a time, and what is deployed to it.

Who changes the traffic first writes into the endpoint's labels who it is and what the traffic was: what another push, a
rollback or a person needs to know to put it back is on the endpoint itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.settings.endpoint import Endpoint
from pipeline.vertex.cloud import AGAIN, OUTAGES, Cloud
from pipeline.vertex.endpoints.registry import Version, as_label

# Labels of the endpoint: who changes it, until when that may take, the traffic by deployed model before, and from when
# on a deployed model without traffic may go. Times are seconds since the epoch.
HOLDER, UNTIL, BEFORE, DUE = "push-by", "push-until", "push-before-", "undeploy-after-"
SECONDS_TO_DEPLOY = 3600.0
# Vertex AI refuses a change of what another call has changed since it was read; asked again it would refuse again.
CONFLICTS = (exceptions.Aborted, exceptions.FailedPrecondition)
UNLESS_CHANGED = Retry(
    if_exception_type(*(one for one in OUTAGES if one not in CONFLICTS)), initial=1.0, maximum=15.0, timeout=180.0
)
TRIES = 5


class Taken(UserError):
    """Someone else changes the endpoint."""


@dataclass(frozen=True)
class Push:
    """A push that has not ended, as the endpoint's labels tell it.

    Attributes:
        holder: Who: the run.
        until: When it has ended in any case, in seconds since the epoch.
        before: The traffic that it found: percent by deployed model.
    """

    holder: str
    until: float
    before: Mapping[str, int]


class ServingEndpoint:
    """The endpoint of the settings.

    Args:
        cloud: Where.
        settings: Its name, and what a deployed version gets.
        labels: Of an endpoint that is made.
        encryption_key: The same.
    """

    def __init__(
        self,
        cloud: Cloud,
        settings: Endpoint,
        labels: Mapping[str, str] | None = None,
        encryption_key: str | None = None,
    ):
        self.cloud = cloud
        self._client = cloud.client(v1.EndpointServiceClient)
        self._labels = dict(labels or {})
        self._encryption_key = encryption_key
        self.settings = settings
        self.name = settings.resource_name(cloud.project, cloud.region)

    def read(self) -> v1.Endpoint:
        """The endpoint as it is now.

        Raises:
            UserError: it does not exist.
        """
        try:
            return self._client.get_endpoint(name=self.name, retry=AGAIN)
        except exceptions.NotFound as error:
            raise UserError(
                f"there is no endpoint {self.name}: it was deleted, or never made. What to do: correct endpoint.name, "
                "or give an id such as late-flights there, and the next push makes one under it"
            ) from error

    def make(self) -> bool:
        """Makes the endpoint if it is named by an id and not there, and sets its logging; tells whether it was made.

        Raises:
            UserError: it is named by its resource name and not there.
        """
        try:
            there = self._client.get_endpoint(name=self.name, retry=AGAIN)
        except exceptions.NotFound:
            if self.settings.is_resource_name:
                self.read()
            # Under an id of ours, so that two who make it at once make one.
            try:
                self._client.create_endpoint(
                    request=v1.CreateEndpointRequest(
                        parent=self.cloud.parent, endpoint=self._new(), endpoint_id=self.settings.name
                    )
                ).result(timeout=SECONDS_TO_DEPLOY)
            except exceptions.AlreadyExists:
                return False
            return True
        wanted = self._logging()
        if self.settings.log_to and there.predict_request_response_logging_config != wanted:
            self._client.update_endpoint(
                endpoint=v1.Endpoint(name=self.name, predict_request_response_logging_config=wanted),
                update_mask={"paths": ["predict_request_response_logging_config"]},
                retry=AGAIN,
            )
        return False

    # Who holds it.

    def take(self, holder: str, seconds: float, ended: Callable[[str], bool]) -> dict[str, int]:
        """Holds the endpoint for a push, and keeps its traffic among its labels.

        Args:
            holder: Who.
            seconds: What it may take at most; after that others no longer heed it.
            ended: Whether a holder, a run, is known to have ended.

        Returns:
            The traffic to go back to: what there is, or what a push found that was cut off.

        Raises:
            Taken: another push holds it.
        """
        holder = as_label(holder)
        for _ in range(TRIES):
            there = self.read()
            push = push_of(there)
            cut_off = push is not None and (push.holder == holder or push.until < time.time() or ended(push.holder))
            if push is not None and not cut_off:
                raise Taken(
                    f"another push, of {push.holder}, changes the endpoint {self.name} until "
                    f"{time.strftime('%H:%M UTC', time.gmtime(push.until))} at the latest; nothing was changed. "
                    "What to do: run again when it has ended, or end it with python vertex_runner.py --rollback"
                )
            # What a push left behind that was cut off is nobody's wish: what it found is put back first.
            before = dict(push.before) if push else dict(there.traffic_split)
            if not set(before) <= _deployed(there):
                before = dict(there.traffic_split)  # somebody has undeployed one of them since
            labels = {key: value for key, value in there.labels.items() if not _of_a_push(key)}
            labels |= {HOLDER: holder, UNTIL: str(int(time.time() + seconds))}
            labels |= {f"{BEFORE}{key}": str(share) for key, share in before.items()}
            if push and push.holder != holder:  # what it had brought is nobody's
                brought = {key for key, share in there.traffic_split.items() if share and key not in before}
                labels |= {f"{DUE}{key}": str(int(time.time())) for key in brought}
            try:
                self._write(there, labels, before if push else None)
            except CONFLICTS:
                continue
            return before
        raise Taken(f"the endpoint {self.name} is changed by others all the time; nothing was changed. Run again later")

    def give_back(self, holder: str, due: Mapping[str, float] | None = None) -> None:
        """Ends holding it; ``due`` says from when on which deployed models may go, in seconds since the epoch."""

        def freed(there: v1.Endpoint) -> dict[str, str]:
            in_use = {f"{DUE}{key}" for key, share in there.traffic_split.items() if share}
            kept = {key: value for key, value in there.labels.items() if not _of_a_push(key) and key not in in_use}
            return kept | {f"{DUE}{key}": str(int(moment)) for key, moment in (due or {}).items()}

        self._change(holder, freed, None)

    def set_traffic(self, holder: str, traffic: Mapping[str, int]) -> None:
        """Splits the traffic: percent by deployed model, 100 together, or nothing for none.

        Raises:
            Taken: ``holder`` no longer holds the endpoint.
        """
        self._change(holder, lambda there: dict(there.labels), traffic)

    def _change(
        self, holder: str, labels: Callable[[v1.Endpoint], dict[str, str]], traffic: Mapping[str, int] | None
    ) -> None:
        for _ in range(TRIES):
            there = self.read()
            self.check_held(holder, there)
            try:
                self._write(there, labels(there), traffic)
            except CONFLICTS:
                continue
            return
        raise Taken(f"the endpoint {self.name} is changed by others all the time")

    def check_held(self, holder: str, there: v1.Endpoint | None = None) -> None:
        """Refuses to go on when someone else has taken the endpoint over.

        Raises:
            Taken: they have.
        """
        push = push_of(there or self.read())
        if push is None or push.holder != as_label(holder):
            by = push.holder if push else "a rollback"
            raise Taken(f"the push was ended by {by}, which has changed the endpoint {self.name} since")

    def _write(self, there: v1.Endpoint, labels: Mapping[str, str], traffic: Mapping[str, int] | None) -> None:
        changed = v1.Endpoint(name=self.name, etag=there.etag, labels=labels)
        paths = ["labels"]
        if traffic is not None:
            changed.traffic_split = dict(traffic)
            paths.append("traffic_split")
        self._client.update_endpoint(endpoint=changed, update_mask={"paths": paths}, retry=UNLESS_CHANGED)

    # What is deployed.

    def deploy(self, version: Version) -> str:
        """Deploys a version without traffic and waits until it answers; one that is there already is taken.

        Returns:
            The id of the deployed model.
        """
        there = deployed_id(self.read(), version)
        if there:
            return there
        wanted = v1.DeployedModel(
            model=version.name,
            display_name=f"{version.entry.rpartition('/')[2]}-{version.id}",
            dedicated_resources=self._resources(),
            service_account=self.settings.service_account or "",
        )
        done = self._client.deploy_model(endpoint=self.name, deployed_model=wanted).result(timeout=SECONDS_TO_DEPLOY)
        return str(done.deployed_model.id)

    def undeploy(self, deployed: str) -> None:
        """Undeploys a model that has no traffic; none of that id is no error."""
        there = self.read()
        if deployed not in _deployed(there):
            return
        if there.traffic_split.get(deployed):
            raise UserError(f"deployed model {deployed} of {self.name} has traffic, and is not undeployed")
        self._client.undeploy_model(endpoint=self.name, deployed_model_id=deployed).result(timeout=SECONDS_TO_DEPLOY)
        there = self.read()
        if f"{DUE}{deployed}" in there.labels:
            labels = {key: value for key, value in there.labels.items() if key != f"{DUE}{deployed}"}
            with contextlib.suppress(*CONFLICTS):  # a label more does no harm
                self._write(there, labels, None)

    def undeploy_due(self) -> list[str]:
        """Undeploys what has no traffic and whose grace period is over; returns their ids."""
        there = self.read()
        over = [
            one
            for one in _deployed(there)
            if f"{DUE}{one}" in there.labels
            and float(there.labels[f"{DUE}{one}"]) <= time.time()
            and not there.traffic_split.get(one)
        ]
        for one in over:
            self.undeploy(one)
        return over

    def _new(self) -> v1.Endpoint:
        new = v1.Endpoint(display_name=self.settings.name, labels=self._labels)
        if self.settings.log_to:
            new.predict_request_response_logging_config = self._logging()
        if self.settings.private_to:
            new.private_service_connect_config = v1.PrivateServiceConnectConfig(
                enable_private_service_connect=True, project_allowlist=list(self.settings.private_to)
            )
        if self._encryption_key:
            new.encryption_spec = v1.EncryptionSpec(kms_key_name=self._encryption_key)
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
        machine = v1.MachineSpec(machine_type=settings.machine_type)
        if settings.accelerator:
            machine.accelerator_type = v1.AcceleratorType[settings.accelerator]
            machine.accelerator_count = settings.accelerators
            metrics.append(("accelerator/duty_cycle", settings.accelerator_target))
        # cloud.google.com/vertex-ai/docs/predictions/autoscaling
        return v1.DedicatedResources(
            machine_spec=machine,
            min_replica_count=settings.min_replicas,
            max_replica_count=settings.max_replicas,
            autoscaling_metric_specs=[
                v1.AutoscalingMetricSpec(
                    metric_name=f"aiplatform.googleapis.com/prediction/online/{name}", target=target
                )
                for name, target in metrics
            ],
        )


def push_of(there: v1.Endpoint) -> Push | None:
    """The push that holds an endpoint; None: none does."""
    if HOLDER not in there.labels:
        return None
    before = {key.removeprefix(BEFORE): int(value) for key, value in there.labels.items() if key.startswith(BEFORE)}
    return Push(there.labels[HOLDER], float(there.labels.get(UNTIL, "0")), before)


def deployed_id(there: v1.Endpoint, version: Version) -> str | None:
    """Under which id a version is deployed; None: it is not."""
    return next((one.id for one in there.deployed_models if _is(one, version)), None)


def shares(there: v1.Endpoint) -> str:
    """The traffic in words."""
    names = {one.id: f"{one.display_name or one.model}" for one in there.deployed_models}
    split = sorted(there.traffic_split.items(), key=lambda item: -item[1])
    return ", ".join(f"{share} % to {names.get(key, key)}" for key, share in split if share) or "no traffic"


def _is(deployed: Any, version: Version) -> bool:
    entry, _, of = deployed.model.partition("@")
    # Projects come back by their number.
    same = entry.split("/")[2:] == version.entry.split("/")[2:]
    return same and version.id in (deployed.model_version_id, of)


def _deployed(there: v1.Endpoint) -> set[str]:
    return {one.id for one in there.deployed_models}


def _of_a_push(key: str) -> bool:
    return key in (HOLDER, UNTIL) or key.startswith(BEFORE)
