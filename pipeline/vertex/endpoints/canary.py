"""Roll out a new version in steps: send real rows, watch errors and latency, and roll back on a problem."""

import contextlib
import getpass
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.settings.endpoint import Canary
from pipeline.vertex.cloud import FAILURES, PASSING, first_line, raised_on_sigterm
from pipeline.vertex.endpoints.endpoint import (
    ALL,
    SECONDS_TO_DEPLOY,
    EndpointTaken,
    ServingEndpoint,
    deployed_id,
    push_of,
    shares,
)
from pipeline.vertex.endpoints.observation import Observed, SmokeRows, monitored, p95, predict
from pipeline.vertex.endpoints.registry import PREVIOUS, ROLLED_BACK, STATE, Registry, Version

# A share or a percentile of fewer requests counts only at the end of a step.
ENOUGH_REQUESTS = 20
SECONDS_BETWEEN_LOOKS = 30.0
# Attempts per row until the new version answers it, as a multiple of the expected number for its share of traffic.
PATIENCE = 10
NOTHING = Observed(0, 0, None)


class CanaryFailed(UserError):
    """The new version failed; the previous state is restored."""


@dataclass(frozen=True)
class RollOut:
    """Bring one version to one endpoint."""

    serving: ServingEndpoint
    holder: str  # the run, under whose name the endpoint is held
    has_ended: Callable[[str], bool]  # whether another run is known to have ended
    rows: SmokeRows
    note: Callable[[str], None]

    @property
    def canary(self) -> Canary:
        """Return the settings of the steps."""
        return self.serving.settings.canary

    def run(self, version: Version) -> list[str]:
        """Deploy the version and give it all the traffic, in steps.

        Returns the ids of the deployed models that had the traffic before; they stay for the grace period. Raises
        CanaryFailed when something is wrong with the version, and the traffic is as it was.
        """
        canary = self.canary
        budget = SECONDS_TO_DEPLOY + 60 * canary.minutes * len(canary.steps) + 1800
        before = self.serving.take(self.holder, budget, self.has_ended)
        new = None
        try:
            with raised_on_sigterm(CanaryFailed("the task was ended from outside")):
                for undeployed in self.serving.undeploy_due():
                    self.note(f"undeployed {undeployed}, whose grace period is over")
                deployed = deployed_id(self.serving.read(), version)
                if deployed and before.get(deployed) == ALL:
                    self.note(f"version {version.id} has all the traffic already")
                    self.serving.give_back(self.holder)
                    return []
                if before:
                    monitored(self.serving, time.time())  # a version that cannot be watched is not deployed
                self.note(f"deploying version {version.id} of {version.entry}, without traffic")
                new = self.serving.deploy(version)
                self._take_over(version, new, before)
        except BaseException as error:
            if self._put_back(version, new, before) and isinstance(error, (UserError, *FAILURES)):
                raise CanaryFailed(
                    f"version {version.id} does not take over: {first_line(error)}. The traffic is as it was before: "
                    f"{shares(self.serving.read())}"
                ) from error
            raise
        old = [key for key in before if key != new]
        self.serving.give_back(self.holder, dict.fromkeys(old, time.time() + 60 * canary.grace_minutes))
        self.note(f"version {version.id} has all the traffic of {self.serving.name}")
        return old

    def _take_over(self, version: Version, new: str, before: Mapping[str, int]) -> None:
        others = {key: share for key, share in before.items() if key != new and share}
        if not others:
            self.serving.set_traffic(self.holder, {new: ALL})
            self.note(f"version {version.id} is the first, it gets all the traffic")
            self._smoke_test(new, ALL, others_refuse=False)
            return
        others_refuse = any(isinstance(self._ask(row)[0], Exception) for row in range(len(self.rows.instances))[:3])
        if others_refuse:
            self.note("the version before refuses the rows of the new one: only answers of the new one count")
        for number, share in enumerate(self.canary.steps):
            self.serving.set_traffic(self.holder, split(others, new, share))
            self.note(f"version {version.id} gets {share} % of the traffic")
            if number == 0:
                self._smoke_test(new, share, others_refuse)
            self._watch(new, others, share, others_refuse)
        self.serving.set_traffic(self.holder, {new: ALL})
        if not self.canary.steps:
            self._smoke_test(new, ALL, others_refuse=False)

    def _ask(self, row: int) -> tuple[Any, float]:
        started = time.monotonic()
        answer: Any
        try:
            answer = predict(self.serving, self.rows.instances[row])
        except (exceptions.GoogleAPICallError, *PASSING) as error:
            answer = error
        return answer, time.monotonic() - started

    def _smoke_test(self, new: str, share: int, others_refuse: bool) -> None:
        left = list(range(len(self.rows.instances)))
        if not left:
            self.note("no smoke test: the model check has kept no rows")
            return
        total, failures = len(left), 0
        for _ in range(PATIENCE * total * ALL // share):
            row = left.pop(0)
            left.append(row)  # an unanswered row is sent again later
            answer, _ = self._ask(row)
            if isinstance(answer, Exception):
                failures += not others_refuse
                if failures > 2:
                    raise CanaryFailed(f"the smoke test failed on row {row}: {first_line(answer)}")
                continue
            if answer.deployed != new:
                continue
            difference = self.rows.difference(row, answer.prediction)
            if difference:
                raise CanaryFailed(f"the smoke test failed, it answers otherwise than in the model check: {difference}")
            left.remove(row)
            if not left:
                self.note(f"smoke test: {total} rows answered as in the model check")
                return
        raise CanaryFailed(f"the smoke test failed, it has answered only {total - len(left)} of {total} rows")

    def _watch(self, new: str, others: Mapping[str, int], share: int, others_refuse: bool) -> None:
        main = max(others, key=lambda key: others[key])
        since, checked = time.time(), time.monotonic()
        until = time.monotonic() + 60 * self.canary.minutes
        milliseconds: dict[str, list[float]] = {new: []}
        failures = 0

        def check(at_end: bool) -> None:
            self.serving.check_held(self.holder)
            probed = {key: Observed(len(taken), 0, p95(taken)) for key, taken in milliseconds.items()}
            answered = len(milliseconds[new])
            probed[new] = Observed(answered + failures, failures, probed[new].p95_ms)
            sources = {"our rows": probed, "all requests": monitored(self.serving, since)}
            for source, seen in sources.items():
                mine, before = seen.get(new, NOTHING), seen.get(main, NOTHING)
                if mine.requests >= ENOUGH_REQUESTS or at_end:
                    problem = judged(mine, before, self.canary)
                    if problem:
                        raise CanaryFailed(f"at {share} % of the traffic, of {source}, {problem}")
                if at_end:
                    latency = f", 95 % within {mine.p95_ms:,.0f} ms" if mine.p95_ms is not None else ""
                    self.note(f"at {share} %, {source}: {mine.requests} answered, {mine.errors} failed{latency}")

        rows = itertools.cycle(range(len(self.rows.instances)))
        while time.monotonic() < until:
            if self.rows.instances:
                answer, seconds = self._ask(next(rows))
                if isinstance(answer, Exception):
                    # The error does not name its version; the others did not fail before.
                    failures += not others_refuse
                else:
                    milliseconds.setdefault(answer.deployed, []).append(1000 * seconds)
            if time.monotonic() - checked > SECONDS_BETWEEN_LOOKS:
                checked = time.monotonic()
                check(at_end=False)
            time.sleep(max(0.0, min(self.canary.probe_seconds, until - time.monotonic())))
        check(at_end=True)

    def _put_back(self, version: Version, new: str | None, before: Mapping[str, int]) -> bool:
        """Restore the traffic and undeploy the new version; return False if another run has taken the endpoint."""
        try:
            self.serving.set_traffic(self.holder, before)
        except EndpointTaken:
            return False
        except Exception as error:
            raise UserError(
                f"the traffic of {self.serving.name} could not be put back ({first_line(error)}) and is split between "
                "versions. What to do: python vertex_runner.py rollback puts back what was before"
            ) from error
        # The failed deployment may be incomplete, or its response lost.
        new = new or deployed_id(self.serving.read(), version)
        leaving = [new] if new and not before.get(new) else []
        # Due immediately: if this task ends now, the next push undeploys it.
        self.serving.give_back(self.holder, dict.fromkeys(leaving, time.time()))
        with contextlib.suppress(*FAILURES, UserError):
            for key in leaving:
                time.sleep(self.canary.drain_seconds)
                self.serving.undeploy(key)
        return True


def split(others: Mapping[str, int], new: str, share: int) -> dict[str, int]:
    """Return the traffic with ``share`` percent for the new version, the others in the proportions of before."""
    rest, total = ALL - share, sum(others.values())
    parts = {key: rest * part // total for key, part in others.items()}
    largest = max(others, key=lambda key: others[key])
    parts[largest] += rest - sum(parts.values())
    return {**{key: part for key, part in parts.items() if part}, new: share}


def judged(new: Observed, before: Observed, canary: Canary) -> str | None:
    """Return a message about the first exceeded limit; None if all limits hold.

    Invalid requests fail with either version, so only the errors in excess of the previous version's count.
    """
    if new.requests:
        usual = before.errors / before.requests if before.requests else 0.0
        failing = new.errors / new.requests
        if failing - usual > canary.max_error_share:
            return (
                f"{new.errors} of {new.requests} failed ({100 * failing:.1f} %), {100 * usual:.1f} % with the "
                f"version before, at most {100 * canary.max_error_share:g} % more"
            )
    if new.p95_ms is None:
        return None
    if canary.max_latency_ms is not None and new.p95_ms > canary.max_latency_ms:
        return f"the 95th percentile of the latency is {new.p95_ms:,.0f} ms, at most {canary.max_latency_ms:g} ms"
    enough = min(new.requests, before.requests) >= ENOUGH_REQUESTS
    if canary.max_latency_ratio is not None and before.p95_ms and enough:
        ratio = new.p95_ms / before.p95_ms
        if ratio > canary.max_latency_ratio:
            return (
                f"the 95th percentile of the latency is {new.p95_ms:,.0f} ms, {ratio:.1f} times that of the version "
                f"before, at most {canary.max_latency_ratio:g} times"
            )
    return None


def wait_for_grace(serving: ServingEndpoint, old: Sequence[str], note: Callable[[str], None]) -> None:
    """Wait until the grace period of the versions before is over, and undeploy those that still have no traffic."""
    if not old:
        return
    minutes = serving.settings.canary.grace_minutes
    if minutes:
        note(f"the version before stays deployed for {minutes:g} minutes, for a rollback within seconds")
    time.sleep(60 * minutes)
    try:
        undeployed = ", ".join(serving.undeploy_due())
    except (*FAILURES, UserError) as error:
        note(f"the version before could not be undeployed ({first_line(error)}); the next push does it")
        return
    note(f"undeployed the version before ({undeployed})" if undeployed else "the version before stays: it has traffic")


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
