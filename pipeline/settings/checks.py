"""Check settings by rules in their types; an invalid setting fails with a one-line error."""

import dataclasses
import json
import math
import re
import runpy
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pipeline.errors import UserError

_Settings = TypeVar("_Settings")


class ConfigError(UserError, ValueError):
    """A setting is invalid; the message names the setting, its value and the expected value."""


@dataclass(frozen=True)
class Rule:
    """A condition on a value, in words and as a test, in the type of a setting: ``Annotated[int, Rule(...)]``."""

    expected: str
    holds: Callable[[Any], bool]


def number(expected: str, fits: Callable[[float], bool], kinds: tuple[type, ...] = (int, float)) -> Rule:
    """Return the rule of a finite number."""

    def holds(value: Any) -> bool:
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and fits(value)

    return Rule(expected, holds)


def whole(least: int, most: int, kind: str = "number") -> Rule:
    """Return the rule of a whole number with limits."""
    return number(f"a whole {kind} from {least} to {most}", lambda value: least <= value <= most, (int,))


def text(expected: str, pattern: str) -> Rule:
    """Return the rule of a text that matches a regular expression."""
    return Rule(expected, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


Count = Annotated[int, number("a whole number of 1 or more", lambda value: value >= 1, (int,))]
NotNegative = Annotated[float, number("a number of 0 or more", lambda value: value >= 0)]
Share = Annotated[float, number("between 0 and 1", lambda value: 0 <= value <= 1)]


def check_settings(prefix: str, settings: Any) -> None:
    """Raise ConfigError with a line for each of ``problems_of``."""
    problems = problems_of(prefix, settings)
    if problems:
        raise ConfigError("\n".join(problems))


def problems_of(prefix: str, settings: Any) -> list[str]:
    """Return a sentence for each field that breaks a rule in its type, with a prefix such as "training."."""
    hints = typing.get_type_hints(type(settings), include_extras=True)
    values = ((prefix + field.name, getattr(settings, field.name), hints[field.name]) for field in fields(settings))
    return list(filter(None, (_problem(*value) for value in values)))


def check_value(name: str, value: object, kind: Any) -> None:
    """Raise ConfigError if one value breaks the rules in a type."""
    problem = _problem(name, value, kind)
    if problem:
        raise ConfigError(problem)


def _problem(name: str, value: Any, kind: Any) -> str | None:
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    # These have checked themselves.
    settings = tuple(kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind))
    if (value is None and type(None) in kinds) or isinstance(value, settings):
        return None
    expected = [f"{kind.__name__}(...)" for kind in settings]
    for other in kinds:
        if typing.get_origin(other) is Literal and value not in typing.get_args(other):
            return f"{name} must be one of {', '.join(typing.get_args(other))}, got {value!r}"
        for rule in getattr(other, "__metadata__", ()):
            if rule.holds(value):
                return None
            expected.insert(0, rule.expected)
    if not expected:
        return None
    if type(None) in kinds and len(expected) == len(settings):  # rules name it themselves
        expected.append("None")
    percent = Share in kinds and isinstance(value, (int, float)) and 1 < value <= 100
    hint = f"; for {value:g} % write {value / 100:g}" if percent else ""
    return f"{name} must be {', or '.join(expected)}, got {value!r}{hint}"


def listed(names: Any) -> str:
    """Return names in their order, or "nothing"."""
    return ", ".join(sorted(names)) or "nothing"


def read_settings(path: Path, name: str, kind: type[_Settings]) -> _Settings:
    """Return ``NAME = Kind(...)`` from a Python file; raise ConfigError if it is missing."""
    expected = f"{name} = {kind.__name__}(...)"
    if not path.is_file():
        raise ConfigError(f"no file {path}; expected a Python file with {expected}")
    try:
        settings = runpy.run_path(str(path)).get(name)
    except UserError as error:
        raise ConfigError(f"{path}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{path} does not run: {type(error).__name__}: {error}") from error
    if not isinstance(settings, kind):
        raise ConfigError(f"{path} defines no {expected}, found {type(settings).__name__}")
    return settings


def to_json(settings: Any) -> str:
    """Return a dataclass of settings as JSON, for a component to carry; dictionaries keep their order."""
    return json.dumps(dataclasses.asdict(settings))


def from_json(kind: type[_Settings], content: str) -> _Settings:
    """Return the settings that ``to_json`` wrote."""
    return parse(kind, json.loads(content))


def parse(kind: type[_Settings], values: Any) -> _Settings:
    """Return settings from their plain values, as JSON has them."""
    from pydantic import TypeAdapter  # here, for it takes longer to import than all settings

    return TypeAdapter(kind).validate_python(values)
