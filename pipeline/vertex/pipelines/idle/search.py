"""Look everywhere for what is paid for and not used; what may not be looked at is said, and the rest goes on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from google.api_core import exceptions

from pipeline.vertex.cloud import first_line
from pipeline.vertex.pipelines.idle import artifacts, endpoints, jobs, schedules, tensorboards
from pipeline.vertex.pipelines.idle.finding import Idle, Note, Scope, Unseen

Look = Callable[[Scope], Iterator[Idle | Unseen | Note]]
# Where to look, and what that takes.
LOOKS: dict[str, tuple[Look, str]] = {
    "endpoints": (endpoints.look, "roles/aiplatform.viewer"),
    "TensorBoards": (tensorboards.look, "roles/aiplatform.viewer"),
    "jobs": (jobs.look, "roles/aiplatform.viewer"),
    "schedules": (schedules.look, "roles/aiplatform.viewer"),
    "artifacts": (artifacts.look, "roles/storage.objectViewer of the bucket and roles/aiplatform.viewer"),
}
# No pipeline of ours makes one, so that they are looked at with all of a project only.
LOOKS_AT_ALL: dict[str, tuple[Look, str]] = {
    "persistent resources": (jobs.look_at_persistent, "roles/aiplatform.viewer"),
}


@dataclass
class Found:
    """What was found."""

    idle: list[Idle] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def search(scope: Scope, starts: Callable[[str], None]) -> Found:
    """Look everywhere; nothing is changed.

    Args:
        scope: What is looked at.
        starts: Receives the name of each place before it is looked at.

    Raises:
        GoogleAPICallError: Google Cloud does not answer, or the credentials are refused.
    """
    found = Found()
    kinds: dict[type, list] = {Idle: found.idle, Unseen: found.unseen, Note: found.notes}
    for name, (look, needs) in (LOOKS | LOOKS_AT_ALL if scope.whole else LOOKS).items():
        starts(name)
        try:
            for one in look(scope):
                kinds[type(one)].append(one)
        except exceptions.Unauthenticated:
            raise
        except exceptions.ClientError as error:
            found.unseen.append(Unseen(name, f"{first_line(error)}; it needs {needs}"))
    return found
