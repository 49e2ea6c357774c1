"""TFX's ExampleGen of BigQuery, with a driver to which a table that has changed is other data.

TFX compares queries only: a run takes the examples of the last one for the same query, whatever has become of its
tables. BigQuery says without cost which tables a query reads, and of each when it was last changed.
"""

import datetime
import json
import logging
from collections.abc import Iterator
from typing import Any

from google.api_core import exceptions
from google.cloud import bigquery
from tfx.components.example_gen import driver, utils
from tfx.extensions.google_cloud_big_query.example_gen.component import BigQueryExampleGen as TfxBigQueryExampleGen
from tfx.types import standard_component_specs

from pipeline.components.base import FingerprintedComponent

# "Queries that reference more than 50 tables will not have a complete list": JobStatistics2.referencedTables in
# cloud.google.com/bigquery/docs/reference/rest/v2/Job
MOST_TABLES = 50
# Kinds whose time of change is that of their rows. It is not for what lies elsewhere (EXTERNAL).
STORED = ("TABLE", "SNAPSHOT", "CLONE")
VIEW = "VIEW"


logger = logging.getLogger(__name__)


class _UnknownChanges(Exception):
    """Nobody can tell whether the tables of a query have changed."""


class BigQueryDriver(driver.QueryBasedDriver):
    """TFX's driver, with the tables in the fingerprint of the data."""

    def resolve_exec_properties(self, exec_properties: dict[str, Any], *infos: Any) -> dict[str, Any]:
        """Add the fingerprint of the tables that the queries read."""
        resolved: dict[str, Any] = super().resolve_exec_properties(exec_properties, *infos)
        splits = json.loads(resolved[standard_component_specs.INPUT_CONFIG_KEY])["splits"]
        queries = [split["pattern"] for split in splits]
        resolved[utils.FINGERPRINT_PROPERTY_NAME] = fingerprint_of(queries, resolved["project"])
        return resolved


def fingerprint_of(queries: list[str], project: str) -> str:
    """Return what changes with the rows of the tables that queries read; of unknown ones another text each time.

    Args:
        queries: In BigQuery's SQL. They are not run.
        project: Whose job it would be.
    """
    client = bigquery.Client(project)
    try:
        return ",".join(sorted({state for query in queries for state in _states(client, query)}))
    except _UnknownChanges as reason:
        logger.warning("BigQuery is read again, whether its rows have changed or not: %s", reason)
        return f"read at {datetime.datetime.now(datetime.UTC).isoformat()}"


def _states(client: bigquery.Client, query: str, legacy: bool = False) -> Iterator[str]:
    """Yield each table of a query with its state; of a view its own query and the tables of that."""
    settings = bigquery.QueryJobConfig(dry_run=True, use_query_cache=False, use_legacy_sql=legacy)
    references = client.query(query, job_config=settings).referenced_tables
    if not 0 < len(references) < MOST_TABLES:
        raise _UnknownChanges(f"it names {len(references)} tables of the query, and of many not all")
    for reference in references:
        try:
            table = client.get_table(reference)
        except (exceptions.Forbidden, exceptions.NotFound) as error:  # a wildcard, events_*, is no table
            raise _UnknownChanges(str(error.message)) from None
        if table.table_type == VIEW:
            yield f"{reference}:{table.view_query}"
            yield from _states(client, table.view_query, bool(table.view_use_legacy_sql))
        elif table.table_type in STORED:
            arriving = table.streaming_buffer.estimated_rows if table.streaming_buffer else 0
            yield f"{reference}:{table.modified.isoformat()}:{table.num_rows}:{arriving}"
        else:
            raise _UnknownChanges(f"{reference} is a table of kind {table.table_type}")


class BigQueryExampleGen(FingerprintedComponent, TfxBigQueryExampleGen):
    """TFX's component with our driver."""

    DRIVER_CLASS = BigQueryDriver

    def __init__(self, project: str, **kwargs: Any):
        """Create the component; the queries' jobs are of a project."""
        super().__init__(**kwargs)
        self.exec_properties["project"] = project
