"""BigQuery: dry runs, tables, and the rows of the log of an endpoint.

The rules, by their marks in the code; paths are of cloud.google.com:

    dry run     /bigquery/docs/reference/rest/v2/Job: a dry run names the tables of a query, of more than 50 not all
    table       /bigquery/docs/reference/rest/v2/tables/get; times are milliseconds, as text
"""

import re
from collections.abc import Callable
from typing import Any

from tests.fakes.project import Project
from tests.fakes.rest_call import Asked, Refused


class BigQuery:
    """The methods that are called here.

    Args:
        project: The tables that there are.
        project_id: Whose jobs are taken.
        require: Refuses who lacks a permission on a resource.
    """

    def __init__(self, project: Project, project_id: str, require: Callable[[str, str], None]) -> None:
        self._project, self._id, self._require = project, project_id, require

    def routes(self) -> dict[str, Callable[..., dict[str, Any]]]:
        """Return the methods by what is asked, as patterns."""
        project = f"projects/{re.escape(self._id)}"
        return {
            f"POST /bigquery/bigquery/v2/{project}/queries": self._query,
            f"POST /bigquery/bigquery/v2/{project}/jobs": self._dry_run,
            "GET /bigquery/bigquery/v2/projects/([^/]+)/datasets/([^/]+)/tables/([^/]+)": self._table,
        }

    def _tables_of(self, query: str) -> list[str]:
        self._require("bigquery.jobs.create", "project")
        tables: list[str] = re.findall(r"`([^`]+\.[^`]+)`", query)
        for table in tables:
            if table not in self._project.tables:
                raise Refused(404, f"Not found: Table {table}")
        return tables

    def _dry_run(self, asked: Asked) -> dict[str, Any]:
        configuration = asked.body["configuration"]
        if not configuration.get("dryRun"):
            raise Refused(400, "this is no place to run a query")
        names = ("projectId", "datasetId", "tableId")
        tables = self._tables_of(configuration["query"]["query"])[:50]  # rule: dry run
        references = [dict(zip(names, table.split("."), strict=True)) for table in tables]
        statistics = {"query": {"statementType": "SELECT", "referencedTables": references}}
        reference = {"projectId": self._id, "location": "US"}
        status = {"state": "DONE"}
        return {
            "jobReference": reference,
            "configuration": configuration,
            "statistics": statistics,
            "status": status,
        }

    def _table(self, _: Asked, *names: str) -> dict[str, Any]:
        self._require("bigquery.tables.get", ".".join(names))
        if ".".join(names) not in self._project.tables:
            raise Refused(404, f"Not found: Table {'.'.join(names)}")
        reference = dict(zip(("projectId", "datasetId", "tableId"), names, strict=True))
        return {"tableReference": reference, "type": "TABLE", **self._project.tables[".".join(names)]}  # rule: table

    def _query(self, asked: Asked) -> dict[str, Any]:
        self._tables_of(asked.body["query"])
        if "request_payload" in asked.body["query"]:
            return self._logged()
        return {"jobComplete": True, "totalBytesProcessed": "1048576"}

    def _logged(self) -> dict[str, Any]:
        fields = [
            {"name": "time", "type": "STRING", "mode": "NULLABLE"},
            {"name": "request_payload", "type": "STRING", "mode": "REPEATED"},
            {"name": "response_payload", "type": "STRING", "mode": "REPEATED"},
        ]
        answers = [[{"v": payload}] for payload in self._project.answered] or [[]] * len(self._project.logged)
        rows = [
            {"f": [{"v": "2026-11-21T15:00:00Z"}, {"v": [{"v": payload}]}, {"v": answer}]}
            for payload, answer in zip(self._project.logged, answers, strict=True)
        ]
        reference = {"projectId": self._id, "jobId": "query", "location": "US"}
        answer = {"jobReference": reference, "queryId": "query", "jobComplete": True, "cacheHit": False}
        return {**answer, "schema": {"fields": fields}, "rows": rows, "totalRows": str(len(rows))}
