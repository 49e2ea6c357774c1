"""Rules for the resources of models, endpoints and jobs: names with the project's number, ids, keys, accounts."""

import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message

from tests.fakes import rules
from tests.fakes.checks import require

# Names of resources in a message; those of keys, networks and TensorBoards are the caller's, and stay as they are.
RESOURCE = re.compile(
    r"projects/([^/]+)(/locations/[^/]+"
    r"(/(models|endpoints|customJobs|hyperparameterTuningJobs|batchPredictionJobs|operations)/.+)?)"
)
Methods = dict[str, tuple[Any, Callable[[Any], Any]]]


class Conflict(Exception):
    """The resource has changed since it was read: its etag is another one (google.aip.dev/154)."""

    code = grpc.StatusCode.ABORTED


class Precondition(Conflict):
    """The resource is in no state for this."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Ids:
    """Generated ids: "Vertex AI will generate a value for this ID", of many digits and in no order."""

    def __init__(self) -> None:
        self._chance = random.Random(7)

    def new(self) -> str:
        """One that was not there before."""
        return str(self._chance.randrange(10**18, 10**19))


def with_numbers(
    services: dict[str, Methods], numbers: Mapping[str, str], before: Callable[[], None]
) -> dict[str, Methods]:
    """The methods, taking both ids and numbers of projects and answering with numbers; ``before`` runs first."""
    ids = {number: project for project, number in numbers.items()}

    def of(answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def answered(ask: Any) -> Any:
            before()
            result = answer(with_project(ask, ids))
            return result if isinstance(result, Message) else with_project(result, numbers)

        return answered

    return {
        service: {name: (request, of(answer)) for name, (request, answer) in methods.items()}
        for service, methods in services.items()
    }


def with_project(message: Any, names: Mapping[str, str]) -> Any:
    """A copy of a message with the other name of the project in the names of its resources."""
    copy = type(message)(message)
    _rename(type(copy).pb(copy), names)
    return copy


def _rename(message: Message, names: Mapping[str, str]) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.type == field.TYPE_STRING:
            if isinstance(value, str):
                setattr(message, field.name, renamed(value, names))
            else:
                value[:] = [renamed(text, names) for text in value]
        elif field.type == field.TYPE_MESSAGE:
            for one in [value] if isinstance(value, Message) else value:
                _rename(one, names)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The name of a resource with the other name of its project; any other text as it is."""
    found = RESOURCE.fullmatch(text)
    return f"projects/{names.get(found[1], found[1])}{found[2]}" if found else text


def check_new(resource: Any, parent: str, at: str) -> Any:
    """Check a new resource and return it without its output-only fields."""
    rules.check_display_name(resource.display_name, at)
    require(resource.display_name, f"{at}.display_name is required")
    check_key(resource.encryption_spec.kms_key_name, parent, at)
    return rules.as_new(resource)


def check_key(key: str, parent: str, at: str) -> None:
    """Check a key: "needs to be in the same region as where the compute resource is created" (kms_key_name)."""
    if key:
        found = re.fullmatch(r"projects/[^/]+/locations/([^/]+)/keyRings/[^/]+/cryptoKeys/[^/]+", key)
        require(found, f"{at}.encryption_spec.kms_key_name {key!r} is no name of a key")
        require(found and parent.endswith(f"/locations/{found[1]}"), f"{at}: the key is of another region")


def check_account(email: str, at: str) -> None:
    """Check a service account: "Specify the email address" (DeployedModel.service_account)."""
    require(re.fullmatch(r"([^@\s]+@[^@\s]+\.gserviceaccount\.com)?", email), f"{at}.service_account {email!r}")


def updated(resource: Any, new: Any, paths: list[str], allowed: set[str]) -> None:
    """Set the fields of a mask; the mask is required, and only some fields can be changed."""
    require(paths, "update_mask is required")
    require(set(paths) <= allowed, f"update_mask {sorted(set(paths) - allowed)}: only {sorted(allowed)} can be changed")
    for path in paths:
        setattr(resource, path, getattr(new, path))
