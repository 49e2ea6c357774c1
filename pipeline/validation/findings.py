"""A finding: one thing that is wrong with the data, and how grave it is."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.settings.gates import FINDINGS, Severity

FILE = "findings.json"
SHOWN = 5


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with the data.

    Attributes:
        kind: A key of ``gates.FINDINGS``.
        split: Where; several are separated by ", ".
        feature: The column; "" for whole rows.
        found: What was found there.
        limit: What is allowed.
        values: Some of the values that are not, with the number of rows, most frequent first.
        remedy: What to do, with the command or edit that would accept it.
        severity: "stop" or "warn".
    """

    kind: str
    split: str
    feature: str
    found: str
    limit: str
    remedy: str
    values: tuple[tuple[str, int], ...] = ()
    severity: Severity = "stop"

    def __str__(self) -> str:
        where = f"{self.feature} in {self.split}" if self.feature else f"rows of {self.split}"
        values = ", ".join(f"{value} ({count:,} row{'s' * (count != 1)})" for value, count in self.values[:SHOWN])
        return f"{where}: {self.found}{f': {values}' if values else ''}; {self.limit}"


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, the same one in several splits once."""
    splits: dict[Finding, list[str]] = {}
    for finding in findings:
        splits.setdefault(dataclasses.replace(finding, split=""), []).append(finding.split)
    return [dataclasses.replace(finding, split=", ".join(names)) for finding, names in splits.items()]


def with_severity(
    findings: Iterable[Finding], settings: Mapping[str, Severity], schema: schema_pb2.Schema
) -> list[Finding]:
    """Return the findings but ignored ones, with the severity by the column's annotation, the config or the default."""
    tags = {
        feature.name: dict(tag.replace(" ", "").split(":", 1) for tag in feature.annotation.tag if ":" in tag)
        for feature in schema.feature
    }
    kept = []
    for finding in findings:
        of_column = tags.get(finding.feature, {})
        severity = of_column.get(finding.kind, settings.get(finding.kind, FINDINGS[finding.kind]))
        if severity in ("stop", "warn"):
            kept.append(dataclasses.replace(finding, severity=severity))
    return kept


def to_json(findings: Iterable[Finding]) -> str:
    """Return the findings as JSON."""
    return json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2)


def from_json(text: str) -> list[Finding]:
    """Return the findings that ``to_json`` wrote."""
    return [Finding(**{**fields, "values": tuple(map(tuple, fields["values"]))}) for fields in json.loads(text)]
