"""Flags and environment → the table of machines, and the endpoint's settings."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from pipeline.settings.checks import ConfigError
from pipeline.settings.endpoint import Endpoint, load_endpoint
from pipeline.settings.machines import Job, Machines, SearchService, load_machines

VARIABLE = "VERTEX_MACHINES"
ENDPOINT_VARIABLE = "VERTEX_ENDPOINT"


def add_arguments(parser: argparse.ArgumentParser, default: Path) -> None:
    """Adds the flags of the machines and of the endpoint."""
    group = parser.add_argument_group("machines")
    group.add_argument(
        "--machines", metavar="FILE", help=f"table of machines ({default.parent.name}/{default.name}) [{VARIABLE}]"
    )
    group.add_argument("--training-workers", metavar="N", help="processes that train together, as a job of their own")
    group.add_argument("--tuner-workers", metavar="N", help="processes that search side by side, as a job of their own")
    group.add_argument(
        "--search-with",
        metavar="|".join(get_args(SearchService)),
        help="who chooses the values of a Tuner that is a job (keras_tuner)",
    )
    group.add_argument(
        "--endpoint",
        metavar="FILE",
        help=f"settings of the endpoint that models are deployed to; without them they are pushed to the bucket only, "
        f"{default.parent.name}/endpoint.py has an example [{ENDPOINT_VARIABLE}]",
    )


def read(arguments: argparse.Namespace, environment: Mapping[str, str], default: Path) -> Machines:
    """The table in a file, with what the flags say instead.

    Raises:
        ConfigError: there is no such file or machine, or settings contradict each other.
    """
    machines = load_machines(Path(arguments.machines or environment.get(VARIABLE) or default))
    if arguments.training_workers:
        replicas = _whole("--training-workers", arguments.training_workers)
        machines = replace(machines, training=replace(machines.training or Job(), replicas=replicas))
    if arguments.tuner_workers:
        replicas = _whole("--tuner-workers", arguments.tuner_workers)
        machines = replace(machines, tuning=replace(machines.tuning or Job(), replicas=replicas))
    if arguments.search_with:
        machines = replace(machines, search_with=arguments.search_with)
    return machines


def read_endpoint(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Endpoint | None:
    """The endpoint's settings; None: models are not deployed.

    Raises:
        ConfigError: there is no such file, or a setting is wrong.
    """
    file = arguments.endpoint or environment.get(ENDPOINT_VARIABLE)
    return load_endpoint(Path(file)) if file else None


def _whole(flag: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{flag} must be a whole number of 1 or more, got {text!r}")
    return int(text)
