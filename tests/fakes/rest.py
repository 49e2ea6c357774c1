"""Services that preflight asks beside Vertex AI and Cloud Storage: tokens, APIs, roles, machines, quota and tables.

The rules, by their marks in the code; paths without a host are of cloud.google.com:

    token       every method of Google's APIs takes an access token; apis/design
    permission  a method needs the permission that its reference names, on its resource; who lacks it gets 403
    account     /iam/docs/reference/rest/v1/projects.serviceAccounts/get: with "-" for the project, 403 where there is
                none
    version     /iam/docs/reference/rest/v1/projects.serviceAccounts/getIamPolicy has the version in the query,
                /resource-manager/reference/rest/v1/projects/getIamPolicy in the body
    caller      /iam/docs/reference/rest/v1/projects.serviceAccounts/testIamPermissions: the subset that the caller has;
                no wildcards
    number      /service-usage/docs/reference/rest/v1/services: names come back with the number of the project
    30          /service-usage/docs/reference/rest/v1/services/batchGet: at most 30 names, of the same parent
    view        /service-usage/docs/reference/rest/v1beta1/QuotaView: without FULL only regions whose limit was changed
    zero        a number that is 0 is left out of JSON (protobuf.dev/programming-guides/json)
    metrics     names of quotas: vertex-ai/docs/training/schedule-jobs-dws#quota, and Google's samples
    pages       lists come in pages: google.aip.dev/158; here with one item each
    warning     /compute/docs/reference/rest/v1/machineTypes/aggregatedList: zones with nothing have a warning
"""

import base64
import json
import math
import re
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.fakes.bigquery import BigQuery
from tests.fakes.image_registry import DOWNLOADS, TOKEN, Answer, ImageRegistry
from tests.fakes.project import Project
from tests.fakes.rest_call import Asked, Refused

# The services that preflight calls by REST, by the name that gcloud has for them.
SERVICES = (
    "serviceusage",
    "iam",
    "cloudresourcemanager",
    "compute",
    "bigquery",
    "monitoring",
    "secretmanager",
    "artifactregistry",
    "cloudbilling",
)
# rule: metrics
GPUS = "t4|p4|p100|v100|a100|a100_80gb|l4|h100|h100_mega|h200|b200"
METRIC = re.compile(
    rf"custom_model_(training|serving)_(preemptible_)?(nvidia_({GPUS})_gpus|tpu_v2|tpu_v3|tpu_v5e|cpus|n2_cpus|c2_cpus)"
)


class FakeRest:
    """The server, on loopback without TLS, and with TLS as the hosts of Google and others; a context manager.

    Attributes:
        project: What there is.
        asked: Paths of all requests.
        saw_token: Scheme and host of all that were shown Google's access token.
        requests: Requests as (code, milliseconds) by deployed model, of an endpoint by its id.
    """

    def __init__(self, project: str, number: str, certificate: Path, key: Path) -> None:
        self.project = Project()
        self.asked: list[str] = []
        self.saw_token: set[str] = set()
        self.requests: Callable[[str], Mapping[str, Sequence[tuple[int, float]]]] = lambda endpoint: {}
        self._id, self._number = project, number
        self._registry = ImageRegistry(lambda: self.project)
        self._server = ThreadingHTTPServer(("localhost", 0), _handler(self, "http"))
        self._hosts = ThreadingHTTPServer(("localhost", 0), _handler(self, "https"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._hosts.socket = context.wrap_socket(self._hosts.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        self.port_of_hosts = self._hosts.server_address[1]

    def __enter__(self) -> "FakeRest":
        for server in (self._server, self._hosts):
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._server, self._hosts):
            server.shutdown()
            server.server_close()

    @property
    def token_uri(self) -> str:
        """Return the address at which service accounts get tokens."""
        return f"http://localhost:{self.port}/token"

    def endpoint(self, service: str) -> str:
        """Return the address of a service, as gcloud's variables have it."""
        return f"http://localhost:{self.port}/{service}/"

    def answer(self, method: str, site: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer a request.

        Args:
            method: Such as "GET".
            site: Scheme and host that was asked.
            path: With the query.
            headers: Of the request.
            body: Of the request.
        """
        self.asked.append(path)
        authorization = headers.get("Authorization", "")
        kind, _, value = authorization.partition(" ")
        if value == TOKEN or (kind == "Basic" and base64.b64decode(value).decode().endswith(f":{TOKEN}")):
            self.saw_token.add(site)
        parts = urlsplit(path)
        if parts.path.startswith("/v2/") or site == DOWNLOADS:
            return self._registry.answer(site, parts.path, parse_qs(parts.query), headers)
        content = json.loads(body) if body.startswith(b"{") else {}
        asked = Asked(method, parse_qs(parts.query), content)
        try:
            if parts.path != "/token" and authorization != f"Bearer {TOKEN}":  # rule: token
                raise Refused(401, "Request is missing required authentication credential.")
            for route, handler in self._routes().items():
                found = re.fullmatch(route, f"{method} {parts.path}")
                if found:
                    return Answer.json(handler(asked, *map(unquote, found.groups())))
            raise Refused(404, f"no such method: {method} {parts.path}")
        except Refused as error:
            return Answer.json({"error": {"code": error.code, "message": error.message}}, error.code)

    def _routes(self) -> dict[str, Callable[..., dict[str, Any]]]:
        project = f"projects/{re.escape(self._id)}"
        accounts = "/iam/v1/projects/([^/]+)/serviceAccounts/([^/:]+)"
        secret = "(projects/[^/]+/secrets/[^/]+"
        return {
            "POST /token": self._token,
            f"GET /serviceusage/v1/({project})/services:batchGet": self._apis,
            f"GET /serviceusage/v1beta1/({project})/services/[^/]+/consumerQuotaMetrics/([^/]+)": self._quota,
            f"GET /cloudresourcemanager/v1/{project}": self._project,
            f"POST /cloudresourcemanager/v1/{project}:getIamPolicy": self._policy,
            f"POST /cloudresourcemanager/v1/{project}:testIamPermissions": self._permissions,
            f"GET {accounts}": self._account,
            f"POST {accounts}:testIamPermissions": self._permissions_of_account,
            f"POST {accounts}:getIamPolicy": self._policy_of_account,
            f"GET /artifactregistry/v1/{project}/locations/[^/]+/repositories/([^/:]+):getIamPolicy": self._repository,
            f"GET /compute/compute/v1/{project}/aggregated/(machineTypes|acceleratorTypes)": self._types,
            **BigQuery(self.project, self._id, self._require).routes(),
            f"GET /monitoring/v3/{project}/timeSeries": self._time_series,
            f"GET /secretmanager/v1/{secret}/versions/[^/:]+)": self._secret_version,
            f"GET /secretmanager/v1/{secret}/versions/[^/:]+):access": self._secret,
            f"GET /secretmanager/v1/{secret}):getIamPolicy": self._policy_of_secret,
        }

    def _require(self, permission: str, resource: str) -> None:
        """Refuse who lacks a permission. Rule: permission."""
        if not self.project.may(permission, resource):
            raise Refused(403, f"Permission '{permission}' denied on resource '{resource}' (or it may not exist).")

    def _token(self, _: Asked) -> dict[str, Any]:
        if self.project.expired:
            raise Refused(400, "Token has been expired or revoked.")
        return {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}

    def _apis(self, asked: Asked, parent: str) -> dict[str, Any]:
        names = asked.query["names"]
        if len(names) > 30:  # rule: 30
            raise Refused(400, f"at most 30 names, got {len(names)}")
        services = []
        for name in names:
            if not name.startswith(f"{parent}/services/"):  # rule: 30
                raise Refused(400, f"{name} is not of {parent}")
            service = name.rpartition("/")[2]
            self._require("serviceusage.services.get", "project")
            state = "ENABLED" if service in self.project.apis else "DISABLED"
            number = f"projects/{self._number}"  # rule: number
            services.append({"name": f"{number}/services/{service}", "parent": number, "state": state})
        return {"services": services}

    def _quota(self, asked: Asked, _: str, metric: str) -> dict[str, Any]:
        if self.project.quota is None:
            raise Refused(403, "Permission 'serviceusage.quotas.get' denied to read quota")
        self._require("serviceusage.quotas.get", "project")
        name = metric.removeprefix("aiplatform.googleapis.com/")
        assert all(METRIC.fullmatch(known) for known in self.project.quota), f"no such metric: {self.project.quota}"
        if not METRIC.fullmatch(name) or name not in self.project.quota:
            raise Refused(404, f"Quota metric '{metric}' not found")
        buckets = [_bucket_of_quota(0)]
        if asked.one("view") == "FULL":  # rule: view
            limit = self.project.quota[name]
            buckets += [_bucket_of_quota(limit, region) for region in self.project.quota_regions]
        resource = f"projects/{self._number}/services/aiplatform.googleapis.com/consumerQuotaMetrics/{metric}"
        unit = "1/{project}/{region}"
        limits = [{"name": f"{resource}/limits/1", "metric": metric, "unit": unit, "quotaBuckets": buckets}]
        return {"name": resource, "metric": metric, "consumerQuotaLimits": limits}

    def _project(self, _: Asked) -> dict[str, Any]:
        self._require("resourcemanager.projects.get", "project")
        return {"projectNumber": self._number, "projectId": self._id, "lifecycleState": "ACTIVE"}

    def _policy(self, asked: Asked) -> dict[str, Any]:
        self._require("resourcemanager.projects.getIamPolicy", "project")
        version = asked.body.get("options", {}).get("requestedPolicyVersion", 1)  # rule: version
        return self.project.policy("project", version)

    def _permissions(self, asked: Asked, resource: str = "project") -> dict[str, Any]:
        wanted = asked.body["permissions"]
        if any("*" in permission for permission in wanted):  # rule: caller
            raise Refused(400, "Permissions with wildcards are not allowed.")
        granted = [permission for permission in wanted if self.project.may(permission, resource)]
        return {"permissions": granted} if granted else {}

    def _account(self, _: Asked, project: str, account: str) -> dict[str, Any]:
        if account not in self.project.accounts or project not in ("-", self._id, self._number):
            if project == "-":  # rule: account
                raise Refused(403, f"Permission 'iam.serviceAccounts.get' denied on {account} (or it may not exist).")
            raise Refused(404, f"Unknown service account: {account}")
        self._require("iam.serviceAccounts.get", f"serviceAccounts/{account}")
        name = f"projects/{self._id}/serviceAccounts/{account}"
        disabled = {"disabled": True} if account in self.project.disabled else {}
        return {"name": name, "projectId": self._id, "email": account, **disabled}

    def _permissions_of_account(self, asked: Asked, project: str, account: str) -> dict[str, Any]:
        self._account(asked, project, account)
        return self._permissions(asked, f"serviceAccounts/{account}")

    def _policy_of_account(self, asked: Asked, project: str, account: str) -> dict[str, Any]:
        self._account(asked, project, account)
        return self._policy_of(asked, "iam.serviceAccounts.getIamPolicy", f"serviceAccounts/{account}")

    def _repository(self, asked: Asked, name: str) -> dict[str, Any]:
        return self._policy_of(asked, "artifactregistry.repositories.getIamPolicy", f"repositories/{name}")

    def _policy_of_secret(self, asked: Asked, name: str) -> dict[str, Any]:
        resource = f"secrets/{name.rpartition('/')[2]}"
        return self._policy_of(asked, "secretmanager.secrets.getIamPolicy", resource)

    def _policy_of(self, asked: Asked, permission: str, resource: str) -> dict[str, Any]:
        self._require(permission, resource)
        version = int(asked.one("options.requestedPolicyVersion", "1"))  # rule: version
        return self.project.policy(resource, version)

    def _types(self, asked: Asked, kind: str) -> dict[str, Any]:
        by_zone = self.project.machine_types if kind == "machineTypes" else self.project.accelerator_types
        wanted = re.fullmatch(r"name ?= ?\"?([\w-]+)\"?", asked.one("filter"))
        if not wanted:
            raise Refused(400, f"Invalid value for field 'filter': '{asked.one('filter')}'.")
        zones = sorted(by_zone) or ["us-central1-a"]
        number = int(asked.one("pageToken", "0"))  # rule: pages
        zone = zones[number]
        found = [{"name": name} for name in by_zone.get(zone, ()) if name == wanted[1]]
        nothing = {"warning": {"code": "NO_RESULTS_ON_PAGE", "data": [{"key": "scope", "value": f"zones/{zone}"}]}}
        answer: dict[str, Any] = {"items": {f"zones/{zone}": {kind: found} if found else nothing}}  # rule: warning
        return answer | ({"nextPageToken": str(number + 1)} if number + 1 < len(zones) else {})

    def _time_series(self, asked: Asked) -> dict[str, Any]:
        """Two metrics of an endpoint, aligned and reduced as asked: cloud.google.com/monitoring/api/ref_v3/rest."""
        if not self.project.monitored:
            raise Refused(403, "Permission monitoring.timeSeries.list denied")
        (conditions,) = asked.query["filter"]
        if int(asked.one("aggregation.alignmentPeriod").removesuffix("s")) < 60:
            raise Refused(400, "The alignment period must be 60s at least")
        endpoint = re.search(r'resource\.labels\.endpoint_id="([^"]+)"', conditions)
        if not endpoint:
            raise Refused(400, "the fake has the metrics of one endpoint at a time")
        series = []
        for deployed, requests in self.requests(endpoint[1]).items():
            labels = {"deployed_model_id": deployed}
            if "/response_count" in conditions:
                for code, count in Counter(code for code, _ in requests).items():
                    series.append((labels | {"response_code": str(code)}, {"int64Value": str(count)}))
            elif "/prediction_latencies" in conditions and 'latency_type="total"' in conditions and requests:
                taken = sorted(milliseconds for _, milliseconds in requests)
                series.append((labels, {"doubleValue": 1000 * taken[math.ceil(0.95 * len(taken)) - 1]}))
        number = int(asked.one("pageToken", "0"))  # rule: pages
        page = [
            {"metric": {"labels": labels}, "points": [{"value": value}]}
            for labels, value in series[number : number + 1]
        ]
        more = {"nextPageToken": str(number + 1)} if number + 1 < len(series) else {}
        return ({"timeSeries": page} if page else {}) | more

    def _secret_version(self, _: Asked, name: str) -> dict[str, Any]:
        if name not in self.project.secrets:
            raise Refused(404, f"Secret Version {name} not found")
        self._require("secretmanager.versions.get", f"secrets/{name.split('/')[3]}")
        state = "DISABLED" if name in self.project.disabled_secrets else "ENABLED"
        version = re.sub("^projects/[^/]+", f"projects/{self._number}", name).replace("/latest", "/1")  # rule: number
        return {"name": version, "state": state}

    def _secret(self, _: Asked, name: str) -> dict[str, Any]:
        if name not in self.project.secrets:
            raise Refused(403, f"Permission 'secretmanager.versions.access' denied for {name}")
        data = base64.b64encode(self.project.secrets[name].encode()).decode()
        return {"name": name, "payload": {"data": data}}


def _bucket_of_quota(limit: int, region: str | None = None) -> dict[str, Any]:
    place = {"dimensions": {"region": region}} if region else {}
    return ({"effectiveLimit": str(limit)} if limit else {}) | place  # rule: zero


def _handler(fake: FakeRest, scheme: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            site = f"{scheme}://{self.headers['Host']}"
            answer = fake.answer(self.command, site, self.path, self.headers, body)
            self.send_response(answer.code)
            for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            pass

        do_GET = do_POST = _answer

    return Handler
