"""Check the column that says how much each row counts."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.labels import without
from pipeline.data.table import Rows, Unit, single_values, too_large, type_name
from pipeline.errors import UserError
from pipeline.settings.names import shortened

EXPECTED = "a number of 0 or more in every row"


def checked(rows: Rows, weight: str, unit: Unit) -> Rows:
    """Return the rows with their weights as float64, in a column of scalars.

    Args:
        rows: Of one file.
        weight: The column.
        unit: Where the rows are from.

    Returns:
        The rows; a CSV row whose weight is missing, negative or not finite is among the bad ones.

    Raises:
        UserError: there is no such column, or it holds no numbers; or a row of another format has such a weight.
    """
    table = rows.table
    if weight not in table.column_names:
        raise UserError(
            f"{unit.file} has no column {weight!r}, the weight; it has {shortened(table.column_names) or 'no columns'}"
        )
    values = single_values(table.column(weight))
    if type_name(values.type) not in ("integers", "floats", "nothing"):
        raise UserError(f"{unit.file}: the weight {weight!r} is {values.type}; expected numbers")
    values = values.cast(pa.float64())
    numbers = np.asarray(pc.fill_null(values, np.nan))
    wrong = ~(np.isfinite(numbers) & (numbers >= 0)) | too_large(numbers)
    rows = replace(rows, table=table.set_column(table.column_names.index(weight), weight, values))
    reasons = {
        at: f"the weight {weight!r} is {'missing' if values[at].as_py() is None else numbers[at]}; expected {EXPECTED}"
        for at in np.flatnonzero(wrong).tolist()
    }
    return without(rows, reasons, unit)
