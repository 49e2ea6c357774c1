"""Keep the reviewed schema in step with the data: diff, accept, write.

python -m pipeline schema diff                 what the data of the last run would change in the reviewed schema
python -m pipeline schema accept carrier       changes it for this column; without a column, for all
python -m pipeline schema write --to FILE      an inferred schema, for data that has no reviewed one yet
"""

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline import filesystem
from pipeline.cli import command_line
from pipeline.cli.printing import say
from pipeline.cli.terminal import silence_stderr
from pipeline.errors import UserError
from pipeline.settings.config import PipelineConfig
from pipeline.settings.repository import find_root, runner, shown


def main(argv: list[str]) -> int:
    """Run the command; return the exit code."""
    arguments = parse_arguments(argv)
    root = find_root()
    config = command_line.chosen_config(arguments, root)
    output = command_line.output_folder(arguments, root, config)
    which = command_line.pipeline_flags(arguments)
    folder = arguments.statistics or newest(output / "artifacts/StatisticsGen/statistics")
    if not folder:
        raise UserError(f"no statistics below {shown(output)} yet; run {runner()}{which}")
    with silence_stderr():
        # TensorFlow logs on import and takes seconds to load, so import it only after parsing the arguments.
        from pipeline.quality.schema_text import changes, parse, proposed
    statistics = read_statistics(str(folder))
    if arguments.command == "write":
        write_inferred(statistics, config, arguments.to, arguments.replace)
        return 0
    schema_file = Path(arguments.schema or config.schema or "")
    if not schema_file.is_file():
        named = f"no reviewed schema {shown(schema_file)}" if schema_file.name else "the config names no schema"
        raise UserError(f"{named}; write one: python -m pipeline schema write{which} --to FILE")
    before = parse(schema_file, config.data.leave_out)
    after = proposed(before, statistics)
    found = changes(before, after)
    if arguments.command == "diff":
        return diff(schema_file, found, which)
    accept(schema_file, before, after, found, arguments.columns)
    return 0


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line.make_parser(
        "python -m pipeline schema",
        "Keep the reviewed schema in step with the data: diff, accept, write.",
        {0: "done, or nothing differs", 3: "diff found a difference"},
    )
    common = argparse.ArgumentParser(add_help=False)
    command_line.add_pipeline_arguments(common)
    common.add_argument("--statistics", help="statistics of the data, in place of the newest below --output")
    common.add_argument("--schema", help="reviewed schema, in place of the config's")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("diff", parents=[common], help="show what the data would change in the reviewed schema")
    accepting = commands.add_parser("accept", parents=[common], help="change the reviewed schema so that the data fits")
    accepting.add_argument("columns", nargs="*", help="columns to accept; all that differ, if none is named")
    writing = commands.add_parser("write", parents=[common], help="write an inferred schema for review")
    writing.add_argument("--to", type=Path, required=True, help="file to write, such as schema/mine/schema.pbtxt")
    writing.add_argument("--replace", action="store_true", help="overwrite the file")
    return parser.parse_args(argv)


def newest(artifacts: Path) -> Path | None:
    """Return the newest artifact of a step's output, ``<artifacts>/<execution>``; executions count up."""
    found = [path for path in artifacts.glob("*") if path.name.isdigit()]
    return max(found, key=lambda path: int(path.name), default=None)


def read_statistics(folder: str) -> list[Any]:
    """Read the statistics of every split, train first, from the artifact of a StatisticsGen."""
    import tensorflow_data_validation as tfdv

    files = filesystem.find_files(folder, "Split-*/FeatureStats.pb")
    if not files:
        raise UserError(f"no statistics in {folder}; expected Split-*/FeatureStats.pb, as StatisticsGen writes them")
    return [tfdv.load_stats_binary(file) for file in sorted(files, key=lambda file: "Split-train" not in file)]


def write_inferred(statistics: list[Any], config: PipelineConfig, to: Path, replace: bool) -> None:
    """Write the schema inferred from the data, in which serving does without the label."""
    from pipeline.quality.schema_text import inferred_from, to_text

    if to.exists() and not replace:
        raise UserError(f"{to} exists and may hold a review; compare with python -m pipeline schema diff --schema {to}")
    filesystem.write(to, to_text(inferred_from(statistics, config.label.name, config.label.weight)))
    say(f'Wrote {to}, inferred from the data of that run. Review it, then name it in the config: schema="{to}"')


def diff(schema_file: Path, found: Mapping[str, list[str]], which: str) -> int:
    """Print what the data would change in the reviewed schema; return 3 if that is anything, else 0."""
    print_changes(found)
    if not found:
        say(f"The data fits {shown(schema_file)}.")
        return 0
    columns = " ".join(map(shlex.quote, found))
    say(f"To accept: python -m pipeline schema accept {columns} --schema {shlex.quote(shown(schema_file))}{which}")
    return 3


def accept(schema_file: Path, before: Any, after: Any, found: Mapping[str, list[str]], columns: list[str]) -> None:
    """Change the schema file for some columns, or all; the rest of its text stays."""
    from pipeline.quality.schema_text import rewritten

    unknown = [column for column in columns if column not in found]
    if unknown:
        raise UserError(
            f"the data changes nothing about {', '.join(unknown)} in {shown(schema_file)}; it does about "
            f"{', '.join(found) or 'nothing'}"
        )
    wanted = columns or list(found)
    text = rewritten(schema_file.read_text(encoding="utf-8"), before, after, wanted)
    filesystem.write(schema_file, text)
    print_changes({column: found[column] for column in wanted})
    say(
        f"Changed {shown(schema_file)}. Look through it (git diff) and commit."
        if wanted
        else f"The data fits {shown(schema_file)}."
    )


def print_changes(found: Mapping[str, list[str]]) -> None:
    """Print each column, and its changes below."""
    for column, lines in found.items():
        say(column)
        for line in lines:
            say(f"  {line}")
