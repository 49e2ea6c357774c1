"""What is looked at, and ways to make things old."""

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.costs.prices import read_prices
from pipeline.vertex.pipelines.idle.finding import Scope
from tests.fakes.google_cloud import BUCKET, GoogleCloud

ROOT = Path(__file__).resolve().parents[4]


def ago(days: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)


@pytest.fixture
def scope(cloud) -> Scope:
    """The pipeline "flights" and its bucket, over 30 days."""
    return Scope(
        cloud=cloud,
        pipeline="flights",
        bucket=BUCKET,
        endpoint=None,
        tensorboards=frozenset(),
        whole=False,
        days=30,
        now=datetime.datetime.now(datetime.UTC),
        prices=read_prices(ROOT / "configs/prices.toml"),
    )


@pytest.fixture
def write(there: GoogleCloud) -> Callable[..., None]:
    """Write an object that is some days old."""

    def written(name: str, days: float, size: int = 1 << 20, **properties: Any) -> None:
        there.storage.bucket(BUCKET).blob(name).upload_from_string(b"x" * size)
        objects = there.buckets.buckets[BUCKET]
        found = objects[name]
        objects[name] = replace(found, updated=ago(days), properties={**found.properties, **properties})

    return written
