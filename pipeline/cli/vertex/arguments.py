"""Parse the command line of vertex_runner.py: its commands, and the flags that each of them takes."""

import argparse
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.cli import command_line
from pipeline.cli.vertex import settings

# "TZ=Europe/Berlin 0 3 * * 1": five fields, a time zone before them if it is not UTC.
CRON = re.compile(r"((CRON_)?TZ=[A-Za-z_]+(/[A-Za-z_+-]+[0-9]*)*\s+)?([\d*/,A-Za-z-]+\s+){4}[\d*/,A-Za-z-]+")
PLACE = ("project", "region")
BUCKET = (*PLACE, "bucket")
MACHINES = (*(setting.name for setting in settings.MACHINES), "endpoint")
JOB = (*(setting.name for setting in settings.VERTEX), *MACHINES)
TASK = ("image", "service_account", "network", "encryption_key", "labels")
EXIT_CODES = {0: "done", 2: "missing or wrong settings"}
EXIT_CODES_OF_A_JOB = {0: "pushed, submitted or done", 3: "the model was not blessed", 4: "Vertex AI no longer answers"}
# A rehearsal is compiled like a run, and nothing in it is asked of Google Cloud.
REHEARSAL = {
    "project": "rehearsal",
    "bucket": "rehearsal",
    "image": "rehearsal/pipeline:this",
    "service_account": "rehearsal@rehearsal.iam.gserviceaccount.com",
}


@dataclass(frozen=True)
class Command:
    """A command of vertex_runner.py.

    Attributes:
        module: Module of pipeline.cli.vertex that has a function of the command's name.
        help: What it does.
        settings: Names of the settings that it takes.
        needed: Those that may not be missing.
        graph: Whether it needs the data and the module file, and takes the flags that replace them.
    """

    module: str
    help: str
    settings: tuple[str, ...] = PLACE
    needed: tuple[str, ...] = PLACE
    graph: bool = False


COMMANDS = {
    "run": Command("jobs", "check, compile, upload, submit and wait for the job (the default)", JOB, BUCKET, True),
    "check": Command("jobs", "list what a run needs and lacks, and submit nothing", JOB, BUCKET, True),
    "compile": Command("jobs", "write the job and its files to a folder, without credentials", JOB, BUCKET, True),
    "rehearse": Command("rehearse", "run the compiled job here, without Google Cloud", MACHINES, (), True),
    "advise": Command(
        "advise", "estimate hours and price on other machines from the last run here", (*PLACE, "machines"), ()
    ),
    "watch": Command("jobs", "wait for a job that was submitted before"),
    "schedule": Command("jobs", "start the pipeline at given times", JOB, BUCKET, True),
    "schedules": Command("jobs", "list the schedules"),
    "pause": Command("jobs", "let a schedule start no more runs"),
    "resume": Command("jobs", "let a schedule start runs again"),
    "unschedule": Command("jobs", "delete a schedule"),
    "rollback": Command(
        "serving", "bring the previous version back to the endpoint", (*PLACE, "endpoint"), (*PLACE, "endpoint")
    ),
    "batch-predict": Command(
        "serving",
        "answer the rows of a table or of files",
        (*BUCKET, "encryption_key", "labels", "endpoint"),
    ),
    "monitor": Command(
        "serving",
        "compare what the endpoint is asked with the training data, at given times",
        (*BUCKET, *TASK, "machines", "endpoint"),
        (*BUCKET, "endpoint"),
    ),
    "costs": Command(
        "estimates",
        "list what is paid for and not used, with its price a month and the command that ends it",
        (*BUCKET, "machines"),
        BUCKET,
    ),
}


def parse_arguments(argv: list[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """Parse a command line; without a command it is that of ``run``."""
    parser = command_line.make_parser(
        "vertex_runner.py",
        "Run the pipeline on Vertex AI, and look after its schedules and its endpoint.",
        EXIT_CODES | EXIT_CODES_OF_A_JOB,
        "python vertex_runner.py COMMAND --help shows a command's flags.",
    )
    parser.usage = "python vertex_runner.py [COMMAND] ..."
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    parsers = {}
    for name, command in COMMANDS.items():
        prog, description = f"python vertex_runner.py {name}", f"{command.help[0].upper()}{command.help[1:]}."
        codes = EXIT_CODES | (EXIT_CODES_OF_A_JOB if name in ("run", "watch") else {})
        epilog = command_line.make_parser(prog, description, codes).epilog
        parsers[name] = commands.add_parser(name, prog=prog, help=command.help, description=description, epilog=epilog)
        (command_line.add_arguments if command.graph else command_line.add_pipeline_arguments)(parsers[name])
        settings.add_arguments(parsers[name], command.settings, environment)
        parsers[name].set_defaults(needed=command.needed)
    _add_own_arguments(parsers)

    first = argv[0] if argv else "run"
    as_flag = next((word[2:] for word in argv if word.startswith("--") and word[2:] in COMMANDS), None)
    if first not in COMMANDS and (as_flag or not first.startswith("-")):
        close = difflib.get_close_matches(as_flag or first, COMMANDS, 1)
        hint = f"did you mean python vertex_runner.py {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
        parser.error(f"--{as_flag} is a command, no flag; {hint}" if as_flag else f"no command {first!r}; {hint}")
    arguments, rest = parser.parse_known_args(
        argv if argv[:1] == [first] and first in (*COMMANDS, "-h", "--help") else ["run", *argv]
    )
    late = next((word for word in rest if word in COMMANDS), None)
    if late:
        parser.error(f"the command comes first: python vertex_runner.py {late} ...")
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if arguments.command == "batch-predict" and not arguments.to:
        arguments.needed = BUCKET
    if arguments.command == "watch" and "/" in arguments.job:  # the full name says where it is
        place = re.fullmatch(r"projects/([^/]+)/locations/([^/]+)/pipelineJobs/[^/]+", arguments.job)
        if not place:
            parsers["watch"].error(
                f"JOB must be an id, or projects/PROJECT/locations/REGION/pipelineJobs/ID, got {arguments.job!r}"
            )
        arguments.project, arguments.region = place.groups()
    return arguments


def _add_own_arguments(parsers: Mapping[str, argparse.ArgumentParser]) -> None:
    """Add the arguments that only one command or two of them take."""
    parsers["run"].add_argument("--no-wait", action="store_true", help="return as soon as the job is submitted")
    parsers["compile"].add_argument("out", metavar="OUT", help="folder for the job, its files and their list")
    parsers["rehearse"].set_defaults(**REHEARSAL)
    _add_arguments_of_advise(parsers["advise"])
    parsers["watch"].add_argument("job", metavar="JOB", help="id or resource name of the job")
    for name in ("run", "watch", "batch-predict"):
        parsers[name].add_argument("--poll", type=float, default=10.0, help="seconds between two looks (%(default)g)")
    for name in ("run", "watch"):
        parsers[name].add_argument(
            "--patience", type=float, default=900.0, help="seconds without an answer to give up after (%(default)g)"
        )
    for name in ("run", "check", "schedule"):
        parsers[name].add_argument(
            "--max-cost",
            metavar="USD",
            type=_dollars,
            help="refuse a run that is estimated to cost more US dollars (max_cost in the table of machines)",
        )
    for name in ("schedule", "monitor"):
        parsers[name].add_argument("cron", metavar="CRON", type=_cron, help="times: 'TZ=Europe/Berlin 0 3 * * 1'")
    for name in ("pause", "resume", "unschedule"):
        parsers[name].add_argument("schedule", metavar="SCHEDULE", help="name of its pipeline, its id or resource name")
    parsers["rollback"].add_argument(
        "version", metavar="VERSION", nargs="?", default="previous", help="number or alias of the version (%(default)s)"
    )
    parsers["rollback"].add_argument("--dry-run", action="store_true", help="only say what would be done")
    parsers["batch-predict"].add_argument(
        "source",
        metavar="SOURCE",
        help="bigquery://project.dataset.table or gs://bucket/folder/*.jsonl; of images also gs://bucket/list.txt",
    )
    parsers["batch-predict"].add_argument(
        "--to", metavar="PLACE", help="gs://bucket/folder or bq://project.dataset (the pipeline's folder in the bucket)"
    )
    parsers["monitor"].add_argument("--retrain", action="store_true", help="a crossed limit starts the pipeline")
    parsers["costs"].add_argument(
        "--days", type=_days, default=30, help="days without use after which something is listed (%(default)s)"
    )


def _add_arguments_of_advise(parser: argparse.ArgumentParser) -> None:
    positive = command_line.positive
    parser.add_argument("--rows", type=positive, help="rows of all splits to estimate for (those of the last run)")
    parser.add_argument("--epochs", type=positive, help="passes over the train split (the config's)")
    parser.add_argument("--within", metavar="TIME", type=_seconds, help="deadline, such as 8h or 90m")
    parser.add_argument(
        "--machine",
        metavar="TYPE[+ACCELERATOR[xCOUNT]]",
        action="append",
        help="ask about this one, such as n1-standard-8+NVIDIA_TESLA_T4x2; several times: about several",
    )
    parser.add_argument("--spot", action="store_true", help="judge by the prices of spot machines")
    parser.add_argument(
        "--refresh",
        action="store_true",
        help="bring configs/prices.toml up to date first, from Google's Cloud Billing Catalog: needs a project",
    )


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([mhd])", text.strip())
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(
            f"must be a number above 0 and m, h or d for minutes, hours or days, such as 90m, 8h or 2d, got {text!r}"
        )
    return float(found[1]) * {"m": 60, "h": 3600, "d": 86400}[found[2]]


def _cron(text: str) -> str:
    if not CRON.fullmatch(text.strip()):
        raise argparse.ArgumentTypeError(
            "must be a cron line of five fields, with a time zone before it if it is not UTC, such as "
            f"'TZ=Europe/Berlin 0 3 * * 1' for Mondays at 3:00, got {text!r}"
        )
    return text.strip()


def _days(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 730:
        raise argparse.ArgumentTypeError(f"expected whole days from 1 to 730, got {text!r}")
    return int(text)


def _dollars(text: str) -> float:
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise argparse.ArgumentTypeError(f"must be US dollars, a number above 0, got {text!r}")
    return amount
