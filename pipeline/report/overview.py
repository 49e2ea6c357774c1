"""Show the headline numbers, the verdict with its reasons, what it takes to get the same again, and the costs."""

import math
from collections import Counter
from pathlib import Path

from pipeline.costs.estimate import CAVEAT, dollars, fee, from_dict
from pipeline.quality import intervals
from pipeline.report.blocks import Block, Card, Cards, Facts, Table, Text, between, duration, number
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
