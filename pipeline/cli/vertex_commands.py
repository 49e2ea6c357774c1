"""What vertex_runner.py does beside running the pipeline: rollback, schedules, batch prediction."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError

from pipeline.errors import UserError
from pipeline.settings.config import PipelineConfig
from pipeline.settings.target import Target, Vertex
from pipeline.vertex.cloud import PASSING, Cloud, explained
from pipeline.vertex.endpoints import batch, registry, rollback
from pipeline.vertex.endpoints.endpoint import ServingEndpoint
from pipeline.vertex.pipelines import schedules


def run(
    arguments: argparse.Namespace,
    config: PipelineConfig,
    vertex: Vertex,
    cloud: Cloud,
    folder: Path,
    said: Callable[[str], None],
) -> None:
    """Does what the command line asks for.

    Args:
        arguments: See ``pipeline.cli.vertex_flags``.
        config: Of the pipeline.
        vertex: Where.
        cloud: The way there.
        folder: With the compiled job, for a schedule.
        said: Told what happens.

    Raises:
        UserError: it cannot be done, or Google Cloud refuses.
    """
    try:
        if arguments.rollback:
            _roll_back(arguments, config, vertex, cloud, said)
        elif arguments.batch_predict:
            _predict(arguments, config, vertex, cloud, said)
        elif arguments.schedule:
            cron = arguments.schedule.strip()
            made, was_there = schedules.create(folder, vertex, config.name, cron, cloud, said)
            said(f"{'changed' if was_there else 'made'} the schedule\n{made}")
        elif arguments.schedule_monitoring:
            from pipeline.vertex.pipelines import (
                monitoring,  # and TensorFlow Data Validation, which the others do without
            )

            target = Target.on_vertex(vertex, config.name, folder / "upload")
            monitoring.compile(config, target, folder, arguments.retrain)
            name, cron = monitoring.name_of(config.name), arguments.schedule_monitoring.strip()
            made, was_there = schedules.create(folder, vertex, name, cron, cloud, said)
            said(f"{'changed' if was_there else 'made'} the schedule\n{made}")
        elif arguments.schedules:
            several = schedules.found(cloud)
            said("\n".join(map(str, several)) or f"no schedules in {cloud.project}, {cloud.region}")
        else:
            asked: tuple[tuple[str | None, schedules.Change], ...] = (
                (arguments.pause, "pause"),
                (arguments.resume, "resume"),
                (arguments.unschedule, "delete"),
            )
            which, how = next((which, how) for which, how in asked if which)
            changed = schedules.change(which, how, cloud)
            said(str(changed) if changed else f"deleted the schedule {which}")
    except (exceptions.GoogleAPICallError, GoogleAuthError, *PASSING) as error:
        raise explained(error, "it") from error


def _roll_back(
    arguments: argparse.Namespace, config: PipelineConfig, vertex: Vertex, cloud: Cloud, said: Callable[[str], None]
) -> None:
    assert vertex.endpoint is not None  # the runner has looked
    serving, entry = ServingEndpoint(cloud, vertex.endpoint), registry.Registry(cloud, config.name)
    found = rollback.plan(serving, entry, arguments.rollback)
    said(f"endpoint  {serving.name}\nnow       {found.now}")
    said("\n".join(f"{'would' if arguments.dry_run else 'to do'}     {step}" for step in found.steps))
    if arguments.dry_run:
        said("nothing was changed")
    else:
        rollback.carry_out(serving, entry, found, said)


def _predict(
    arguments: argparse.Namespace, config: PipelineConfig, vertex: Vertex, cloud: Cloud, said: Callable[[str], None]
) -> None:
    entry = registry.Registry(cloud, config.name)
    version = entry.with_alias(registry.DEFAULT)
    if version is None:
        raise UserError(
            f"there is no model {entry.name} in the registry; push one with python vertex_runner.py --endpoint"
        )
    to = arguments.to or f"gs://{vertex.bucket}/{config.name}/predictions"
    answered = batch.predict(
        version, arguments.batch_predict, to, config.label.name, vertex, cloud, said, arguments.poll
    )
    said(f"{answered.rows:,} rows answered, {answered.failed:,} not, in {answered.to}")
