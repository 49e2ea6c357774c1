"""What preflight asks beside Vertex AI and Cloud Storage: tokens, APIs, roles, images, machines, quota, tables."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

# The services that preflight calls by REST, by the name that gcloud has for them.
SERVICES = ("serviceusage", "iam", "cloudresourcemanager", "compute", "bigquery", "monitoring", "secretmanager")


@dataclass
class Project:
    """What there is; tests change it.

    Attributes:
        expired: No token is given out.
        apis: Those that are enabled.
        accounts: Service accounts.
        act_as: Whether the caller may act as them.
        roles: Members by role.
        images: Labels by "<path>:<tag>".
        machine_types, accelerator_types: By zone.
        quota: Limit by metric, for every region; None: it may not be read.
        tables: Those that a query may name.
        monitored: Whether Cloud Monitoring may be read.
        secrets: By the name of their version.
        logged: Payloads of the requests in the log of an endpoint, the newest first.
    """

    expired: bool = False
    apis: set[str] = field(
        default_factory=lambda: {
            f"{name}.googleapis.com"
            for name in (
                "aiplatform",
                "storage",
                "compute",
                "artifactregistry",
                "dataflow",
                "bigquery",
                "iam",
                "monitoring",
                "secretmanager",
            )
        }
    )
    accounts: set[str] = field(default_factory=set)
    act_as: bool = True
    roles: dict[str, set[str]] = field(default_factory=dict)
    images: dict[str, dict[str, str]] = field(default_factory=dict)
    machine_types: dict[str, set[str]] = field(default_factory=dict)
    accelerator_types: dict[str, set[str]] = field(default_factory=dict)
    quota: dict[str, int] | None = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)
    monitored: bool = True
    secrets: dict[str, str] = field(default_factory=dict)
    logged: list[str] = field(default_factory=list)


class FakeRest:
    """The server; a context manager."""

    def __init__(self, project: str) -> None:
        self.project = Project()
        self.asked: list[str] = []
        # Requests as (code, milliseconds), by deployed model.
        self.requests: Callable[[], Mapping[str, Sequence[tuple[int, float]]]] = dict
        self._id = project
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                self._answer(json.loads(body) if body.startswith("{") else {})

            def _answer(self, body: dict[str, Any]) -> None:
                fake.asked.append(self.path)
                code, answer = fake.answer(self.path, body)
                content = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("localhost", 0), Handler)
        self.port = self._server.server_address[1]

    def __enter__(self) -> FakeRest:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def token_uri(self) -> str:
        """Where service accounts get tokens."""
        return f"http://localhost:{self.port}/token"

    def endpoint(self, service: str) -> str:
        """Where a service is, as gcloud's variables say it."""
        return f"http://localhost:{self.port}/{service}/"

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status code and body."""
        path, _, query = path.partition("?")
        for pattern, method in self._routes().items():
            found = re.fullmatch(pattern, path)
            if found:
                return method(found, query, body)
        return 404, _error(404, f"no such method: {path}")

    def _routes(self) -> dict[str, Any]:
        project = re.escape(self._id)
        return {
            "/token": self._token,
            f"/serviceusage/v1/projects/{project}/services:batchGet": self._apis,
            f"/serviceusage/v1beta1/projects/{project}/services/[^/]+/consumerQuotaMetrics/(.+)": self._quota,
            f"/cloudresourcemanager/v1/projects/{project}:getIamPolicy": self._policy,
            "/iam/v1/projects/-/serviceAccounts/([^/:]+)": self._account,
            "/iam/v1/projects/-/serviceAccounts/([^/:]+):testIamPermissions": self._permissions,
            f"/compute/compute/v1/projects/{project}/aggregated/(machineTypes|acceleratorTypes)": self._types,
            f"/bigquery/bigquery/v2/projects/{project}/queries": self._query,
            f"/monitoring/v3/projects/{project}/timeSeries": self._time_series,
            "/secretmanager/v1/(projects/.+/secrets/.+/versions/[^:]+)": self._secret_version,
            "/secretmanager/v1/(projects/.+/secrets/.+/versions/.+):access": self._secret,
            "/v2/(.+)/manifests/(.+)": self._manifest,
            "/v2/(.+)/blobs/(.+)": self._blob,
        }

    def _token(self, *_: Any) -> tuple[int, dict[str, Any]]:
        if self.project.expired:
            return 400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
        return 200, {"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}

    def _apis(self, _: Any, query: str, __: Any) -> tuple[int, dict[str, Any]]:
        names = re.findall(r"names=([^&]+)", query.replace("%2F", "/"))
        return 200, {
            "services": [
                {"name": name, "state": "ENABLED" if name.split("/")[-1] in self.project.apis else "DISABLED"}
                for name in names
            ]
        }

    def _quota(self, found: re.Match[str], *_: Any) -> tuple[int, dict[str, Any]]:
        if self.project.quota is None:
            return 403, _error(403, "Permission denied to read quota")
        metric = found[1].replace("%2F", "/")
        limit = self.project.quota.get(metric.split("/")[-1])
        if limit is None:
            return 404, _error(404, f"{metric} not found")
        return 200, {"metric": metric, "consumerQuotaLimits": [{"quotaBuckets": [{"effectiveLimit": str(limit)}]}]}

    def _policy(self, *_: Any) -> tuple[int, dict[str, Any]]:
        return 200, {
            "bindings": [{"role": role, "members": sorted(members)} for role, members in self.project.roles.items()]
        }

    def _account(self, found: re.Match[str], *_: Any) -> tuple[int, dict[str, Any]]:
        if found[1] not in self.project.accounts:
            return 404, _error(404, f"Unknown service account {found[1]}")
        return 200, {"email": found[1]}

    def _permissions(self, _: Any, __: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, {"permissions": body["permissions"]} if self.project.act_as else {}

    def _types(self, found: re.Match[str], query: str, _: Any) -> tuple[int, dict[str, Any]]:
        by_zone = self.project.machine_types if found[1] == "machineTypes" else self.project.accelerator_types
        wanted = re.search(r"name(?:%3D|=)%?2?2?([\w-]+)", query)
        return 200, {
            "items": {
                f"zones/{zone}": {found[1]: [{"name": name} for name in names if wanted and name == wanted[1]]}
                for zone, names in by_zone.items()
            }
        }

    def _query(self, _: Any, __: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        for table in re.findall(r"`([^`]+)`", body["query"]):
            if table not in self.project.tables:
                return 404, _error(404, f"Not found: Table {table}")
        if "request_payload" in body["query"]:
            return 200, self._logged()
        return 200, {"jobComplete": True, "totalBytesProcessed": "1048576"}

    def _logged(self) -> dict[str, Any]:
        fields = [
            {"name": "time", "type": "STRING", "mode": "NULLABLE"},
            {"name": "request_payload", "type": "STRING", "mode": "REPEATED"},
        ]
        rows = [{"f": [{"v": "2026-11-21T15:00:00Z"}, {"v": [{"v": payload}]}]} for payload in self.project.logged]
        reference = {"projectId": self._id, "jobId": "query", "location": "US"}
        answer = {"jobReference": reference, "queryId": "query", "jobComplete": True, "cacheHit": False}
        return {**answer, "schema": {"fields": fields}, "rows": rows, "totalRows": str(len(rows))}

    def _time_series(self, _: Any, query: str, __: Any) -> tuple[int, dict[str, Any]]:
        """Both metrics of an endpoint, aligned and reduced as asked: cloud.google.com/monitoring/api/ref_v3/rest."""
        if not self.project.monitored:
            return 403, _error(403, "Permission monitoring.timeSeries.list denied")
        asked = parse_qs(query)
        (conditions,), groups = asked["filter"], asked["aggregation.groupByFields"]
        if int(asked["aggregation.alignmentPeriod"][0].removesuffix("s")) < 60:
            return 400, _error(400, "The alignment period must be 60s at least")
        series = []
        for deployed, requests in self.requests().items():
            labels = {"deployed_model_id": deployed}
            if "/response_count" in conditions and "metric.labels.response_code" in groups:
                for code, count in Counter(code for code, _ in requests).items():
                    series.append(({**labels, "response_code": str(code)}, {"int64Value": str(count)}))
            elif "/prediction_latencies" in conditions and 'latency_type="total"' in conditions and requests:
                taken = sorted(milliseconds for _, milliseconds in requests)
                series.append((labels, {"doubleValue": 1000 * taken[math.ceil(0.95 * len(taken)) - 1]}))
        return 200, {"timeSeries": [{"metric": {"labels": one}, "points": [{"value": value}]} for one, value in series]}

    def _secret_version(self, found: re.Match[str], *_: Any) -> tuple[int, dict[str, Any]]:
        if found[1] not in self.project.secrets:
            return 404, _error(404, f"Secret Version {found[1]} not found")
        return 200, {"name": found[1], "state": "ENABLED"}

    def _secret(self, found: re.Match[str], *_: Any) -> tuple[int, dict[str, Any]]:
        if found[1] not in self.project.secrets:
            return 403, _error(403, f"Permission 'secretmanager.versions.access' denied for {found[1]}")
        data = base64.b64encode(self.project.secrets[found[1]].encode()).decode()
        return 200, {"name": found[1], "payload": {"data": data}}

    def _manifest(self, found: re.Match[str], *_: Any) -> tuple[int, dict[str, Any]]:
        if f"{found[1]}:{found[2]}" not in self.project.images:
            return 404, {"errors": [{"code": "MANIFEST_UNKNOWN"}]}
        digest = hashlib.sha256(f"{found[1]}:{found[2]}".encode()).hexdigest()
        return 200, {"schemaVersion": 2, "config": {"digest": f"sha256:{digest}"}}

    def _blob(self, found: re.Match[str], *_: Any) -> tuple[int, dict[str, Any]]:
        for name, labels in self.project.images.items():
            if found[2] == f"sha256:{hashlib.sha256(name.encode()).hexdigest()}":
                return 200, {"config": {"Labels": labels}}
        return 404, {"errors": [{"code": "BLOB_UNKNOWN"}]}


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
