"""The verdict, the graph, and what one needs to get the same again."""

from __future__ import annotations

from pipeline.report import charts
from pipeline.report.blocks import Block, Facts, Figure, Figures, Table, Text
from pipeline.report.run import FinishedRun
from pipeline.runs.record import flat


def verdict(run: FinishedRun) -> list[Block]:
    """What came of the run, and why."""
    record = run.record
    words = {
        "pushed": f"Blessed and pushed to {record.pushed_to}",
        "not blessed": "Not blessed, not pushed; the model pushed before stays.",
        "failed": f"The run failed{f' in {run.failed[0]}' if run.failed else ''}; {_pushed(run)}.",
    }
    blocks: list[Block] = [Text(words[record.verdict], "good" if record.verdict == "pushed" else "bad")]
    blocks += [Text(sentence, "bad") for sentence in record.failed]
    if run.results:
        said = run.results.verdict
        blocks += [Text(sentence, "quiet") for sentence in (*said["passed_over"], *said["notes"])]
        if said.get("model_check"):
            facts = {name.replace("_", " "): f"{value:,.6g}" for name, value in said["model_check"].items()}
            blocks.append(Table(("Model check", ""), list(facts.items()), "What the exported model answered", True))
    blocks.append(
        Facts(
            {
                "started": record.started.replace("T", " "),
                "took": f"{record.seconds:,.0f} s",
                "module": run.config.module,
                "data": run.config.data.path,
                "label": f"{run.config.label.name}: {' or '.join(run.config.label.classes) or 'a number'}",
            }
        )
    )
    return blocks


def _pushed(run: FinishedRun) -> str:
    """What a run that failed had pushed before; a step after the Pusher may fail, too."""
    model = run.artifact("Pusher", "pushed_model")
    if model is None or run.by_name["Pusher"].state != "ran" or not model.get_int_custom_property("pushed"):
        return "nothing was pushed"
    return f"the model had been pushed to {model.get_string_custom_property('pushed_destination')}"


def graph(run: FinishedRun) -> list[Block]:
    """Every step with its state and time."""
    rows: list[tuple[str, ...]] = []
    bars, at = {}, 0.0
    for step in run.steps:
        rows.append((step.name, step.state, f"{step.seconds:.1f}", step.reason))
        bars[step.name] = (at, at + step.seconds)
        at += step.seconds
    if run.failed:
        name, seconds = run.failed
        rows.append((name, "failed", f"{seconds:.1f}", ""))
        bars[name] = (at, at + seconds)
    if not bars:
        return [Text("No step has run.")]
    table = Table(("Step", "State", "Seconds", "Why"), rows)
    svg = charts.spans(bars, "When each step of the graph ran, in seconds from the start", "seconds")
    behind = Table(("Step", "From", "To"), [(name, f"{a:.1f}", f"{b:.1f}") for name, (a, b) in bars.items()])
    return [table, Figures([Figure(svg, "Time by step", behind)])]


def reproducibility(run: FinishedRun) -> list[Block]:
    """Fingerprints, versions, command and machine."""
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
