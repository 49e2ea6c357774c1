"""Rules that hold for every resource of Vertex AI, read from Google's own comments where they are written there."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import proto

from tests.fakes.checks import require

# Of display names ("can be up to 128 characters long": PipelineJob, Schedule and Context in aiplatform_v1).
LONGEST_NAME = 128
# "Must be 4-128 characters in length. Valid characters are /[a-z][0-9]-/": CreateContextRequest.context_id and
# CreateMetadataStoreRequest.metadata_store_id.
METADATA_ID = re.compile(r"[a-z0-9-]{4,128}")
# "This value should be less than 128 characters, and valid characters are /[a-z][0-9]-/":
# CreatePipelineJobRequest.pipeline_job_id; that it starts with a letter is in the SDK (constants/pipeline.py).
JOB_ID = re.compile(r"[a-z][a-z0-9-]{0,126}")


def fields_that_are(behaviour: str, kind: type[proto.Message]) -> list[str]:
    """Fields of a message whose comment begins with a behaviour: "Output only", "Immutable", "Required"."""
    return re.findall(rf"^\s+(\w+) \([^)]*\):\s+{behaviour}\.", kind.__doc__ or "", re.MULTILINE)


def as_new(resource: Any) -> Any:
    """A copy without what a client may not set: "Output only" fields are ignored (google.aip.dev/203)."""
    kind = type(resource)
    copy = kind(resource)
    for name in fields_that_are("Output only", kind):
        kind.pb(copy).ClearField(name)
    return copy


def check_required(resource: Any, at: str) -> None:
    """Refuses a resource without a field whose comment begins with "Required"."""
    for name in fields_that_are("Required", type(resource)):
        require(getattr(resource, name), f"{at}.{name} is required")


def check_display_name(name: str, at: str) -> None:
    """Refuses a display name that is too long."""
    require(len(name) <= LONGEST_NAME, f"{at}.display_name has {len(name)} characters, at most {LONGEST_NAME}")


def changed(resource: Any, new: Any, paths: list[str]) -> Any:
    """A copy with the fields of an update mask from ``new``.

    "The output_only fields will be ignored", "the non-empty fields cannot be unset", the mask is required
    (UpdateScheduleRequest); an immutable field is refused (google.aip.dev/203).
    """
    kind = type(resource)
    require(paths, "update_mask is required")
    copy = kind(resource)
    for path in paths:
        require(path in kind.meta.fields, f"update_mask: there is no field {path!r}")
        require(path not in fields_that_are("Immutable", kind), f"{path} is immutable")
        if path not in fields_that_are("Output only", kind):
            require(getattr(new, path) or not getattr(resource, path), f"{path} cannot be unset")
            setattr(copy, path, getattr(new, path))
    return copy


def page(found: list[Any], ask: Any, most: int) -> tuple[list[Any], str]:
    """The page that is asked for and the token of the next.

    A service may return fewer than ``page_size`` (google.aip.dev/158), and here it does.
    """
    start = int(ask.page_token or 0)
    end = start + min(ask.page_size or most, most)
    return found[start:end], str(end) if end < len(found) else ""


def newest_first(kept: Mapping[str, Any], ask: Any) -> list[Any]:
    """The resources of a parent, "create_time desc" as both lists do by default."""
    require(ask.order_by in ("", "create_time desc"), f"order_by {ask.order_by!r} is not understood here")
    found = [one for name, one in kept.items() if name.startswith(f"{ask.parent}/")]
    return sorted(found, key=lambda one: one.create_time, reverse=True)


def matching(found: Iterable[Any], ask: Any) -> list[Any]:
    """The resources that a filter finds, of which the fake knows one: a label's value.

    Labels "support =", with the value in double quotes (ListPipelineJobsRequest.filter); google.aip.dev/160 has more.
    """
    if not ask.filter:
        return list(found)
    condition = re.fullmatch(r'labels\.([\w-]+)="([^"\\]*)"', ask.filter)
    require(condition, f"filter {ask.filter!r} is not understood")
    assert condition
    return [one for one in found if one.labels.get(condition[1]) == condition[2]]
