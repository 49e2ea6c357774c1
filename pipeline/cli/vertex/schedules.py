"""Commands about schedules: list them, pause, resume and delete one."""

from pipeline.cli.command_line import SUCCEEDED
from pipeline.cli.vertex.session import Session
from pipeline.vertex.cloud import explaining
from pipeline.vertex.pipelines import schedules as service


def schedules(session: Session) -> int:
    """List the schedules of the project in the region."""
    with explaining("listing the schedules"):
        shown = service.list_schedules(session.connect())
    vertex = session.vertex
    session.screen.note(
        "\n".join(map(service.described, shown)) or f"no schedules in {vertex.project}, {vertex.region}"
    )
    return SUCCEEDED


def pause(session: Session) -> int:
    """Let a schedule start no more runs."""
    return _change(session, "pause")


def resume(session: Session) -> int:
    """Let a schedule start runs again."""
    return _change(session, "resume")


def unschedule(session: Session) -> int:
    """Delete a schedule."""
    return _change(session, "delete")


def _change(session: Session, change: service.Change) -> int:
    name = session.arguments.schedule
    with explaining(f"changing the schedule {name}"):
        changed = service.change(name, change, session.connect())
    session.screen.note(service.described(changed) if changed else f"deleted the schedule {name}")
    return SUCCEEDED
