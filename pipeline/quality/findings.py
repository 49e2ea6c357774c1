"""A finding: one problem of the data, its severity, and the remedy."""

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
    """One problem of the data."""

    kind: str  # a key of ``gates.FINDINGS``
    split: str  # several are separated by ", "
    feature: str  # "" for whole rows
    found: str
    limit: str
    remedy: str
    values: tuple[tuple[str, int], ...] = ()  # some wrong values and their number of rows, most frequent first
    severity: Severity = "stop"

    def __str__(self) -> str:
        where = f"{self.feature} in {self.split}" if self.feature else f"rows of {self.split}"
        values = ", ".join(f"{value} ({count:,} row{'s' * (count != 1)})" for value, count in self.values[:SHOWN])
        return f"{where}: {self.found}{f': {values}' if values else ''}; {self.limit}"


def with_severity(
    findings: Iterable[Finding], settings: Mapping[str, Severity], schema: schema_pb2.Schema
) -> list[Finding]:
    """Return the findings that are not ignored, those that stop a run first; equal ones of several splits are one.

    A column's annotation decides about the severity, then the config, then the default.
    """
    splits: dict[Finding, list[str]] = {}
    for finding in findings:
        splits.setdefault(dataclasses.replace(finding, split=""), []).append(finding.split)
    tags = {
        feature.name: dict(tag.replace(" ", "").split(":", 1) for tag in feature.annotation.tag if ":" in tag)
        for feature in schema.feature
    }
    kept = []
    for finding, names in splits.items():
        of_column = tags.get(finding.feature, {})
        severity = of_column.get(finding.kind, settings.get(finding.kind, FINDINGS[finding.kind]))
        if severity in ("stop", "warn"):
            kept.append(dataclasses.replace(finding, split=", ".join(names), severity=severity))
    return sorted(kept, key=lambda finding: finding.severity != "stop")


def to_json(findings: Iterable[Finding]) -> str:
    """Return the findings as JSON."""
    return json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2)


def from_json(text: str) -> list[Finding]:
    """Return the findings that ``to_json`` wrote."""
    return [Finding(**{**fields, "values": tuple(map(tuple, fields["values"]))}) for fields in json.loads(text)]
