"""Parse the command line of vertex_runner.py: its commands, and the flags that each of them takes."""

import difflib
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.cli import command_line
from pipeline.cli.vertex import settings
from pipeline.settings.checks import Rule, number, text, whole

# The module of pipeline.cli.vertex that has a function of the command's name.
COMMANDS = {
    **dict.fromkeys(("run", "check", "compile"), "jobs"),
    "rehearse": "rehearse",
    "advise": "advise",
    **dict.fromkeys(("watch", "schedule", "schedules", "pause", "resume", "unschedule"), "jobs"),
    **dict.fromkeys(("rollback", "batch-predict", "monitor"), "jobs"),
    "costs": "estimates",
}
# Commands that need the data and the module file, and take the flags that replace them.
GRAPH = ("run", "check", "compile", "rehearse", "schedule")
# Names of settings.
PLACE = ("project", "region")
BUCKET = (*PLACE, "bucket")
MACHINES = (*(setting.name for setting in settings.MACHINES), "endpoint")
JOB = (*(setting.name for setting in settings.VERTEX), *MACHINES)
TASK = ("image", "service_account", "network", "encryption_key", "labels")
EXIT_CODES = {0: "done", 2: "missing or wrong settings"}
EXIT_CODES_OF_A_JOB = {0: "pushed, submitted or done", 3: "the model was not blessed", 4: "Vertex AI no longer answers"}
# A rehearsal is compiled like a run, without Google Cloud.
REHEARSAL = {
    "project": "rehearsal",
    "bucket": "rehearsal",
    "image": "rehearsal/pipeline:this",
    "service_account": "rehearsal@rehearsal.iam.gserviceaccount.com",
}
# "TZ=Europe/Berlin 0 3 * * 1": five fields, a time zone before them if it is not UTC.
CRON = text(
    "a cron line of five fields, with a time zone before it if it is not UTC, such as 'TZ=Europe/Berlin 0 3 * * 1' for "
    "Mondays at 3:00",
    r"((CRON_)?TZ=[A-Za-z_]+(/[A-Za-z_+-]+[0-9]*)*\s+)?([\d*/,A-Za-z-]+\s+){4}[\d*/,A-Za-z-]+",
)
DOLLARS = number("US dollars, a number above 0", lambda value: value > 0)


def parse_arguments(argv: list[str], environment: Mapping[str, str]) -> Namespace:
    """Parse a command line; without a command it is that of ``run``."""
    parser = command_line.make_parser(
        "vertex_runner.py",
        "Run the pipeline on Vertex AI, and look after its schedules and its endpoint.",
        EXIT_CODES | EXIT_CODES_OF_A_JOB,
        "python vertex_runner.py COMMAND --help shows a command's flags.",
    )
    parser.usage = "python vertex_runner.py [COMMAND] ..."
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    def add(name: str, purpose: str, takes: tuple[str, ...] = PLACE, needs: tuple[str, ...] = PLACE) -> ArgumentParser:
        """Add a command: what it does, the settings that it takes, and those that may not be missing."""
        prog, description = f"python vertex_runner.py {name}", f"{purpose[0].upper()}{purpose[1:]}."
        codes = EXIT_CODES | (EXIT_CODES_OF_A_JOB if name in ("run", "watch") else {})
        epilog = command_line.make_parser(prog, description, codes).epilog
        added = commands.add_parser(name, prog=prog, help=purpose, description=description, epilog=epilog)
        (command_line.add_arguments if name in GRAPH else command_line.add_pipeline_arguments)(added)
        settings.add_arguments(added, takes, environment)
        added.set_defaults(needed=needs)
        return added

    run = add("run", "check, compile, upload, submit and wait for the job (the default)", JOB, BUCKET)
    run.add_argument("--no-wait", action="store_true", help="return as soon as the job is submitted")
    check = add("check", "list what a run needs and lacks, and submit nothing", JOB, BUCKET)
    compiling = add("compile", "write the job and its files to a folder, without credentials", JOB, BUCKET)
    compiling.add_argument("out", metavar="OUT", help="folder for the job, its files and their list")
    add("rehearse", "run the compiled job here, without Google Cloud", MACHINES, ()).set_defaults(**REHEARSAL)

    takes = (*PLACE, "machines")
    advise = add("advise", "estimate hours and price on other machines from the last run here", takes, ())
    positive = command_line.positive
    advise.add_argument("--rows", type=positive, help="rows of all splits to estimate for (the last run's)")
    advise.add_argument("--epochs", type=positive, help="passes over the train split (the config's)")
    advise.add_argument(
        "--machine",
        metavar="TYPE[+ACCELERATOR[xCOUNT]]",
        action="append",
        help="ask about this one, such as n1-standard-8+NVIDIA_TESLA_T4x2; several times: about several",
    )

    watch = add("watch", "wait for a job that was submitted before")
    watch.add_argument("job", metavar="JOB", help="id or resource name of the job")
    schedule = add("schedule", "start the pipeline at given times", JOB, BUCKET)
    add("schedules", "list the schedules")
    for changing in (
        add("pause", "let a schedule start no more runs"),
        add("resume", "let a schedule start runs again"),
        add("unschedule", "delete a schedule"),
    ):
        changing.add_argument("schedule", metavar="SCHEDULE", help="name of its pipeline, its id or resource name")

    endpoint = (*PLACE, "endpoint")
    rollback = add("rollback", "bring the previous version back to the endpoint", endpoint, endpoint)
    rollback.add_argument(
        "version", metavar="VERSION", nargs="?", default="previous", help="number or alias of the version (%(default)s)"
    )
    rollback.add_argument("--dry-run", action="store_true", help="only say what would be done")
    batch = add(
        "batch-predict", "answer the rows of a table or of files", (*BUCKET, "encryption_key", "labels", "endpoint")
    )
    batch.add_argument(
        "source",
        metavar="SOURCE",
        help="bigquery://project.dataset.table or gs://bucket/folder/*.jsonl; of images also gs://bucket/list.txt",
    )
    batch.add_argument(
        "--to", metavar="PLACE", help="gs://bucket/folder or bq://project.dataset (the pipeline's folder in the bucket)"
    )
    monitor = add(
        "monitor",
        "compare the endpoint's requests with the training data, at given times",
        (*BUCKET, *TASK, "machines", "endpoint"),
        (*BUCKET, "endpoint"),
    )
    monitor.add_argument("--retrain", action="store_true", help="a crossed limit starts the pipeline")
    add(
        "costs",
        "list what is paid for and not used, with its price a month and the command that ends it",
        (*BUCKET, "machines"),
        BUCKET,
    ).add_argument(
        "--days",
        type=_checked(whole(1, 730, "number of days"), int),
        default=30,
        help="days without use after which something is listed (%(default)s)",
    )

    for command in (run, watch, batch):
        command.add_argument("--poll", type=float, default=10.0, help="seconds between two looks (%(default)g)")
    for command in (run, watch):
        command.add_argument(
            "--patience", type=float, default=900.0, help="seconds without an answer to give up after (%(default)g)"
        )
    for command in (run, check, schedule):
        command.add_argument(
            "--max-cost",
            metavar="USD",
            type=_checked(DOLLARS, lambda given: float(given.removeprefix("$"))),
            help="refuse a run that is estimated to cost more US dollars (max_cost in the table of machines)",
        )
    for command in (schedule, monitor):
        command.add_argument("cron", metavar="CRON", type=_checked(CRON), help="times: 'TZ=Europe/Berlin 0 3 * * 1'")

    first = argv[0] if argv else "run"
    as_flag = next((word[2:] for word in argv if word.startswith("--") and word[2:] in COMMANDS), None)
    if first not in COMMANDS and (as_flag or not first.startswith("-")):
        close = difflib.get_close_matches(as_flag or first, COMMANDS, 1)
        hint = f"did you mean python vertex_runner.py {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
        parser.error(f"--{as_flag} is a command, no flag; {hint}" if as_flag else f"no command {first!r}; {hint}")
    with_command = bool(argv) and first in (*COMMANDS, "-h", "--help")
    arguments, rest = parser.parse_known_args(argv if with_command else ["run", *argv])
    if late := next((word for word in rest if word in COMMANDS), None):
        parser.error(f"the command comes first: python vertex_runner.py {late} ...")
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if arguments.command == "batch-predict" and not arguments.to:
        arguments.needed = BUCKET
    if arguments.command == "watch" and "/" in arguments.job:  # the full name says where it is
        place = re.fullmatch(r"projects/([^/]+)/locations/([^/]+)/pipelineJobs/[^/]+", arguments.job)
        if not place:
            watch.error(
                f"JOB must be an id, or projects/PROJECT/locations/REGION/pipelineJobs/ID, got {arguments.job!r}"
            )
        arguments.project, arguments.region = place.groups()
    return arguments


def _checked(rule: Rule, convert: Callable[[str], Any] = str) -> Callable[[str], Any]:
    def read(given: str) -> Any:
        try:
            value = convert(given.strip())
        except ValueError:
            value = None
        if not rule.holds(value):
            raise ArgumentTypeError(f"must be {rule.expected}, got {given!r}")
        return value

    return read
