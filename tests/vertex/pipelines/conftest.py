"""Preflight on the fake Google Cloud, by thing and by account, and the search for what is not used."""

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.costs.prices import read_prices
from pipeline.settings.config import Data
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines.preflight import Finding, check
from pipeline.vertex.pipelines.unused import Scope
from tests.fakes.google_cloud import BUCKET, PROJECT, REGION, GoogleCloud

PRICES = Path(__file__).resolve().parents[3] / "configs/prices.toml"


def ago(days: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)


@pytest.fixture
def scope(cloud, config, vertex) -> Scope:
    """The pipeline "flights" and its bucket, over 30 days."""
    return Scope(cloud, config, vertex, read_prices(PRICES), ago(30))


@pytest.fixture
def write(there: GoogleCloud) -> Callable[..., None]:
    """Write an object that is some days old."""

    def written(name: str, days: float, size: int = 1 << 20, **properties: Any) -> None:
        there.storage.bucket(BUCKET).blob(name).upload_from_string(b"x" * size)
        objects = there.buckets.buckets[BUCKET]
        found = objects[name]
        objects[name] = replace(found, updated=ago(days), properties={**found.properties, **properties})

    return written


@pytest.fixture
def all_checked(config, vertex, there: GoogleCloud):
    """Return a function for the outcome of preflight; it takes settings that are not those of a run in order."""

    def look(data: Data | None = None, **settings):
        return check(
            replace(config, data=data) if data else config,
            replace(vertex, **settings),
            lambda: Cloud.connect(PROJECT, REGION),
        )

    return look


@pytest.fixture
def checked(all_checked):
    """Return a function for the findings of preflight by thing; the last of several about one thing."""

    def look(data: Data | None = None, **settings) -> dict[str, Finding]:
        return {finding.subject: finding for finding in all_checked(data, **settings).findings}

    return look


@pytest.fixture
def about_account(all_checked):
    """Return a function for what preflight finds about the service account."""

    def look(data: Data | None = None, **settings) -> list[str]:
        findings = all_checked(data, **settings).findings
        return [finding.text for finding in findings if finding.subject == "service account"]

    return look


@pytest.fixture
def internet(there: GoogleCloud, vertex, monkeypatch) -> Callable[[str], str]:
    """Gives the image of ``vertex`` an address at a registry on the internet, which is led here."""
    for name, value in there.internet.items():
        monkeypatch.setenv(name, value)
    return lambda host: f"{host}/{vertex.image.partition('/')[2]}"
