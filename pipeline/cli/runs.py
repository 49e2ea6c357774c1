"""Show, compare and clean the runs of a pipeline: python -m pipeline runs list, show, diff, clean."""

import argparse
import difflib
import math
import re
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from pipeline.cli import command_line
from pipeline.cli.command_line import positive
from pipeline.cli.printing import Terminal
from pipeline.cli.terminal import print_table
from pipeline.costs.estimate import dollars
from pipeline.errors import UserError
from pipeline.runs import cleaning, store, watched_jobs
from pipeline.runs.record import flat
from pipeline.runs.store import Run
from pipeline.runs.watched_jobs import WatchedJob
from pipeline.settings.repository import find_root, runner, shown
from pipeline.settings.target import only_run_in
from pipeline.settings.tasks import METRICS


def main(argv: list[str]) -> int:
    """Run the command; return the exit code."""
    arguments = parse_arguments(argv)
    # Do not wrap lines in a file or a pipe.
    console = Terminal(width=None if sys.stdout.isatty() else 160)
    root = find_root()
    output = command_line.output_folder(arguments, root, command_line.chosen_config(arguments, root))
    runs = store.runs(output)
    run_it = f"{runner()}{command_line.pipeline_flags(arguments)}"
    jobs = watched_jobs.read_all(output)
    if not runs and not (jobs and arguments.command == "list"):
        raise UserError(f"no runs below {shown(output)} yet; start the first one: {run_it}")
    if arguments.command == "clean":
        return clean(console, output, arguments.keep, arguments.yes)
    if arguments.command == "list":
        list_runs(console, runs)
        if runs and jobs:
            console.print()
        list_jobs(console, jobs)
    elif arguments.command == "show":
        show(console, store.find(runs, arguments.run), output)
    else:
        if len(runs) == 1:
            raise UserError(f"there is one run, {runs[0].name}, and a second is needed to compare with: {run_it}")
        earlier = store.find(runs, arguments.earlier, -2)
        diff(console, earlier, store.find(runs, arguments.later))
    return 0


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line.make_parser(
        "python -m pipeline runs", "List, show, compare and clean up the runs of a pipeline.", {0: "done"}
    )
    common = argparse.ArgumentParser(add_help=False)
    command_line.add_pipeline_arguments(common)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", parents=[common], help="a line a run: time, data, verdict, metrics, duration")
    showing = commands.add_parser("show", parents=[common], help="one run in full")
    showing.add_argument("run", nargs="?", help="its name or the beginning of it (the last one)")
    comparing = commands.add_parser(
        "diff", parents=[common], help="what differs: settings, code, schema, data, metrics"
    )
    comparing.add_argument("earlier", nargs="?", help="name of a run (the last but one)")
    comparing.add_argument("later", nargs="?", help="name of a run (the last one)")
    cleaning_up = commands.add_parser("clean", parents=[common], help="delete what no kept run or pushed model needs")
    cleaning_up.add_argument("--keep", type=positive, required=True, help="how many of the newest runs to keep whole")
    cleaning_up.add_argument("--yes", action="store_true", help="delete; without it, only show what would be deleted")
    return parser.parse_args(argv)


def list_runs(console: Terminal, runs: list[Run]) -> None:
    """Print a line for each run, the oldest first."""
    if not runs:
        return
    measured = {name for run in runs for name in run.record.metrics}
    names = [name for name, metric in METRICS.items() if metric.listed and name in measured]
    rows = []
    for run in runs:
        values = [_number(run.record.metrics.get(name)) for name in names]
        states = [run.state(node) for node in run.executions]
        executed = f"{states.count('ran')} of {len(states)}"
        rows.append((run.name, _data(run), run.verdict, *values, f"{run.seconds:,.0f} s", executed))
    print_table(console, ("run", "data", "verdict", *names, "took", "executed"), rows, left=3)


def list_jobs(console: Terminal, jobs: list[WatchedJob]) -> None:
    """Print a line for each job on Vertex AI that was watched from here, with its cost."""
    if not jobs:
        return
    rows = [
        (job.id, job.started.replace("T", " "), job.state, f"{job.seconds:,.0f} s", dollars(job.bill.total))
        for job in jobs
    ]
    print_table(console, ("on Vertex AI", "started (UTC)", "ended", "took", "cost"), rows, left=3)


def show(console: Terminal, run: Run, output: Path) -> None:
    """Print one run in full."""
    console.print(f"{run.name}: {run.verdict}", style="bold")
    for sentence in (*run.record.failed, *run.record.notes):
        console.print(f"  {sentence}", soft_wrap=True)
    report = output / "runs" / run.name / "report.html"
    facts = {
        "started": f"{run.started:%Y-%m-%d %H:%M:%S}",
        "took": f"{run.seconds:,.1f} s",
        "command": run.record.command,
        "pushed to": shown(run.record.pushed_to) if run.record.pushed_to else "",
        "data": _fingerprint(run).replace("\n", "; "),
        "code": run.record.code,
        "report": shown(report) if report.is_file() else "",
        "cost": f"{dollars(run.record.cost['total'])} on Vertex AI" if run.record.cost else "",
        "log": shown(log) if (log := output / "logs" / f"{run.name}.log").is_file() else "",
    }
    for name, value in facts.items():
        if value:
            console.print(f"  {name:<11}{value}", soft_wrap=True)
    console.print()
    for node, execution in run.executions.items():
        console.print(f"  {node:<20}{run.state(node):<12}{store.seconds_of(execution):7.1f} s")
    console.print()
    for name, metric in run.record.metrics.items():
        console.print(f"  {name:<24}{_number(metric)}")


def diff(console: Terminal, earlier: Run, later: Run) -> None:
    """Print the differences between two runs, and the steps that the later one re-used."""
    console.print(f"{earlier.name} ({earlier.verdict}) -> {later.name} ({later.verdict})", style="bold")
    parts = {
        "settings": changes(flat(earlier.record.config), flat(later.record.config)),
        "code": code_changes(earlier, later),
        "schema": _text_diff("schema.pbtxt", _schema(earlier), _schema(later)),
        "data": changes(_data_of(earlier), _data_of(later)),
        "packages and machine": changes(*({**run.record.packages, **run.record.machine} for run in (earlier, later))),
        "metrics": metric_changes(earlier, later),
    }
    for title, lines in parts.items():
        if lines:
            console.print(f"\n{title}", style="bold")
        for line in lines:
            console.print(f"  {line}", soft_wrap=True)
    same = [title for title, lines in parts.items() if not lines]
    if same:
        console.print(f"\nthe same: {', '.join(same)}")
    for title, state in (("executed:", "ran"), ("re-used:", "cached")):
        nodes = [node for node in later.executions if later.state(node) == state]
        console.print(f"{title:<11}{', '.join(nodes) or 'nothing'}", soft_wrap=True)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names whose values differ."""
    names = list(dict.fromkeys([*before, *after]))
    return [
        f"{name}: {before.get(name, '(none)')} -> {after.get(name, '(none)')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def metric_changes(earlier: Run, later: Run) -> list[str]:
    """Return the metrics over all rows that have changed."""
    before, after = earlier.record.metrics, later.record.metrics
    lines = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name, math.nan), after.get(name, math.nan)
        # The order in which Beam adds numbers varies between runs.
        if not math.isclose(old, new, rel_tol=1e-5) and not (math.isnan(old) and math.isnan(new)):
            change = f"  {new - old:+.4f}" if math.isfinite(new - old) else ""
            lines.append(f"{name:<24}{_number(old)} -> {_number(new)}{change}")
    return lines


def code_changes(earlier: Run, later: Run) -> list[str]:
    """Return the lines of the user's modules that differ, each once though several steps run them, and the library."""
    lines: list[str] = []
    for node in dict.fromkeys([*earlier.executions, *later.executions]):
        before, after = _sources(earlier, node), _sources(later, node)
        for name in sorted({*before, *after}) if before and after else ():
            differences = _text_diff(name, before.get(name, ""), after.get(name, ""))
            if not set(differences) <= set(lines):
                lines += differences
    old, new = earlier.record.code, later.record.code
    if old and new and old != new:
        lines.append(f"library pipeline/: {old} -> {new} (fingerprints)")
    return lines


def _text_diff(name: str, before: str, after: str) -> list[str]:
    """Return the lines that differ and their places; not empty ones, for code that a step does not need is blank."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    lines = []
    for tag, a, b, c, d in matcher.get_opcodes():
        gone = [f"- {line}" for line in before.splitlines()[a:b] if line.strip()]
        new = [f"+ {line}" for line in after.splitlines()[c:d] if line.strip()]
        if tag != "equal" and (gone or new):
            lines += [f"{name}, line {c + 1}", *gone, *new]
    return lines


def _sources(run: Run, node: str) -> dict[str, str]:
    """Return the user's modules by name, as a step ran them; empty if the step runs none or the wheel is missing."""
    _, _, wheel = str(run.settings(node).get("module_path", "")).partition("@")
    if not wheel or not zipfile.is_zipfile(wheel):
        return {}
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}


def _schema(run: Run) -> str:
    artifact = run.artifact("ReviewedSchema", "result") or run.artifact("SchemaGen", "schema")
    file = Path(artifact.uri) / "schema.pbtxt" if artifact else None
    return file.read_text(encoding="utf-8") if file and file.is_file() else ""


def _fingerprint(run: Run) -> str:
    return str(run.settings("ExampleGen").get("input_fingerprint", ""))


def _data_of(run: Run) -> dict[str, str]:
    lines = (line.partition(",") for line in _fingerprint(run).splitlines())
    return {"span": str(run.settings("ExampleGen").get("span", "")), **{name: rest for name, _, rest in lines}}


def _data(run: Run) -> str:
    size = sum(map(int, re.findall(r"\btotal_bytes:(\d+)", _fingerprint(run))))
    return f"span {run.settings('ExampleGen').get('span', 0)}, {decimal(size)}" if size else "-"


def _number(value: Any) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) > 1 else f"{value:.4f}"


def clean(console: Terminal, output: Path, keep: int, yes: bool) -> int:
    """Show the plan of a cleaning, and carry it out if asked to; return the exit code."""
    with only_run_in(output), store.opened(output, write=yes) as metadata:
        plan = cleaning.plan(metadata, output, keep)
        console.print(f"in {plan.output}")
        for path, real in plan.left_alone.items():
            leads = "leads" if path.exists() else "would lead"
            console.print(f"  left alone: {path} {leads} to {real}; delete it yourself if nothing else needs it")
        for name, (count, size) in plan.by_kind.items():
            console.print(f"  {name:<24}{count:>6}  {decimal(size):>12}")
        kept = ", ".join(plan.kept)
        console.print(f"keeps {kept or 'no run'}, and {len(plan.versions)} pushed models with what they were judged by")
        verb = "freed" if yes else "to free"
        if yes:
            from pipeline.report import index  # matplotlib takes a second

            cleaning.carry_out(metadata, plan)
            index.write(output, store.records(output))
        console.print(f"{decimal(plan.size)} {verb}" + ("" if yes else "; nothing is deleted without --yes"))
    return 0
