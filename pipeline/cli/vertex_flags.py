"""The flags of what vertex_runner.py does beside running the pipeline; ``pipeline.cli.vertex_commands`` does it."""

from __future__ import annotations

import argparse
import re
from typing import Any

from pipeline.data.files import is_remote
from pipeline.errors import UserError
from pipeline.settings.config import PipelineConfig

# "TZ=Europe/Berlin 0 3 * * 1": five fields, a time zone before them if it is not UTC.
CRON = re.compile(r"((CRON_)?TZ=[A-Za-z_]+(/[A-Za-z_+-]+[0-9]*)*\s+)?([\d*/,A-Za-z-]+\s+){4}[\d*/,A-Za-z-]+")
ABOUT_SCHEDULES = ("schedules", "pause", "resume", "unschedule")


def add_arguments(what: Any, parser: argparse.ArgumentParser) -> None:
    """Adds the flags; ``what`` is the group of which only one may be given."""
    what.add_argument(
        "--rollback",
        metavar="VERSION",
        nargs="?",
        const="previous",
        help="bring the version before back to the endpoint, or another by its number; ends a push that has not ended",
    )
    what.add_argument("--batch-predict", metavar="SOURCE", help="answer the rows of a table or of files")
    what.add_argument(
        "--schedule", metavar="CRON", help="start the pipeline at these times: 'TZ=Europe/Berlin 0 3 * * 1'"
    )
    what.add_argument(
        "--schedule-monitoring", metavar="CRON", help="compare what the endpoint is asked with the training data, then"
    )
    what.add_argument("--schedules", action="store_true", help="list the schedules")
    what.add_argument("--pause", metavar="SCHEDULE", help="start no more runs; by the pipeline's name")
    what.add_argument("--resume", metavar="SCHEDULE", help="start runs again")
    what.add_argument("--unschedule", metavar="SCHEDULE", help="delete a schedule")
    parser.add_argument("--dry-run", action="store_true", help="with --rollback: only say what would be done")
    parser.add_argument(
        "--retrain", action="store_true", help="with --schedule-monitoring: a crossed limit starts the pipeline"
    )
    parser.add_argument(
        "--to", metavar="PLACE", help="with --batch-predict: gs://bucket/folder or bq://project.dataset"
    )


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments, if those that belong together are there together."""
    if arguments.dry_run and not arguments.rollback:
        parser.error("--dry-run goes with --rollback; --check looks at all that a run needs")
    if arguments.to and not arguments.batch_predict:
        parser.error("--to goes with --batch-predict")
    if arguments.retrain and not arguments.schedule_monitoring:
        parser.error("--retrain goes with --schedule-monitoring")
    for flag, cron in (("schedule", arguments.schedule), ("schedule-monitoring", arguments.schedule_monitoring)):
        if cron is not None and not CRON.fullmatch(cron.strip()):
            parser.error(
                f"--{flag} must be a cron line of five fields, with a time zone before it if it is not UTC, such as "
                f"'TZ=Europe/Berlin 0 3 * * 1' for Mondays at 3:00, got {cron!r}"
            )
    return arguments


def without_run(arguments: argparse.Namespace) -> bool:
    """Whether something is asked for that needs neither the data nor the module file."""
    return bool(arguments.rollback or arguments.batch_predict or arguments.schedule_monitoring) or any(
        getattr(arguments, one) for one in ABOUT_SCHEDULES
    )


def needed(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The settings that may not be missing."""
    writes = arguments.schedule_monitoring or (arguments.batch_predict and not arguments.to)
    bucket = not arguments.watch and (writes or not without_run(arguments))
    return ("project", "region", "bucket") if bucket else ("project", "region")


def check_data(config: PipelineConfig) -> None:
    """Refuses a schedule on data that stays as it is.

    Raises:
        UserError: the data is on this machine.
    """
    if not config.data.query_source and not is_remote(config.data.path):
        raise UserError(
            f"the data is on this machine ({config.data.path}), and every run of a schedule would train on the copy "
            "that is uploaded now; put the data into a bucket or BigQuery and name it with data.path or --data"
        )
