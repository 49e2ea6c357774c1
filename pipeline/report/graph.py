"""Draw the graph of a run: what each step waited for, how it ended, and how long it took."""

from collections.abc import Mapping, Sequence

from pipeline.report.blocks import Block, Diagram, Node, Table, Text, duration
from pipeline.report.finished_run import FinishedRun


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
