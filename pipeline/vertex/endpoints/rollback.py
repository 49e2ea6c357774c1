"""Bring a version back: within seconds while it is deployed, else as soon as it is deployed again."""

import getpass
import time
from collections.abc import Callable
from typing import NamedTuple

from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.vertex.endpoints.endpoint import ALL, SECONDS_TO_DEPLOY, ServingEndpoint, deployed_id, push_of, shares
from pipeline.vertex.endpoints.registry import PREVIOUS, ROLLED_BACK, STATE, Registry, Version


class Plan(NamedTuple):
    """The changes of a rollback."""

    now: str  # the traffic as it is, in words
    steps: list[str]  # the changes in their order, a sentence each
    version: Version | None  # that comes back; None: the traffic before a push that has not ended
    leaving: list[Version]  # that have traffic now and are undeployed


def plan(serving: ServingEndpoint, registry: Registry, wanted: str = PREVIOUS) -> Plan:
    """Return the changes that bring back the version with an alias or number, without doing them."""
    endpoint = serving.read()
    push = push_of(endpoint)
    versions = registry.versions()
    if push is not None and wanted == PREVIOUS:
        if not any(push.before.values()):
            raise UserError(
                f"the push of {push.holder} is the first to {serving.name}: there is nothing to go back to. Cancel its "
                "job, and it takes the traffic from its version itself"
            )
        leaving = [other for other in versions if (key := deployed_id(endpoint, other)) and not push.before.get(key)]
        restored = v1.Endpoint(deployed_models=endpoint.deployed_models, traffic_split=dict(push.before))
        steps = [
            f"end the push of {push.holder}",
            f"put the traffic back: {shares(restored)}",
            *(f"undeploy version {other.id}, which is labelled {ROLLED_BACK}" for other in leaving),
        ]
        return Plan(shares(endpoint), steps, None, leaving)

    version = registry.with_alias(wanted)
    if version is None:
        known = ", ".join(other.id for other in versions) or "none"
        reason = "no version before this one is known" if wanted == PREVIOUS else f"there is no version {wanted}"
        raise UserError(
            f"{reason} in {registry.name}, versions: {known}; to bring one of them back: python vertex_runner.py "
            "rollback NUMBER"
        )
    key = deployed_id(endpoint, version)
    if key is not None and endpoint.traffic_split.get(key) == ALL:
        raise UserError(f"version {version.id} has all the traffic of {serving.name} already; nothing was changed")
    others = (other for other in versions if other.id != version.id)
    leaving = [other for other in others if endpoint.traffic_split.get(deployed_id(endpoint, other) or "")]
    steps = [
        *([f"end the push of {push.holder}"] if push else []),
        *([f"deploy version {version.id}, which takes some minutes"] if key is None else []),
        f"give version {version.id} all the traffic, and the aliases live and default",
        *(f"undeploy version {other.id}, which is labelled {ROLLED_BACK}" for other in leaving),
    ]
    return Plan(shares(endpoint), steps, version, leaving)


def carry_out(serving: ServingEndpoint, registry: Registry, plan: Plan, note: Callable[[str], None]) -> None:
    """Do the changes of a plan."""
    holder = f"rollback-by-{getpass.getuser()}-{int(time.time())}"
    # A push that holds it sees that and stops; the traffic before it is put back with the same call.
    serving.take(holder, SECONDS_TO_DEPLOY, has_ended=lambda _: True)
    try:
        if plan.version is not None:
            deployed = serving.deploy(plan.version)
            serving.set_traffic(holder, {deployed: ALL})
            registry.make_live(plan.version, rolled_back=True)
        for other in plan.leaving:
            registry.label(other, **{STATE: ROLLED_BACK})
        note(f"now: {shares(serving.read())}")
        if plan.leaving:
            time.sleep(serving.settings.canary.drain_seconds)
        for other in plan.leaving:
            key = deployed_id(serving.read(), other)
            if key is not None:
                serving.undeploy(key)
                note(f"undeployed version {other.id}")
    finally:
        serving.give_back(holder)
