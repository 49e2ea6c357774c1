"""Tables a newcomer may bring: names, values, labels and shapes that break pipelines.

Each function decorated with @table makes one of them, the same every time; `TABLES` holds all by name. The
label of a table that no package brings depends on its columns so strongly that a model which reads them all is far
above `reach`.
"""

from tests.gauntlet.tables import (
    files,
    from_packages,
    hostile,
    labels,
    layouts,
    minority,
    module_files,
    names,
    notations,
    parquet,
    records,
    requests,
    shapes,
    trackers,
    values,
)
from tests.gauntlet.tables.table import MARKER, TABLES, Asked, Table

__all__ = [
    "MARKER",
    "TABLES",
    "Asked",
    "Table",
    "files",
    "from_packages",
    "hostile",
    "labels",
    "layouts",
    "minority",
    "module_files",
    "names",
    "notations",
    "parquet",
    "records",
    "requests",
    "shapes",
    "trackers",
    "values",
]
