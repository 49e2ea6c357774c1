"""Preflight on the fake Google Cloud, by thing and by account."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.settings.config import Data
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines.preflight import Finding, check
from tests.fakes.google_cloud import PROJECT, REGION, GoogleCloud


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
