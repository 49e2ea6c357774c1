"""What the settings have in common: how a wrong one is refused."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any, TypeVar

from pipeline.errors import UserError

_Settings = TypeVar("_Settings")


class ConfigError(UserError, ValueError):
    """A setting is not usable: names the setting, what it is, and what it should be."""


def read_settings(path: Path, name: str, kind: type[_Settings]) -> _Settings:
    """Reads ``NAME = Kind(...)`` from a Python file.

    Raises:
        ConfigError: the file is missing, does not run, or has no such name of that kind.
    """
    expected = f"{name} = {kind.__name__}(...)"
    if not path.is_file():
        raise ConfigError(f"no file {path}; expected a Python file with {expected}")
    try:
        found = runpy.run_path(str(path)).get(name)
    except UserError as error:
        raise ConfigError(f"{path}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{path} does not run: {type(error).__name__}: {error}") from error
    if not isinstance(found, kind):
        raise ConfigError(f"{path} defines no {expected}, found {type(found).__name__}")
    return found


def listed(names: Any) -> str:
    """Names in their order, or "nothing"."""
    return ", ".join(sorted(names)) or "nothing"


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuses what is not one of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_positive(name: str, value: object) -> None:
    """Refuses what is not a whole number of 1 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be a whole number of 1 or more, got {value!r}")


def check_share(name: str, value: object) -> None:
    """Refuses what is not a number from 0 to 1."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 <= value <= 1:  # type: ignore[operator]
        hint = f"; for {value:g} % write {value / 100:g}" if number and 1 < value <= 100 else ""  # type: ignore[operator]
        raise ConfigError(f"{name} must be between 0 and 1, got {value!r}{hint}")
