"""The table of machines and prices: its sums are those that Google publishes; what it lacks is said in a sentence."""

import datetime
import re
from pathlib import Path

import pytest

from pipeline.costs.prices import read_prices
from pipeline.errors import UserError
from pipeline.settings.machines import ACCELERATORS, TOPOLOGIES
from tests.costs.shipped import PRICES, TABLE, only_shipped

FEE = 1.15
# Totals of whole machines, published: the first by Vertex AI's price list (seen 2026-10-07), the others by Compute
# Engine's (pricing.yml of 2025-03-06 and vms.csv of 2026, see the file), to which Vertex AI's fee comes.
TOTALS = [
    ("n1-standard-4", "us-central1", 0.21849885),
    ("n1-highmem-8", "us-central1", 0.47321 * FEE),
    ("n1-standard-1", "asia-northeast1", 0.06094 * FEE),
    ("e2-standard-16", "europe-west4", 0.59018 * FEE),
    ("n2-highmem-16", "us-east1", 1.04811 * FEE),
    ("n2-highcpu-80", "europe-west1", 3.15472 * FEE),
    ("c2-standard-4", "us-west1", 0.20881 * FEE),
    ("g2-standard-4", "us-central1", (0.14679 + 0.56004) * FEE),
    ("a2-highgpu-1g", "us-central1", 3.673385 * FEE),
    ("a2-highgpu-1g", "europe-west4", 3.747972 * FEE),
    ("a2-highgpu-2g", "asia-southeast1", 8.027515852 * FEE),
    ("a2-ultragpu-1g", "us-central1", (1.09962 + 3.92808) * FEE),
    ("a3-highgpu-1g", "us-central1", (1.18251 + 9.79655057) * FEE),
    ("ct5lp-hightpu-4t", "us-central1", 4.8 * FEE),
    # Of a bill of 2025-08: 8 x 11.2660332 + 208 x 0.0293227 + 1872 x 0.0025534.
    ("a3-highgpu-8g", "us-central1", 101.007352),
]


@only_shipped
@pytest.mark.parametrize(("machine", "region", "total"), TOTALS)
def test_a_machine_costs_what_the_published_price_lists_say(machine: str, region: str, total: float) -> None:
    assert PRICES.per_hour(machine, region=region) == pytest.approx(total, rel=0.01)


@only_shipped
def test_an_accelerator_beside_the_machine_is_added() -> None:
    alone = PRICES.per_hour("n1-standard-8", region="us-central1")
    with_two = PRICES.per_hour("n1-standard-8", "NVIDIA_TESLA_V100", 2, region="us-central1")
    assert with_two - alone == pytest.approx(2 * 2.48 * FEE)


def test_accelerators_that_are_part_of_the_type_count_once_whether_named_or_not() -> None:
    unnamed = PRICES.per_hour("g2-standard-24", region="us-central1")
    assert PRICES.per_hour("g2-standard-24", "NVIDIA_L4", 2, region="us-central1") == unnamed


@only_shipped
def test_the_host_of_a_tpu_is_in_the_price_of_the_tpu() -> None:
    assert PRICES.per_hour("cloud-tpu", "TPU_V2", 8, region="us-central1") == pytest.approx(4.5 * FEE)


@only_shipped
def test_the_fee_of_a_spot_machine_is_that_of_the_machine_on_demand() -> None:
    on_demand, spot = 8 * 0.031611 + 30 * 0.004237, 8 * 0.00882 + 30 * 0.00113
    price = PRICES.per_hour("n1-standard-8", region="us-central1", spot=True)
    assert price == pytest.approx(spot + 0.15 * on_demand, rel=1e-4)


@only_shipped
def test_a_boot_disk_costs_what_a_bill_says() -> None:
    assert PRICES.disk_per_hour("pd-ssd", 2000, region="us-central1") == pytest.approx(0.53561644, rel=1e-3)


def test_spot_is_cheaper_everywhere() -> None:
    for by_region in PRICES.resources.values():
        for price in by_region.values():
            assert price.on_demand is None or price.spot is None or price.spot < price.on_demand


def test_the_table_has_every_accelerator_and_tpu_host_that_the_settings_allow() -> None:
    allowed = {name for taken in ACCELERATORS.values() for name in taken}
    assert allowed <= set(PRICES.accelerators)
    assert set(TOPOLOGIES) <= set(PRICES.machines)
    for pattern in ACCELERATORS:
        assert any(re.fullmatch(pattern, machine) for machine in PRICES.machines), pattern


def test_speeds_are_of_accelerators_that_there_are_and_compare_with_a_core() -> None:
    for by_hardware in PRICES.speeds.values():
        assert by_hardware["vcpu"]["float32"]
        assert set(by_hardware) - {"vcpu"} <= set(PRICES.accelerators)


def test_each_price_and_each_speed_names_its_source_and_the_day_of_it() -> None:
    import tomllib

    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))

    def named(sections: dict) -> set[str]:
        own = {section["source"] for section in sections.values() if "source" in section}
        return own.union(*(named(inner) for inner in sections.values() if "source" not in inner))

    assert named(table["prices"]) <= set(table["sources"])
    speeds = [section for sections in table["speeds"].values() for section in sections.values()]
    assert {section["source"] for section in speeds} <= set(table["sources"])
    assert all(isinstance(source["day"], datetime.date) for source in table["sources"].values())


@only_shipped
@pytest.mark.parametrize(
    ("machine", "accelerator", "region", "sentence"),
    [
        ("n1-standart-8", None, "us-central1", r"has no machine type 'n1-standart-8'; the nearest is n1-standard-8"),
        ("n1-standard-8", "NVIDIA_T4", "us-central1", r"no accelerator 'NVIDIA_T4'; the nearest is NVIDIA_TESLA_T4"),
        ("n1-standard-8", None, "mars-north1", r"no prices of the region 'mars-north1'; it has those of asia-north"),
        (
            "a3-highgpu-8g",
            None,
            "asia-northeast1",
            r"no price on demand of NVIDIA_H100_80GB in asia-northeast1; it has",
        ),
        ("a4-highgpu-8g", None, "us-central1", r"on demand of NVIDIA_B200 in us-central1; it has none in any region"),
    ],
)
def test_what_the_table_lacks_is_said_in_one_sentence(machine, accelerator, region, sentence) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        PRICES.per_hour(machine, accelerator, 1 if accelerator else 0, region=region)
    assert "\n" not in str(error.value)


def test_prices_of_more_than_90_days_are_a_warning() -> None:
    assert PRICES.stale(PRICES.date + datetime.timedelta(days=90)) is None
    warning = PRICES.stale(PRICES.date + datetime.timedelta(days=91))
    assert warning is not None
    assert "91 days old; correct them from cloud.google.com/vertex-ai/pricing, and the date" in warning


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"date = ", "is no TOML"),
        (b"\xff", "is no TOML"),
        (b"date = 2026-09-08\n", r"not the table of prices that was expected \(KeyError: 'shapes'\)"),
        (re.sub(rb"\ndate = .*", b"\ndate = 'soon'", TABLE.read_bytes()), "date must be a day"),
        (re.sub(rb"\ndate = .*", b"\ndate = 2999-01-01", TABLE.read_bytes()), "not in the future, got 2999-01-01"),
        (
            re.sub(rb"on_demand = [0-9.]+", b"on_demand = -0.02", TABLE.read_bytes(), count=1),
            r"prices\.\S+\.on_demand must be US dollars, 0 or more, got -0.02",
        ),
        (
            re.sub(rb"spot = [0-9.]+", b'spot = "cheap"', TABLE.read_bytes(), count=1),
            r"\.spot must be US dollars, 0 or more, got 'cheap'",
        ),
        (TABLE.read_bytes().replace(b"on_demand", b"ondemand"), "unexpected keyword argument 'ondemand'"),
        (
            TABLE.read_bytes().replace(b"float32 = 412", b"float32 = 0"),
            "speeds.images.NVIDIA_TESLA_V100.float32 must be a number above 0, got 0",
        ),
    ],
)
def test_a_file_that_is_not_the_table_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "prices.toml").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        read_prices(tmp_path / "prices.toml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"prices.toml cannot be read: No such file"):
        read_prices(tmp_path / "prices.toml")
