"""advise --refresh, as a user calls it, against the fake Google Cloud."""

import datetime
from pathlib import Path

import pytest

from pipeline.costs.prices import read_prices
from pipeline.vertex.pipelines.billing import COMPUTE_ENGINE, VERTEX_AI
from tests.e2e.run import copy_repository, run
from tests.fakes.catalog import skus_like
from tests.fakes.google_cloud import PROJECT, GoogleCloud

pytestmark = pytest.mark.slow


def test_prices_are_brought_up_to_date_before_anything_is_estimated(there: GoogleCloud, tmp_path: Path):
    clone = copy_repository(tmp_path / "clone")
    there.rest.project.skus = {COMPUTE_ENGINE: skus_like(clone / "configs/prices.toml"), VERTEX_AI: []}
    # There is no run to advise on, but the prices were asked for.
    done = run(clone, "advise", "--refresh", "--project", PROJECT, runner="vertex_runner.py")
    assert done.code == 1
    assert "configs/prices.toml has the prices of" in done.text, done.text
    assert "there is no finished run below" in done.text
    assert read_prices(clone / "configs/prices.toml").date == datetime.date.today()


def test_a_refresh_without_a_project_says_that_it_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    done = run(copy_repository(tmp_path / "clone"), "advise", "--refresh", runner="vertex_runner.py")
    assert done.code == 2
    assert "give --project (or GOOGLE_CLOUD_PROJECT); everything else of advise goes without" in done.text
