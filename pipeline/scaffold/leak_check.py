"""Check data for what would stop the data gate of a run, before there is a pipeline."""

from __future__ import annotations

import shlex
from collections.abc import Collection

import pyarrow as pa

from pipeline.errors import UserError
from pipeline.scaffold.table import Table, check_named
from pipeline.settings.gates import DataChecks
from pipeline.validation import rows


def check_leaks(table: Table, keep: Collection[str]) -> None:
    """Refuse columns that contain a leaked label, by the rows and the rule of the run itself.

    Args:
        table: The data.
        keep: Columns that a person vouches for.

    Raises:
        UserError: there are some, or no such column is to be kept.
    """
    check_named(keep, table.rows.column_names, table.label.name)
    usable = {column.name for column in table.features} - set(keep)
    names = [name for name in table.rows.column_names if name in usable or name == table.label.name]
    sample = pa.concat_tables([table.split(split).select(names).slice(0, rows.SAMPLE) for split in ("train", "eval")])
    found = list(rows.leaks(sample, table.label.name, DataChecks(), len(table.label.classes)))
    if not found:
        return
    columns = [f"column {leak.feature!r}: {leak.found}" for leak in found[:10]]
    names = [shlex.quote(leak.feature) for leak in found[:10]]
    flags = {flag: " ".join(f"{flag} {name}" for name in names) for flag in ("--leave-out", "--keep")}
    raise UserError(
        f"{'; '.join(columns)}. The run would stop there: such a column mostly is known only when the label is. "
        f"If so, leave it out: {flags['--leave-out']}. If it is known whenever the model is asked: {flags['--keep']}"
    )
