"""Show what a run on Vertex AI took and cost, by task and machine."""

from pipeline.costs.bill import CAVEAT, dollars, fee, from_dict
from pipeline.report.blocks import Block, Table, Text, duration
from pipeline.report.run import FinishedRun


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
