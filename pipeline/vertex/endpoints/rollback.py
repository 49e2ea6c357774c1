"""Brings a version back in one command: within seconds while it is deployed, else as soon as it is deployed again."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable
from dataclasses import dataclass

from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.vertex.endpoints import registry
from pipeline.vertex.endpoints.endpoint import SECONDS_TO_DEPLOY, ServingEndpoint, deployed_id, push_of, shares
from pipeline.vertex.endpoints.registry import Registry, Version

ALL = 100


@dataclass(frozen=True)
class Plan:
    """What a rollback changes.

    Attributes:
        now: The traffic as it is, in words.
        steps: What is done, a sentence each, in their order.
        version: The one that comes back; None: the traffic that a push found which has not ended.
        leaving: The versions that have traffic now and are not wanted.
    """

    now: str
    steps: tuple[str, ...]
    version: Version | None
    leaving: tuple[Version, ...]


def plan(serving: ServingEndpoint, entry: Registry, wanted: str = registry.PREVIOUS) -> Plan:
    """What has to be done; changes nothing.

    Args:
        serving: The endpoint.
        entry: Of the registry.
        wanted: An alias or number of a version.

    Raises:
        UserError: there is no such endpoint or version, or nothing to go back to.
    """
    there = serving.read()
    push = push_of(there)
    versions = entry.versions()
    if push is not None and wanted == registry.PREVIOUS:
        if not any(push.before.values()):
            raise UserError(
                f"the push of {push.holder} is the first to {serving.name}: there is nothing to go back to. Cancel its "
                "job, and it takes the traffic from its version itself"
            )
        leaving = tuple(
            one for one in versions if (key := deployed_id(there, one)) is not None and not push.before.get(key)
        )
        restored = v1.Endpoint(deployed_models=there.deployed_models, traffic_split=dict(push.before))
        steps = [
            f"end the push of {push.holder}",
            f"put the traffic back: {shares(restored)}",
            *(f"undeploy version {one.id}, which is labelled {registry.ROLLED_BACK}" for one in leaving),
        ]
        return Plan(shares(there), tuple(steps), None, leaving)

    version = entry.with_alias(wanted)
    if version is None:
        found = ", ".join(one.id for one in versions) or "none"
        reason = (
            "no version before this one is known" if wanted == registry.PREVIOUS else f"there is no version {wanted}"
        )
        raise UserError(
            f"{reason} in {entry.name}, versions: {found}; to bring one of them back: python vertex_runner.py "
            "--rollback NUMBER"
        )
    key = deployed_id(there, version)
    if key is not None and there.traffic_split.get(key) == ALL:
        raise UserError(f"version {version.id} has all the traffic of {serving.name} already; nothing was changed")
    leaving = tuple(
        one for one in versions if one.id != version.id and there.traffic_split.get(deployed_id(there, one) or "")
    )
    steps = [
        *([f"end the push of {push.holder}"] if push else []),
        *([f"deploy version {version.id}, which takes some minutes"] if key is None else []),
        f"give version {version.id} all the traffic, and the aliases live and default",
        *(f"undeploy version {one.id}, which is labelled {registry.ROLLED_BACK}" for one in leaving),
    ]
    return Plan(shares(there), tuple(steps), version, leaving)


def carry_out(serving: ServingEndpoint, entry: Registry, what: Plan, said: Callable[[str], None]) -> None:
    """Does what ``plan`` has found.

    Raises:
        GoogleAPICallError: Vertex AI refuses.
    """
    holder = f"rollback-by-{getpass.getuser()}-{int(time.time())}"
    # Whoever holds it sees that and stops; what it has found is put back with the same call.
    serving.take(holder, SECONDS_TO_DEPLOY, ended=lambda _: True)
    try:
        if what.version is not None:
            deployed = serving.deploy(what.version)
            serving.set_traffic(holder, {deployed: ALL})
            entry.make_live(what.version, rolled_back=True)
        for one in what.leaving:
            entry.label(one, **{registry.STATE: registry.ROLLED_BACK})
        said(f"now: {shares(serving.read())}")
        if what.leaving:
            time.sleep(serving.settings.canary.drain_seconds)
        for one in what.leaving:
            key = deployed_id(serving.read(), one)
            if key is not None:
                serving.undeploy(key)
                said(f"undeployed version {one.id}")
    finally:
        serving.give_back(holder)
