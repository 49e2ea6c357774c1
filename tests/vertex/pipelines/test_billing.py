"""The table of prices brought up to date from a fake of the Cloud Billing Catalog, whole or not at all."""

import datetime
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.costs.prices import Prices, read_prices
from pipeline.errors import UserError
from pipeline.settings.repository import REPOSITORY
from pipeline.vertex.cloud import Cloud
from pipeline.vertex.pipelines import billing
from pipeline.vertex.pipelines.billing import COMPUTE_ENGINE, VERTEX_AI, refresh
from tests.fakes.catalog import sku, skus_like
from tests.fakes.google_cloud import GoogleCloud


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return Path(shutil.copy(REPOSITORY / "configs/prices.toml", tmp_path / "prices.toml"))


@pytest.fixture
def catalog(there: GoogleCloud, table: Path) -> list[dict[str, Any]]:
    """Prices of Compute Engine as the table has them, among SKUs of other things with like names."""
    skus = skus_like(table)
    skus += [
        sku("Commitment v1: N1 Predefined Instance Core running in Americas for 1 Year", ["us-central1"], 0.001),
        sku("Reserved N1 Predefined Instance Core running in Americas", ["us-central1"], 0.001),
        sku("Nvidia H100 80GB GPU attached to DWS Defined Duration VMs running in Americas", ["us-central1"], 4.200761),
        sku("Regional SSD backed PD Capacity", ["us-central1"], 0.34, "GiBy.mo"),
    ]
    there.rest.project.skus = {COMPUTE_ENGINE: skus, VERTEX_AI: []}
    return skus


def change(skus: list[dict[str, Any]], beginning: str, region: str, price: float) -> None:
    (found,) = [s for s in skus if s["description"].startswith(beginning) and region in s["serviceRegions"]]
    unit = found["pricingInfo"][0]["pricingExpression"]["usageUnit"]
    found.update(sku(found["description"], found["serviceRegions"], price, unit))


def refreshed(table: Path, cloud: Cloud) -> tuple[Prices, list[str]]:
    notes: list[str] = []
    refresh(table, cloud, notes.append)
    return read_prices(table), notes


def test_the_same_prices_change_the_date_only_and_comments_stay(
    table: Path, cloud: Cloud, catalog: list[dict[str, Any]]
) -> None:
    before, text = read_prices(table), table.read_text(encoding="utf-8")
    day = datetime.date.today()
    after, notes = refreshed(table, cloud)
    assert after.date in {day, datetime.date.today()}  # midnight may have come
    assert after.resources == before.resources
    assert after.stale(day) is None
    assert "0 prices rose and 0 fell by more than 1 %, 0 are new, " in notes[1]
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert [line for line in table.read_text(encoding="utf-8").splitlines() if line.startswith("#")] == comments
    again, _ = refreshed(table, cloud)
    assert again == after, "a second refresh in a row changes nothing"


def test_prices_that_rose_and_fell_are_counted_and_written_and_small_changes_are_not_counted(
    table: Path, cloud: Cloud, catalog: list[dict[str, Any]]
) -> None:
    change(catalog, "Nvidia Tesla T4 GPU running in", "us-central1", 0.42)
    change(catalog, "Spot Preemptible E2 Instance Ram", "europe-west4", 0.001)
    change(catalog, "Nvidia L4 GPU running in", "us-east1", 0.5601)
    after, notes = refreshed(table, cloud)
    assert "1 prices rose and 1 fell by more than 1 %" in notes[1]
    assert after.price("NVIDIA_TESLA_T4", "us-central1") == 0.42
    assert after.price("e2.gib", "europe-west4", spot=True) == 0.001
    assert after.price("NVIDIA_L4", "us-east1") == 0.5601


def test_a_price_that_the_table_lacks_is_added_and_one_that_the_catalog_lacks_stays_and_is_named(
    table: Path, cloud: Cloud, catalog: list[dict[str, Any]]
) -> None:
    catalog.append(sku("Nvidia H100 80GB GPU running in Japan", ["asia-northeast1"], 12.58))
    catalog[:] = [s for s in catalog if not s["description"].startswith("Nvidia Tesla P4 GPU running in us-central1")]
    after, notes = refreshed(table, cloud)
    assert after.price("NVIDIA_H100_80GB", "asia-northeast1") == 12.58
    assert "1 are new" in notes[1]
    assert after.price("NVIDIA_TESLA_P4", "us-central1") == 0.6
    assert "not in the catalog, and left as they were: " in notes[2]
    assert "NVIDIA_TESLA_P4 in us-central1," in notes[2]
    assert "TPU_V5E" in notes[2]
    assert "TPU_V5E in" not in notes[2]


def test_the_fee_is_seen_from_vertex_ais_own_price_of_a_core(
    table: Path, cloud: Cloud, there: GoogleCloud, catalog: list[dict[str, Any]]
) -> None:
    there.rest.project.skus[VERTEX_AI] = [
        sku(f"{billing.FEES['training']} Americas", ["us-central1"], 0.031611 * 1.2),
        sku(f"{billing.FEES['prediction']} EMEA", ["europe-west1"], 9.0),
    ]
    after, _ = refreshed(table, cloud)
    assert after.fees == {"training": pytest.approx(0.2), "prediction": 0.15}


@pytest.mark.parametrize("wrong", ["other names", "other unit", "no access"])
def test_a_catalog_that_cannot_be_used_leaves_the_table_as_it_was(
    table: Path, cloud: Cloud, there: GoogleCloud, catalog: list[dict[str, Any]], wrong: str
) -> None:
    text = table.read_bytes()
    if wrong == "other names":
        there.rest.project.skus[COMPUTE_ENGINE] = [sku("N1 Cores", ["us-central1"], 1.0)]
    elif wrong == "other unit":
        there.rest.project.skus[COMPUTE_ENGINE] = [
            sku("N1 Predefined Instance Core running in Americas", ["us-central1"], 1.0, "s")
        ]
    else:
        there.rest.project.apis.discard("cloudbilling.googleapis.com")
    message = (
        "reading the Cloud Billing Catalog failed: .*disabled" if wrong == "no access" else "none of the prices in"
    )
    with pytest.raises(UserError, match=message):
        refresh(table, cloud, lambda _: None)
    assert table.read_bytes() == text
    assert list(table.parent.iterdir()) == [table]


def test_a_damaged_table_is_refused_before_anything_is_read(table: Path, cloud: Cloud, there: GoogleCloud) -> None:
    table.write_text("date")
    with pytest.raises(UserError, match="is no TOML"):
        refresh(table, cloud, lambda _: None)
    assert not any("skus" in path for path in there.rest.asked)
