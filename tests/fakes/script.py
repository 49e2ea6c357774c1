"""Plan of what happens in the fake Vertex AI: faults, failing tasks, jobs that are slow or stuck."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc


@dataclass
class Fault:
    """Calls of one method that fail: ``times`` of them, after ``after`` that do not."""

    method: str
    code: grpc.StatusCode
    message: str
    times: int = 1
    after: int = 0
    once_done: bool = False  # the work is done and the answer is lost


@dataclass
class Script:
    """Plan of what happens; tests change it before or while jobs run.

    Attributes:
        faults: Calls that fail.
        failing_tasks: Message by name of the tasks that fail.
        cached_tasks: Names of tasks whose outputs come from the cache.
        outputs: By task and output name, the metadata of the one artifact; its "uri" is the artifact's.
        preflight: What the validations before a job's creation find, if the job asks for them.
        operations_pend: Times a long-running operation must be asked for until it ends; 1 is the least.
        failing_operations: Message of the error that long-running operations end with, by method.
        page_size: Most resources on one page of a list.
        failing_jobs: Message of the error that custom and tuning jobs end with; None: they succeed.
        stuck: Jobs stay in the state they are in.
        starts_at_once: Pipeline jobs start when they are made, not when they are first looked at.
        slow: Times a job must be asked for until it goes one step on.
        objective: The metric of a trial from its parameters, for tuning jobs; a list: after each of its steps.
        trial_seconds: How long a trial takes, for the limit of a study.
    """

    faults: list[Fault] = field(default_factory=list)
    failing_tasks: dict[str, str] = field(default_factory=dict)
    cached_tasks: set[str] = field(default_factory=set)
    outputs: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    preflight: list[str] = field(default_factory=list)
    operations_pend: int = 1
    failing_operations: dict[str, str] = field(default_factory=dict)
    page_size: int = 1
    failing_jobs: str | None = None
    stuck: bool = False
    starts_at_once: bool = False
    slow: int = 1
    objective: Callable[[Mapping[str, Any]], float | list[float]] = lambda parameters: 0.5
    trial_seconds: float = 0.0
    asked: dict[str, int] = field(default_factory=dict)

    def goes_on(self, name: str) -> bool:
        """Return whether a job takes a step, now that it is asked for."""
        self.asked[name] = self.asked.get(name, 0) + 1
        return not self.stuck and self.asked[name] % self.slow == 0
