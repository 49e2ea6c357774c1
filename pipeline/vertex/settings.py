"""Flags and environment → what a run on Vertex AI needs; read once, with all that is wrong said together."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import get_args

from pipeline.errors import UserError
from pipeline.settings.target import Dataflow, FailurePolicy, Vertex


@dataclass(frozen=True)
class Setting:
    """One thing that a flag or a variable of the environment says; the flag goes first.

    Attributes:
        flag: Such as "--project".
        variables: Names in the environment; the first that is set counts.
        help: For --help.
        remedy: How to get one, where it is missing and nothing runs without it; None: it may be missing.
        choices: What it may be, if that is little.
    """

    flag: str
    variables: tuple[str, ...]
    help: str
    remedy: str | None = None
    choices: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """Of the argument."""
        return self.flag.removeprefix("--").replace("-", "_")


YES_OR_NO = ("on", "off")
SETTINGS = (
    Setting(
        "--project",
        ("GOOGLE_CLOUD_PROJECT",),
        "Google Cloud project that runs and pays",
        "the project's id, as gcloud projects list shows it",
    ),
    Setting(
        "--region",
        ("GOOGLE_CLOUD_REGION", "GOOGLE_CLOUD_LOCATION"),
        "region, such as europe-west4",
        "one near your data: https://cloud.google.com/vertex-ai/docs/general/locations",
    ),
    Setting(
        "--bucket",
        ("VERTEX_BUCKET",),
        "bucket in that region for artifacts and models",
        "make one with gcloud storage buckets create gs://NAME --location=REGION",
    ),
    Setting("--image", ("VERTEX_IMAGE",), "image of every task (the one that make image builds from this code)"),
    Setting("--service-account", ("VERTEX_SERVICE_ACCOUNT",), "e-mail address the tasks act as (project's default)"),
    Setting("--network", ("VERTEX_NETWORK",), "network to peer with: projects/NUMBER/global/networks/NAME"),
    Setting("--encryption-key", ("VERTEX_ENCRYPTION_KEY",), "customer-managed key: projects/P/.../cryptoKeys/K"),
    Setting("--labels", ("VERTEX_LABELS",), "labels of the job, such as team=flights,stage=test"),
    Setting("--caching", ("VERTEX_CACHING",), "pass over steps whose inputs have not changed (on)", None, YES_OR_NO),
    Setting("--experiment", ("VERTEX_EXPERIMENT",), "Vertex AI Experiment that collects the runs"),
    Setting("--webhook-url", ("VERTEX_WEBHOOK_URL",), "https://... to tell what came of a run"),
    Setting("--webhook-secret", ("VERTEX_WEBHOOK_SECRET",), "to sign that with: projects/P/secrets/S/versions/latest"),
    Setting(
        "--failure-policy",
        ("VERTEX_FAILURE_POLICY",),
        "after a failed task start no other (fast) or all that do not depend on it (slow) (fast)",
        None,
        get_args(FailurePolicy),
    ),
    Setting("--dataflow", ("VERTEX_DATAFLOW",), "run the data steps on Dataflow (off)", None, YES_OR_NO),
    Setting("--dataflow-machine-type", ("VERTEX_DATAFLOW_MACHINE_TYPE",), "of a Dataflow worker (n2-standard-4)"),
    Setting("--dataflow-max-workers", ("VERTEX_DATAFLOW_MAX_WORKERS",), "most Dataflow workers (10)"),
    Setting("--dataflow-subnetwork", ("VERTEX_DATAFLOW_SUBNETWORK",), "of Dataflow workers: regions/R/subnetworks/N"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds every setting's flag; the choices are checked with the rest, so that all problems are said together."""
    group = parser.add_argument_group("Vertex AI", "Each flag may be a variable of the environment instead.")
    for setting in SETTINGS:
        metavar = "|".join(setting.choices) if setting.choices else setting.name.split("_")[-1].upper()
        group.add_argument(setting.flag, metavar=metavar, help=f"{setting.help} [{setting.variables[0]}]")


def read(
    arguments: argparse.Namespace,
    environment: Mapping[str, str],
    default_image: str,
    needed: Collection[str] = ("project", "region", "bucket"),
) -> Vertex:
    """The settings as values.

    Args:
        arguments: With the flags of ``add_arguments``.
        environment: ``os.environ``.
        default_image: Name and tag of the image below the project's registry, where no image is named.
        needed: What may not be missing; a stand-in takes the place of what is not needed.

    Raises:
        UserError: settings are missing or wrong; a line for each.
    """
    values = {setting.name: _value(setting, arguments, environment) for setting in SETTINGS}
    problems = [
        f"{setting.flag} (or {setting.variables[0]}) is missing: {setting.remedy}"
        for setting in SETTINGS
        if setting.name in needed and not values[setting.name]
    ]
    for setting in SETTINGS:
        value = values[setting.name]
        if setting.choices and value and value not in setting.choices:
            problems.append(f"{setting.flag} must be {' or '.join(setting.choices)}, got {value!r}")
            values[setting.name] = None
    labels, wrong = _labels(values["labels"] or "")
    problems += wrong
    most = values["dataflow_max_workers"] or "10"
    if not most.isdigit() or int(most) < 1:
        problems.append(f"--dataflow-max-workers must be a whole number of 1 or more, got {most!r}")
        most = "1"

    # What is missing is stood in for, so that the rest is checked as well.
    project, region = values["project"] or "missing", values["region"] or "missing-region1"
    bucket = (values["bucket"] or "missing").removeprefix("gs://").rstrip("/")
    image = values["image"] or f"{region}-docker.pkg.dev/{project.replace(':', '/')}/{default_image}"
    dataflow = None
    try:
        if values["dataflow"] == "on":
            dataflow = Dataflow(
                project=project,
                region=region,
                temp_location=f"gs://{bucket}/temp",
                image=image,
                machine_type=values["dataflow_machine_type"] or Dataflow.machine_type,
                max_workers=int(most),
                service_account=values["service_account"],
                encryption_key=values["encryption_key"],
                subnetwork=values["dataflow_subnetwork"],
                labels=labels,
            )
    except UserError as error:
        problems.append(str(error))
    try:
        vertex = Vertex(
            project=project,
            region=region,
            bucket=bucket,
            image=image,
            service_account=values["service_account"],
            network=values["network"],
            encryption_key=values["encryption_key"],
            labels=labels,
            caching=values["caching"] != "off",
            experiment=values["experiment"],
            webhook_url=values["webhook_url"],
            webhook_secret=values["webhook_secret"],
            failure_policy="slow" if values["failure_policy"] == "slow" else "fast",
            dataflow=dataflow,
        )
    except UserError as error:
        problems += str(error).splitlines()
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)))
    return vertex


def endpoints(environment: Mapping[str, str]) -> dict[str, str]:
    """Addresses of Google Cloud's services that gcloud too takes from the environment, by service.

    For networks that reach Google Cloud by addresses of their own (Private Service Connect):
    https://cloud.google.com/sdk/gcloud/reference/topic/configurations, api_endpoint_overrides.
    """
    prefix = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
    return {name.removeprefix(prefix).lower(): value for name, value in environment.items() if name.startswith(prefix)}


def _value(setting: Setting, arguments: argparse.Namespace, environment: Mapping[str, str]) -> str | None:
    given = [getattr(arguments, setting.name, None), *(environment.get(name) for name in setting.variables)]
    return next((value.strip() for value in given if value and value.strip()), None)


def _labels(text: str) -> tuple[dict[str, str], list[str]]:
    """The labels, and a sentence for each that is none."""
    labels, problems = {}, []
    for item in filter(None, (item.strip() for item in text.split(","))):
        key, equals, value = item.partition("=")
        if equals:
            labels[key.strip()] = value.strip()
        else:
            problems.append(f"--labels must be key=value,key=value, got {item!r}")
    return labels, problems
