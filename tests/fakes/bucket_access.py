"""Cloud Storage with policies, permissions of the caller, and pages of one object.

The rules, by their marks in the code; paths are of cloud.google.com/storage/docs:

    caller      json_api/v1/buckets/testIamPermissions: the subset that the caller has
    policy      json_api/v1/buckets/getIamPolicy: needs storage.buckets.getIamPolicy; optionsRequestedPolicyVersion
    get         json_api/v1/buckets/get: needs storage.buckets.get
    defaults    access-control/iam-roles#basic-roles-modifiable: what a new bucket's policy has for the project's
    locations   json_api/v1/buckets: location in capitals, locationType, customPlacementConfig of dual-regions
    pages       json_api/v1/objects/list: a page may have fewer items than asked for
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakes.cloud_storage import Answer, CloudStorage
from tests.fakes.project import Project

LOCATION_TYPES = {"US": "multi-region", "EU": "multi-region", "ASIA": "multi-region"}
DUAL_REGION = re.compile(r"(ASIA|EUR|NAM)\d")


class GuardedStorage(CloudStorage):
    """The buckets of a project, for a caller who may lack permissions."""

    def __init__(self, project: Callable[[], Project], project_id: str):
        super().__init__()
        self._project, self._project_id = project, project_id

    def answer(self, method: str, url: str, headers: Mapping[str, str], body: bytes, base: str) -> Answer:
        """Answer a request, if the caller may make it."""
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        found = re.fullmatch(r"/storage/v1/b/([^/]+)(/iam/testPermissions|/iam|/o|)", parts.path)
        if found and method == "GET" and found[1] in self.buckets:
            bucket, kind = found.groups()
            project, resource = self._project(), f"buckets/{bucket}"
            if kind == "/iam/testPermissions":  # rule: caller
                granted = [one for one in query["permissions"] if project.may(one, resource)]
                return _json({"kind": "storage#testIamPermissionsResponse", "permissions": granted})
            needed = {"/iam": "storage.buckets.getIamPolicy", "": "storage.buckets.get", "/o": "storage.objects.list"}
            if not project.may(needed[kind], resource):  # rules: policy, get
                message = f"{needed[kind]} denied on {bucket} (or it may not exist)."
                return _json({"error": {"code": 403, "message": message}}, 403)
            if kind == "/iam":
                version = int(query.get("optionsRequestedPolicyVersion", ["1"])[0])
                policy = project.policy(resource, version)
                if resource not in project.policies:
                    policy["bindings"] = self._default_bindings()
                return _json({"kind": "storage#policy", "resourceId": f"projects/_/{resource}", **policy})
            if kind == "/o":
                url = f"{url}{'&' if parts.query else '?'}maxResults=1"  # rule: pages
        return super().answer(method, url, headers, body, base)

    def create_bucket(self, name: str, location: str = "US", data_locations: Sequence[str] = ()) -> None:
        """Make a bucket; one that is there stays as it is. Rule: locations."""
        if name in self.buckets:
            return
        super().create_bucket(name, location)
        kind = LOCATION_TYPES.get(location.upper(), "region")
        properties: dict[str, Any] = {}
        if data_locations:
            kind, properties = "dual-region", {"customPlacementConfig": {"dataLocations": list(data_locations)}}
        elif DUAL_REGION.fullmatch(location.upper()):
            kind = "dual-region"
        properties |= {"locationType": kind}
        super().answer("PATCH", f"/storage/v1/b/{name}", {}, json.dumps(properties).encode(), "")

    def empty(self, kept: str) -> None:
        """Delete all objects, and all buckets but one."""
        for name in list(self.buckets):
            self.buckets[name].clear()
            if name != kept:
                super().answer("DELETE", f"/storage/v1/b/{name}", {}, b"", "")

    def _default_bindings(self) -> list[dict[str, Any]]:
        """Return a new bucket's policy. Rule: defaults."""
        kinds = [f"projectEditor:{self._project_id}", f"projectOwner:{self._project_id}"]
        return [
            {"role": "roles/storage.legacyBucketOwner", "members": kinds},
            {"role": "roles/storage.legacyBucketReader", "members": [f"projectViewer:{self._project_id}"]},
        ]


def _json(content: Mapping[str, Any], code: int = 200) -> Answer:
    return Answer(code, json.dumps(content).encode(), {"Content-Type": "application/json"})
