"""Holds what a served model was asked against what it was trained on: python -m pipeline monitor --help."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.cli.command_line import add_pipeline_arguments, chosen_config
from pipeline.cli.terminal import silence_stderr
from pipeline.errors import UserError
from pipeline.settings.config import PipelineConfig
from pipeline.settings.names import shortened
from pipeline.settings.repository import find_root, runner, shown
from pipeline.validation.request_rows import CROSSED, FINDINGS, MIN_ROWS, ROWS, WITHIN, Asked, lines_of


def main(argv: list[str]) -> int:
    """Runs what the command line asks for; returns the exit code."""
    arguments = parse_arguments(argv)
    root = find_root()
    config = chosen_config(arguments, root)
    output = Path(arguments.output) if arguments.output else root / "output" / config.name
    asked = read_log(arguments.log, arguments.rows, arguments.version)
    if len(asked.instances) < arguments.min_rows:
        raise UserError(
            f"too few rows to judge by: {len(asked.instances):,} of version {asked.version} in {arguments.log}, at "
            f"least {arguments.min_rows:,} are needed; wait for more, or lower --min-rows"
        )
    crossed = monitor(asked, config, output)
    if crossed and arguments.retrain:
        print("Retraining on the newest data.", flush=True)
        which = ["--config", arguments.config] if arguments.config else ["--pipeline", arguments.pipeline]
        command = [sys.executable, str(root / "local_runner.py"), *which]
        return subprocess.run([*command, "--output", str(output)], check=False).returncode
    return CROSSED if crossed else WITHIN


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline monitor",
        description="Compare what a served model was asked with what it was trained on, by the limits of the schema.",
        epilog="Exit codes: 0 within the limits, 4 a limit is crossed, 1 failed or too few rows, 2 wrong arguments; "
        "with --retrain, after a crossed limit, those of local_runner.py.",
    )
    parser.add_argument(
        "--log", type=Path, required=True, help="file or folder that pipeline serve --request-log wrote"
    )
    add_pipeline_arguments(parser)
    parser.add_argument("--output", help="output folder of the run that pushed the model (output/<name>)")
    parser.add_argument("--version", type=int, help="whose rows are judged (the one that answered last)")
    parser.add_argument("--rows", type=int, default=ROWS, help="newest rows that are judged (%(default)s)")
    parser.add_argument("--min-rows", type=int, default=MIN_ROWS, help="least rows to judge by (%(default)s)")
    parser.add_argument("--retrain", action="store_true", help="run the pipeline when a limit is crossed")
    return parser.parse_args(argv)


def read_log(log: Path, rows: int, version: int | None = None) -> Asked:
    """The newest rows of one version.

    Raises:
        UserError: there is no log, or it has no such rows.
    """
    files = sorted(log.glob("*.jsonl")) if log.is_dir() else [log]
    if not files or not files[0].is_file():
        raise UserError(f"no request log at {log}; expected the folder that pipeline serve --request-log wrote")
    instances: list[dict[str, Any]] = []
    times: list[str] = []
    versions: Counter[int] = Counter()
    broken = 0
    for line in _from_the_end(files):
        try:
            one = json.loads(line)
            number, instance, time = one["version"], one["instance"], one["time"]
        except (ValueError, KeyError, TypeError):
            broken += 1
            continue
        version = number if version is None else version
        versions[number] += 1
        if number == version and isinstance(instance, dict):
            instances.append(instance)
            times.append(time)
            if len(instances) >= rows:
                break
    if not instances:
        there = f"it has rows of the versions {shortened(map(str, sorted(versions)))}" if versions else "it has none"
        raise UserError(f"no rows{'' if version is None else f' of version {version}'} in {log}: {there}")
    assert version is not None
    others = versions.total() - versions[version]
    return Asked(version, instances[::-1], times[-1], times[0], others, broken)


def monitor(asked: Asked, config: PipelineConfig, output: Path) -> bool:
    """Prints what was found, and writes statistics and findings below the output folder.

    Returns:
        Whether a limit is crossed.

    Raises:
        UserError: there is nothing to compare with.
    """
    with silence_stderr():
        from pipeline.validation import reference, serving_skew
        from pipeline.validation.findings import to_json
        from pipeline.validation.schema_text import parse
        from pipeline.validation.statistics import Remedies

        root = output / "artifacts" / "_pushed" / config.name
        train = reference.read(str(root), str(asked.version), "train")
        if train is None:
            there = shortened(sorted(path.name for path in root.glob("*"))) or "none"
            raise UserError(
                f"no training statistics of version {asked.version}; name the output folder of the run that pushed it "
                f"with --output: {shown(root)} has those of the versions {there}"
            )
        schema_file = Path(config.schema) if config.schema else _inferred_schema(output)
        now = datetime.datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
        folder = output / "monitor" / now
        statistics, found = serving_skew.judged(
            asked.instances,
            parse(schema_file),
            train,
            config.label.name,
            config.data_checks,
            Remedies(shown(schema_file) if config.schema else None, shown(folder)),
        )
    split = folder / f"Split-{serving_skew.SPLIT}"
    split.mkdir(parents=True, exist_ok=True)
    (split / "FeatureStats.pb").write_bytes(statistics.SerializeToString())
    (folder / FINDINGS).write_text(to_json(found) + "\n", encoding="utf-8")

    print("\n".join(lines_of(asked, found)))
    print(f"statistics and findings: {shown(folder)}")
    return any(one.severity == "stop" for one in found)


def _from_the_end(files: list[Path]) -> Iterator[str]:
    """Lines, newest first; days that are not needed are not read."""
    for file in reversed(files):
        yield from reversed(file.read_text(encoding="utf-8", errors="replace").splitlines())


def _inferred_schema(output: Path) -> Path:
    found = sorted(output.glob("artifacts/SchemaGen/schema/*/schema.pbtxt"), key=lambda path: int(path.parent.name))
    if not found:
        raise UserError(f"no schema below {shown(output)}, and the config names none; run {runner()} first")
    return found[-1]
