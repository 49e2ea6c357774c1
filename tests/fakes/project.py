"""State of a fake project: what there is beside Vertex AI and Cloud Storage, and who may do what.

The rule, by its mark in the code; a path without a host is of cloud.google.com:

    conditions  /iam/docs/policies#specifying-version: bindings with a condition come whole in version 3 only; before,
                the condition is left out and the role is "ROLE_withcond_HASH"
"""

from dataclasses import dataclass, field
from typing import Any

Binding = dict[str, Any]


@dataclass
class Project:
    """State of a project; tests change it. The caller may do everything but what is ``denied``.

    Resources are written as "project", "buckets/NAME", "serviceAccounts/EMAIL", "repositories/NAME", "secrets/NAME".

    Attributes:
        expired: No token is given out.
        apis: Those that are enabled.
        accounts: Service accounts; ``disabled`` are some of them.
        denied: Permissions that the caller lacks, with the resource.
        roles: Members of the project's policy by role.
        policies: Bindings by resource; those of "project" come after ``roles``.
        images: Labels by "<path>:<tag>"; ``users``, ``platforms`` and ``strangers`` are those of the registry.
        machine_types, accelerator_types: By zone.
        quota: Limit by metric, in every region; None: it may not be read.
        quota_regions: Regions that have these limits; in others they are 0.
        tables: Those that a query may name, "project.dataset.table", as their reference has them.
        monitored: Whether Cloud Monitoring may be read.
        secrets: By the name of their version; ``disabled_secrets`` are some of them.
        logged: Payloads of the requests in the log of an endpoint, the newest first.
        answered: Payloads of the responses to them; none where it is empty.
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
                "cloudbilling",
            )
        }
    )
    accounts: set[str] = field(default_factory=set)
    disabled: set[str] = field(default_factory=set)
    denied: set[tuple[str, str]] = field(default_factory=set)
    roles: dict[str, set[str]] = field(default_factory=dict)
    policies: dict[str, list[Binding]] = field(default_factory=dict)
    images: dict[str, dict[str, str]] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict)
    platforms: dict[str, tuple[str, ...]] = field(default_factory=dict)
    machine_types: dict[str, set[str]] = field(default_factory=lambda: {"us-central1-a": {"n2-standard-4"}})
    accelerator_types: dict[str, set[str]] = field(default_factory=dict)
    quota: dict[str, int] | None = field(default_factory=dict)
    quota_regions: tuple[str, ...] = ("us-central1",)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    monitored: bool = True
    secrets: dict[str, str] = field(default_factory=dict)
    disabled_secrets: set[str] = field(default_factory=set)
    logged: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)

    def may(self, permission: str, resource: str) -> bool:
        """Return whether the caller has a permission on a resource."""
        return (permission, resource) not in self.denied

    def policy(self, resource: str, version: int) -> dict[str, Any]:
        """Return the policy of a resource in a version."""
        bindings: list[Binding] = []
        if resource == "project":
            bindings = [{"role": role, "members": sorted(members)} for role, members in self.roles.items()]
        bindings += self.policies.get(resource, [])
        if version < 3:  # rule: conditions
            bindings = [
                {"role": f"{binding['role']}_withcond_2b17cc25d2cd9e2c54d8", "members": binding["members"]}
                if "condition" in binding
                else binding
                for binding in bindings
            ]
        return {"version": version, "etag": "BwWWja0YfJA=", "bindings": bindings}
