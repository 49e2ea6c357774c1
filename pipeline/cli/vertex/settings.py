"""Flags and environment → a Vertex with its machines and endpoint; one message names what is missing or wrong."""

import argparse
import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pipeline.costs.prices import TABLE, read_prices
from pipeline.errors import UserError, WrongArgument
from pipeline.packaging import fingerprints
from pipeline.settings.checks import ConfigError, read_settings
from pipeline.settings.endpoint import Endpoint
from pipeline.settings.machines import Job, Machines, SearchService, is_tpu
from pipeline.settings.repository import find_root
from pipeline.settings.target import Dataflow, FailurePolicy, Vertex, as_root


class Setting(NamedTuple):
    """A setting that a flag or a variable of the environment gives; the flag goes first."""

    flag: str
    help: str
    remedy: str = ""  # how to get a value, for the message that a command needs one
    choices: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # variables other than VERTEX_ and the flag's name; the first that is set counts

    @property
    def name(self) -> str:
        """Name of the parsed argument."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def variables(self) -> tuple[str, ...]:
        """Names in the environment."""
        return self.others or (f"VERTEX_{self.name.upper()}",)


YES_OR_NO = ("on", "off")
VERTEX = (
    Setting(
        "--project",
        "Google Cloud project that runs and pays",
        "the project's id, as gcloud projects list shows it",
        others=("GOOGLE_CLOUD_PROJECT",),
    ),
    Setting(
        "--region",
        "region, such as europe-west4",
        "one near your data: https://cloud.google.com/vertex-ai/docs/general/locations",
        others=("GOOGLE_CLOUD_REGION", "GOOGLE_CLOUD_LOCATION"),
    ),
    Setting(
        "--bucket",
        "bucket in that region for artifacts and models",
        "make one with gcloud storage buckets create gs://NAME --location=REGION",
    ),
    Setting("--image", "image of every task (the one that make image builds from this code)"),
    Setting("--root-image", "the same with root as its user, for Dataflow's workers and Vizier's trials (IMAGE-root)"),
    Setting("--service-account", "e-mail address the tasks act as (project's default)"),
    Setting("--network", "network to peer with: projects/NUMBER/global/networks/NAME"),
    Setting("--encryption-key", "customer-managed key: projects/P/.../cryptoKeys/K"),
    Setting("--labels", "labels of the job, such as team=flights,stage=test"),
    Setting("--caching", "pass over steps whose inputs have not changed (on)", choices=YES_OR_NO),
    Setting("--experiment", "Vertex AI Experiment that collects the runs"),
    Setting("--webhook-url", "secret with the https://... that gets the outcome of a run"),
    Setting("--webhook-secret", "secret to sign that with: projects/P/secrets/S/versions/latest"),
    Setting(
        "--failure-policy",
        "after a failed task run tasks that do not depend on it, and report (slow), or nothing more (fast) (slow)",
        choices=get_args(FailurePolicy),
    ),
    Setting("--dataflow", "run the data steps on Dataflow (off)", choices=YES_OR_NO),
    Setting("--dataflow-machine-type", "of a Dataflow worker (n2-standard-4)"),
    Setting("--dataflow-max-workers", "most Dataflow workers (10)"),
    Setting("--dataflow-subnetwork", "of Dataflow workers: regions/R/subnetworks/N"),
)
MACHINES = (
    Setting("--machines", "file with the table of machines (configs/machines.py)"),
    Setting("--training-workers", "processes that train together, as a separate job"),
    Setting("--tuner-workers", "processes that search at the same time, as a separate job"),
    Setting(
        "--search-with",
        "service that chooses the values of a Tuner that is a job (keras_tuner)",
        choices=get_args(SearchService),
    ),
)
ENDPOINT = Setting(
    "--endpoint",
    "file with the settings of the endpoint that models are deployed to, such as configs/endpoint.py; without it they "
    "are pushed to the bucket only",
    "the file with its settings",
)
SETTINGS = (*VERTEX, *MACHINES, ENDPOINT)


def add_arguments(parser: argparse.ArgumentParser, names: Collection[str], environment: Mapping[str, str]) -> None:
    """Add the flags of the settings in ``names``, with defaults of the environment; ``read`` checks choices."""
    group = parser.add_argument_group("settings", "A variable of the environment, in [], may stand in place of a flag.")
    for setting in SETTINGS:
        if setting.name in names:
            variables = (environment.get(variable, "").strip() for variable in setting.variables)
            metavar = "FILE" if setting.help.startswith("file") else setting.name.split("_")[-1].upper()
            metavar = "|".join(setting.choices) if setting.choices else metavar
            default = next(filter(None, variables), None)
            group.add_argument(
                setting.flag, metavar=metavar, help=f"{setting.help} [{setting.variables[0]}]", default=default
            )


def read(arguments: argparse.Namespace, root: Path) -> Vertex:
    """Return where a command runs; raise WrongArgument with a line for each setting that is missing or wrong.

    Stand-ins take the place of settings that the command does not need.
    """
    values = {setting.name: (getattr(arguments, setting.name, None) or "").strip() or None for setting in SETTINGS}
    problems: list[str] = []
    for setting in SETTINGS:
        value = values[setting.name]
        if setting.name in arguments.needed and not value:
            problems.append(f"{setting.flag} (or {setting.variables[0]}) is missing: {setting.remedy}")
        if setting.choices and value and value not in setting.choices:
            problems.append(f"{setting.flag} must be {' or '.join(setting.choices)}, got {value!r}")
            values[setting.name] = None
    machines, endpoint, dataflow, max_workers = Machines(), None, None, 1
    with _collected(problems):
        max_workers = _positive("--dataflow-max-workers", values["dataflow_max_workers"] or "10")
    with _collected(problems):
        if "machines" in arguments:
            machines = _read_machines(values, root / "configs/machines.py")
    with _collected(problems):
        if values["endpoint"]:
            endpoint = read_settings(Path(values["endpoint"]), "ENDPOINT", Endpoint)
    problems += _unknown_types(machines, endpoint, values["dataflow_machine_type"])

    project = values["project"] or "missing"
    elsewhere = endpoint.name.split("/")[3] if endpoint and endpoint.is_resource_name else "us-central1"
    region = values["region"] or elsewhere
    bucket = (values["bucket"] or "missing").removeprefix("gs://").rstrip("/")
    registry = f"{region}-docker.pkg.dev/{project.replace(':', '/')}"
    image = values["image"] or f"{registry}/{fingerprints.image_name('gpu' if machines.gpus else 'cpu')}"
    root_image = values["root_image"] or (image if "@" in image else as_root(image))
    needs_root = values["dataflow"] == "on" or machines.search_with == "vizier"
    if needs_root and "@" in image and not values["root_image"]:
        problems.append(
            f"--root-image (or VERTEX_ROOT_IMAGE) is missing: {image} is named by its digest, and Dataflow's workers "
            "and Vizier's trials need the same image with root as its user"
        )
    shared: dict[str, Any] = {name: values[name] for name in ("service_account", "encryption_key")}
    shared |= {"project": project, "region": region, "labels": _labels(values["labels"] or "", problems)}
    with _collected(problems):
        if values["dataflow"] == "on":
            dataflow = Dataflow(
                **shared,
                image=root_image,
                temp_location=f"gs://{bucket}/temp",
                machine_type=values["dataflow_machine_type"] or Dataflow.machine_type,
                max_workers=max_workers,
                subnetwork=values["dataflow_subnetwork"],
            )
    own: dict[str, Any] = {name: values[name] for name in ("network", "experiment", "webhook_url", "webhook_secret")}
    with _collected(problems):
        vertex = Vertex(
            **shared,
            **own,
            image=image,
            root_image=root_image,
            bucket=bucket,
            caching=values["caching"] != "off",
            failure_policy="fast" if values["failure_policy"] == "fast" else "slow",
            dataflow=dataflow,
            machines=machines,
            endpoint=endpoint,
        )
    if problems:
        lines = [*dict.fromkeys(_as_flag(problem) for problem in problems)]
        if any(" is missing: " in line for line in lines):
            lines.append("To try without Google Cloud, run: python vertex_runner.py rehearse")
        raise WrongArgument("\n".join(lines))
    return vertex


def _as_flag(problem: str) -> str:
    """Return a sentence about a field of a Vertex or a Dataflow with the flag that gives it in place of the field."""
    flags = {setting.name: setting.flag for setting in SETTINGS}
    place, _, name = problem.partition(" ")[0].partition(".")
    names = {"vertex": [name], "dataflow": [f"dataflow_{name}", name]}.get(place, [])
    flag = next((flags[each] for each in names if each in flags), None)
    return problem.replace(f"{place}.{name}", flag, 1) if flag else problem


def _unknown_types(machines: Machines, endpoint: Endpoint | None, of_dataflow: str | None) -> Iterator[str]:
    """Yield a sentence for each machine type that the table of machines and prices does not have."""
    named = {"--dataflow-machine-type": of_dataflow, "endpoint.machine_type": endpoint and endpoint.machine_type}
    for name, job in (("training", machines.training), ("tuning", machines.tuning)):
        if job:
            named[f"{name}.machine_type"] = job.machine_type
            named[f"{name}.reduction_machine_type"] = job.reduction_machine_type
    try:
        known = read_prices(find_root() / TABLE)
    except UserError:  # the estimate says so, and a run needs no prices
        return
    for name, machine_type in named.items():
        try:
            if machine_type and not is_tpu(machine_type):
                known.machine(machine_type)
        except UserError as error:
            yield f"{name}: {error}. A type that Google has and the file has not goes into its [shapes]"


def _labels(text: str, problems: list[str]) -> dict[str, str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    problems += [f"--labels must be key=value,key=value, got {item!r}" for item in items if "=" not in item]
    pairs = (item.split("=", 1) for item in items if "=" in item)
    return {key.strip(): value.strip() for key, value in pairs}


@contextlib.contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        problems += str(error).splitlines()


def _read_machines(values: Mapping[str, str | None], default: Path) -> Machines:
    machines = read_settings(Path(values["machines"] or default), "MACHINES", Machines)
    changed: dict[str, Any] = {"search_with": values["search_with"]} if values["search_with"] else {}
    for flag, name in (("--training-workers", "training"), ("--tuner-workers", "tuning")):
        if text := values[flag.removeprefix("--").replace("-", "_")]:
            changed[name] = replace(getattr(machines, name) or Job(), replicas=_positive(flag, text))
    return replace(machines, **changed)


def _positive(flag: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{flag} must be a whole number of 1 or more, got {text!r}")
    return int(text)
