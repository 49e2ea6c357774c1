"""Show the headline numbers, verdict, graph, costs, and what it takes to get the same again."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.costs.estimate import CAVEAT, dollars, fee, from_dict
from pipeline.quality import intervals
from pipeline.report.blocks import Block, Card, Cards, Diagram, Facts, Node, Table, Text, between, duration, number
from pipeline.report.evaluation import CONFIDENCE
from pipeline.report.finished_run import FinishedRun
from pipeline.runs.record import flat
from pipeline.settings.tasks import METRICS


def headline(run: FinishedRun) -> list[Block]:
    """Return the cards: verdict, main metric, rows and duration."""
    record = run.record
    where = (
        f"version {Path(record.pushed_to).name}" if record.pushed_to else f"in {run.failed[0]}" if run.failed else ""
    )
    cards = [Card("Verdict", record.verdict, [where], "good" if record.verdict == "pushed" else "bad")]
    gate = record.main_gate
    value = record.metrics.get(gate.get("metric", ""), math.nan)
    if run.results and math.isfinite(value):
        metric = gate["metric"]
        limits = [f"{name} {gate[name]:g}" for name in ("floor", "ceiling") if gate.get(name) is not None]
        within = intervals.interval(metric, run.results.metrics["overall"], CONFIDENCE)
        notes = [f"{between(within)} (95 % interval)"] if within else []
        before = run.baseline.get(metric, math.nan)
        change = f"{value - before:+.4f} against the earlier model" if math.isfinite(before) else "no earlier model"
        simple = {name: found[metric] for name, found in run.results.baselines.items() if metric in found}
        if simple:
            best = max(simple, key=lambda name: METRICS[metric].direction * simple[name])
            notes.append(f"{best} has {number(simple[best])}")
        title = METRICS[metric].title
        cards.append(Card(title[0].upper() + title[1:], number(value), [*notes, change, *limits]))
    rows = {split: statistics.datasets[0].num_examples for split, statistics in run.statistics.items()}
    if rows:
        cards.append(Card("Rows", f"{sum(rows.values()):,}", [f"{split} {count:,}" for split, count in rows.items()]))
    states = Counter(record.steps.values())
    notes = [f"{count} {state}" for state, count in states.items()]
    cards.append(Card("Duration", duration(record.seconds), [f"{len(record.steps)} steps", *notes]))
    return [Cards(cards)]


def verdict(run: FinishedRun) -> list[Block]:
    """Return the outcome of the run with its reasons."""
    record = run.record
    words = {
        "pushed": f"Blessed and pushed to {record.pushed_to}",
        "not blessed": "Not blessed, not pushed; what was pushed before stays.",
        "failed": f"The run failed{f' in {run.failed[0]}' if run.failed else ''}; {_pushed(run)}.",
    }
    blocks: list[Block] = [Text(words[record.verdict], "good" if record.verdict == "pushed" else "bad")]
    blocks += [Text(sentence, "bad") for sentence in record.failed]
    if run.results:
        outcome = run.results.verdict
        blocks += [Text(f"Warning: {sentence}", "bad") for sentence in outcome.get("warnings", ())]
        blocks += [Text(sentence, "quiet") for sentence in (*outcome["passed_over"], *outcome["notes"])]
        if outcome.get("model_check"):
            facts = {name.replace("_", " "): f"{value:,.6g}" for name, value in outcome["model_check"].items()}
            blocks.append(Table(("Model check", ""), list(facts.items()), "Answers of the exported model", True))
    label = run.config.label
    facts = {
        "started": record.started.replace("T", " "),
        "module": run.config.module,
        "data": run.config.data.path,
        "label": f"{label.name}: {' or '.join(label.classes) or 'a number'}",
    }
    return [*blocks, Facts(facts)]


def _pushed(run: FinishedRun) -> str:
    """Return what a run that failed had pushed before; a step after the Pusher may fail, too."""
    model = run.artifact("Pusher", "pushed_model")
    if model is None or run.by_name["Pusher"].state != "ran" or not model.get_int_custom_property("pushed"):
        return "nothing was pushed"
    return f"the model had been pushed to {model.get_string_custom_property('pushed_destination')}"


def reproducibility(run: FinishedRun) -> list[Block]:
    """Return fingerprints, versions, command and machine."""
    record = run.record
    examples = run.artifact("ExampleGen", "examples")
    fingerprint = examples.get_string_custom_property("input_fingerprint") if examples else ""
    schema = run.folder_of("ReviewedSchema", "result") or run.folder_of("SchemaGen", "schema") or ""
    facts = {
        "run": record.run,
        "command": record.command,
        "data": fingerprint.replace("\n", "; "),
        "schema": schema.rstrip("/").rpartition("/")[2],
        "library code": record.code,
        "seed": str(run.config.training.seed),
        "exit code": str(record.exit_code),
    }
    versions = [*record.packages.items(), *record.machine.items()]
    return [
        Facts({name: value for name, value in facts.items() if value}),
        Table(("Package or machine", ""), versions, "Versions and machine"),
        Table(("Setting", "Value"), list(flat(record.config).items()), "All settings", True),
    ]


def costs(run: FinishedRun) -> list[Block]:
    """Return the bill: a row for each part, the sum, and what is not in it."""
    bill = from_dict(run.record.cost)
    rows = [
        (
            f"{line.task}, its job" if line.part == "job" else line.task,
            line.machine,
            duration(line.seconds),
            dollars(line.cost),
        )
        for line in bill.lines
    ]
    rows += [("run of the pipeline", "", "", fee(bill.run_fee)), ("together", "", "", dollars(bill.total))]
    left_out = [Text(f"Not in the sum: {sentence}.", "bad") for sentence in bill.unpriced]
    note = f"{CAVEAT} Prices of {bill.date}; the task that writes this page is not in it yet."
    return [Table(("Task", "Machine", "Time", "Cost"), rows), *left_out, Text(note, "quiet")]


def graph(run: FinishedRun) -> list[Block]:
    """Return every step with its state and time."""
    ended: dict[str, tuple[str, float, str]] = {
        step.name: (step.state, step.seconds, step.reason) for step in run.steps
    }
    if run.failed:
        ended[run.failed[0]] = ("failed", run.failed[1], "")
    if not ended:
        return [Text("No step has ended.")]
    names = list(ended)
    in_a_row = {name: names[:place][-1:] for place, name in enumerate(names)}
    upstream = {**run.graph, **{name: () for name in names if name not in run.graph}} if run.graph else in_a_row
    arrows = direct(upstream)
    rows = _rows(upstream)
    total = sum(seconds for _, seconds, _ in ended.values()) or 1.0
    columns = max(map(len, rows))
    nodes: dict[str, Node] = {}
    for row, names in enumerate(rows):
        for place, name in enumerate(names):
            state, seconds, _ = ended.get(name, ("not run", 0.0, ""))
            column = place + (columns - len(names)) / 2
            text = duration(seconds) if name in ended else ""
            nodes[name] = Node(name, state, text, seconds / total, column, row)
    lines = [
        (name, state, f"{seconds:.1f}", f"{100 * seconds / total:.0f} %", reason)
        for name, (state, seconds, reason) in ended.items()
    ]
    header = ("Step", "State", "Seconds", "Share of time", "Note")
    noted = len(header) if any(reason for *_, reason in lines) else -1
    table = Table(header[:noted], [line[:noted] for line in lines])
    alt = "Steps of the graph with state and time: " + ", ".join(f"{node.name} {node.state}" for node in nodes.values())
    pairs = [(nodes[before], nodes[name]) for name, befores in arrows.items() for before in befores]
    return [Diagram(list(nodes.values()), pairs, columns, len(rows), alt, table)]


def direct(upstream: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return a graph without the edges that follow from others: its transitive reduction."""
    before: dict[str, set[str]] = {}
    for name, others in upstream.items():
        before[name] = set(others).union(*(before[other] for other in others))
    return {
        name: [other for other in others if not any(other in before[between] for between in others)]
        for name, others in upstream.items()
    }


def _rows(upstream: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the steps by row: each below those it waits for, those that wait for none right above the first user."""
    row: dict[str, int] = {}
    for name, others in upstream.items():
        row[name] = max((row[other] + 1 for other in others), default=0)
    for name, others in upstream.items():
        users = [row[user] for user, befores in upstream.items() if name in befores]
        if not others and users:
            row[name] = min(users) - 1
    rows = [[name for name in upstream if row[name] == place] for place in range(max(row.values()) + 1)]
    return [names for names in rows if names]
