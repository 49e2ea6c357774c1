"""Commands about models that are registered and deployed: rollback, batch-predict and monitor."""

from pipeline.cli.command_line import SUCCEEDED
from pipeline.cli.vertex.commands import Session
from pipeline.errors import UserError
from pipeline.settings.target import Target
from pipeline.vertex.cloud import explaining
from pipeline.vertex.endpoints import batch, canary
from pipeline.vertex.endpoints.endpoint import ServingEndpoint
from pipeline.vertex.endpoints.registry import DEFAULT, Registry
from pipeline.vertex.pipelines import submit


def rollback(session: Session) -> int:
    """Bring a version back to the endpoint; end a push that has not ended."""
    assert session.vertex.endpoint is not None  # a needed setting
    cloud, note, dry_run = session.connect(), session.screen.note, session.arguments.dry_run
    serving, registry = ServingEndpoint(cloud, session.vertex.endpoint), Registry(cloud, session.config.name)
    with explaining("the rollback"):
        plan = canary.plan(serving, registry, session.arguments.version)
        note(f"endpoint  {serving.name}\nnow       {plan.now}")
        note("\n".join(f"{'would' if dry_run else 'to do'}     {step}" for step in plan.steps))
        if dry_run:
            note("nothing was changed")
        else:
            canary.carry_out(serving, registry, plan, note)
    return SUCCEEDED


def batch_predict(session: Session) -> int:
    """Answer the rows of a table or of files with the version that has the alias "default"."""
    arguments, config, cloud = session.arguments, session.config, session.connect()
    with explaining("batch prediction"):
        registry = Registry(cloud, config.name)
        version = registry.with_alias(DEFAULT)
        if version is None:
            raise UserError(
                f"there is no model {registry.name} in the registry; push one with python vertex_runner.py --endpoint"
            )
        to = arguments.to or f"gs://{session.vertex.bucket}/{config.name}/predictions"
        batch.predict(
            version,
            arguments.source,
            to,
            config.label,
            session.vertex,
            cloud,
            session.screen.note,
            arguments.poll,
            config.data.images,
        )
    return SUCCEEDED


def monitor(session: Session) -> int:
    """Create the schedule that compares the endpoint's requests with the training data, or change it."""
    from pipeline.vertex.pipelines import monitoring  # and TensorFlow Data Validation, which the others do without

    vertex, folder, cron = session.vertex, session.folder, session.arguments.cron
    target = Target.on_vertex(vertex, session.config.name, folder / "upload")
    monitoring.compile(session.config, target, folder, session.arguments.retrain)
    with explaining("scheduling"):
        name = monitoring.name_of(session.config.name)
        submit.create_schedule(folder, vertex, name, cron, session.connect(), session.screen.note)
    return SUCCEEDED
