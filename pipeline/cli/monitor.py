"""Compare the requests to a served model with its training data: python -m pipeline monitor --help."""

import argparse
import datetime
import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pipeline.cli import command_line
from pipeline.cli.printing import say
from pipeline.cli.schema import newest
from pipeline.cli.terminal import silence_stderr
from pipeline.errors import UserError
from pipeline.quality.request_rows import CROSSED, MIN_ROWS, ROWS, WITHIN, RequestRows
from pipeline.settings.config import PipelineConfig
from pipeline.settings.names import shortened
from pipeline.settings.repository import find_root, runner, shown


def main(argv: list[str]) -> int:
    """Run the command; return the exit code."""
    arguments = parse_arguments(argv)
    root = find_root()
    config = command_line.chosen_config(arguments, root)
    output = command_line.output_folder(arguments, root, config)
    requests = read_log(arguments.log, arguments.rows, arguments.version)
    if len(requests.instances) < arguments.min_rows:
        raise UserError(
            f"too few rows to judge by: {len(requests.instances):,} of version {requests.version} in {arguments.log}, "
            f"at least {arguments.min_rows:,} are needed; wait for more, or lower --min-rows"
        )
    crossed = monitor(requests, config, output)
    if crossed and arguments.retrain:
        say("Retraining on the newest data.")
        flags = shlex.split(command_line.pipeline_flags(arguments))
        return subprocess.run([sys.executable, str(root / "local_runner.py"), *flags], check=False).returncode
    return CROSSED if crossed else WITHIN


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line.make_parser(
        "python -m pipeline monitor",
        "Compare the requests to a served model with its training data, by the limits of the schema.",
        {0: "within the limits", 1: "failed, or too few rows", 4: "a limit is crossed"},
        "With --retrain, the exit code after a crossed limit is that of local_runner.py.",
    )
    command_line.add_pipeline_arguments(parser)
    parser.add_argument(
        "--log", type=Path, required=True, help="file or folder that pipeline serve --request-log wrote"
    )
    parser.add_argument("--version", type=int, help="version whose rows are compared (the one that answered last)")
    parser.add_argument("--rows", type=int, default=ROWS, help="most rows to compare, the newest (%(default)s)")
    parser.add_argument("--min-rows", type=int, default=MIN_ROWS, help="fail with fewer rows than this (%(default)s)")
    parser.add_argument("--retrain", action="store_true", help="run the pipeline when a limit is crossed")
    return parser.parse_args(argv)


def read_log(log: Path, rows: int, version: int | None = None) -> RequestRows:
    """Read the newest rows that one version answered."""
    files = sorted(log.glob("*.jsonl")) if log.is_dir() else [log]
    if not files or not files[0].is_file():
        raise UserError(f"no request log at {log}; expected the folder that pipeline serve --request-log wrote")
    instances: list[dict[str, Any]] = []
    predictions: list[Any] = []
    times: list[str] = []
    versions: Counter[int] = Counter()
    broken = 0
    # Newest first; days that are not needed are not read.
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in reversed(files))
    for line in (line for text in texts for line in reversed(text.splitlines())):
        try:
            entry = json.loads(line)
            number, instance, time = entry["version"], entry["instance"], entry["time"]
        except (ValueError, KeyError, TypeError):
            broken += 1
            continue
        version = number if version is None else version
        versions[number] += 1
        if number == version and isinstance(instance, dict):
            instances.append(instance)
            predictions.append(entry.get("prediction"))
            times.append(time)
            if len(instances) >= rows:
                break
    if not instances:
        others = f"it has rows of the versions {shortened(map(str, sorted(versions)))}" if versions else "it has none"
        raise UserError(f"no rows{'' if version is None else f' of version {version}'} in {log}: {others}")
    assert version is not None
    of_others = versions.total() - versions[version]
    return RequestRows(version, instances[::-1], times[-1], times[0], of_others, broken, predictions[::-1])


def monitor(requests: RequestRows, config: PipelineConfig, output: Path) -> bool:
    """Print the report, and write statistics and findings below the output folder."""
    with silence_stderr():
        from pipeline.quality import reference, serving_skew
        from pipeline.quality.schema_text import parse
        from pipeline.quality.statistics import Remedies

        root = str(output / "artifacts" / "_pushed" / config.name)
        train = reference.read(root, str(requests.version), "train")
        if train is None:
            raise UserError(
                f"no training statistics of version {requests.version}; name the output folder of the run that pushed "
                f"it with --output: {shown(root)} has versions {shortened(reference.versions(root)) or 'none'}"
            )
        inferred = newest(output / "artifacts/SchemaGen/schema")
        if not config.schema and not inferred:
            raise UserError(f"no schema below {shown(output)}, and the config names none; run {runner()} first")
        schema_file = Path(config.schema or f"{inferred}/schema.pbtxt")
        folder = str(output / "monitor" / datetime.datetime.now().strftime("%Y-%m-%dT%H-%M-%S"))
        remedies = Remedies(shown(schema_file) if config.schema else None, shown(folder))
        of_test = reference.read(root, str(requests.version), reference.PREDICTIONS)
        schema = parse(schema_file, config.data.leave_out)
        lines, crossed = serving_skew.report(requests, schema, train, config, remedies, folder, of_test)
    say("\n".join(lines))
    return crossed
