"""What the parts of a run cost an hour: every task, job, worker and endpoint, from the settings alone."""

from dataclasses import replace

import pytest

from pipeline.costs.estimate import BEAM_TASKS, Rate, Rates, run_rates, task_machine
from pipeline.errors import UserError
from pipeline.settings import checks
from pipeline.settings.config import PipelineConfig, Tuning, load_config
from pipeline.settings.endpoint import Endpoint
from pipeline.settings.machines import TASKS, Job, Machines, Resources
from pipeline.settings.repository import REPOSITORY
from pipeline.settings.target import Dataflow, Vertex
from tests.costs.shipped import PRICES, only_shipped

pytestmark = only_shipped
CONFIG = load_config(REPOSITORY / "configs/flights.py")
REGION = "us-central1"
IMAGE = "us-central1-docker.pkg.dev/demo/pipelines/pipeline:1"
DISK_HOUR = 1.15 * 100 * 0.17 / 730


def vertex(machines: Machines | None = None, **settings) -> Vertex:
    return Vertex(
        "demo", settings.pop("region", REGION), "demo-bucket", IMAGE, machines=machines or Machines(), **settings
    )


def rated(where: Vertex, config: PipelineConfig = CONFIG, *, searching: bool = True, stored_gb: float = 0.0) -> Rates:
    return run_rates(config, where, PRICES, searching=searching, stored_gb=stored_gb)


def part(found: Rates, task: str, kind: str) -> Rate:
    return next(rate for rate in found.rates if (rate.task, rate.part) == (task, kind))


@pytest.mark.parametrize(
    ("resources", "machine"),
    [
        (Resources(4, 16), "e2-standard-4"),
        (Resources(2, 8), "e2-standard-2"),
        (Resources(8, 32), "e2-standard-8"),
        (Resources(8, 60), "e2-highmem-8"),
        (Resources(40, 100), "n1-standard-64"),
        (Resources(96, 624), "n1-highmem-96"),
        (Resources(8, 30, "NVIDIA_TESLA_T4", 1), "n1-standard-8"),
        (Resources(4, 16, "NVIDIA_L4", 1), "g2-standard-4"),
        (Resources(4, 16, "NVIDIA_L4", 2), "g2-standard-24"),
        (Resources(12, 85, "NVIDIA_TESLA_A100", 1), "a2-highgpu-1g"),
    ],
)
def test_a_task_gets_the_cheapest_machine_that_has_what_it_asks_for(resources: Resources, machine: str) -> None:
    assert task_machine(resources, PRICES, REGION) == machine


def test_a_task_that_no_machine_fits_is_one_sentence() -> None:
    with pytest.raises(UserError, match="has no machine type with 128 cores and 512 GiB; ask for less, or run it as"):
        task_machine(Resources(128, 512), PRICES, REGION)


def test_every_task_is_priced_with_its_fee_and_its_disk() -> None:
    found = rated(vertex())
    assert [rate.task for rate in found.rates] == list(TASKS)
    assert found.unpriced == ()
    expected = 1.15 * (4 * 0.021811 + 16 * 0.002924) + DISK_HOUR
    assert part(found, "Transform", "task").per_hour == pytest.approx(expected)
    assert part(found, "Transform", "task").machine == "e2-standard-4"
    assert found.run_fee == 0.03


def test_without_a_search_there_is_no_tuner() -> None:
    assert "Tuner" not in {rate.task for rate in rated(vertex(), searching=False).rates}


def test_a_trainer_that_is_a_job_costs_its_replicas_servers_and_disks_and_the_task_that_waits() -> None:
    job = Job("n1-standard-8", "NVIDIA_TESLA_V100", 2, replicas=3, reduction_servers=2, boot_disk_gib=200)
    found = rated(vertex(Machines(training=job)))
    replica = 1.15 * (8 * 0.031611 + 30 * 0.004237 + 2 * 2.48)
    server = 1.15 * (16 * 0.031611 + 14.4 * 0.004237)
    assert part(found, "Trainer", "job").per_hour == pytest.approx(3 * replica + 2 * server + 5 * 2 * DISK_HOUR)
    assert part(found, "Trainer", "job").machine == "3 x n1-standard-8 with 2 NVIDIA_TESLA_V100, 2 x n1-highcpu-16"
    assert part(found, "Trainer", "task").machine == "e2-standard-2"


def test_spot_machines_cost_their_own_price() -> None:
    job = Job("n1-standard-8", "NVIDIA_TESLA_T4", 1, spot=True)
    found = part(rated(vertex(Machines(training=job))), "Trainer", "job")
    spot, on_demand = 8 * 0.00882 + 30 * 0.00113 + 0.175, 8 * 0.031611 + 30 * 0.004237 + 0.35
    assert found.per_hour == pytest.approx(spot + 0.15 * on_demand + DISK_HOUR)
    assert found.machine.endswith(", spot")


@pytest.mark.parametrize(("trials", "replicas", "share"), [(6, 1, 1), (6, 3, 2 / 6), (6, 4, 2 / 6), (9, 4, 3 / 9)])
def test_a_search_takes_as_long_as_its_rounds_of_trials_side_by_side(trials: int, replicas: int, share: float) -> None:
    config = replace(CONFIG, tuning=Tuning(trials=trials))
    found = rated(vertex(Machines(tuning=Job(replicas=replicas))), config)
    assert part(found, "Tuner", "job").share == pytest.approx(share)
    assert part(found, "Tuner", "task").share == pytest.approx(share)


def test_an_endpoint_costs_its_fewest_machines_for_a_month() -> None:
    (month,) = rated(vertex(endpoint=Endpoint("late-flights", min_replicas=2, max_replicas=5))).monthly
    assert month.per_month == pytest.approx(2 * 730 * 1.15 * (4 * 0.031611 + 16 * 0.004237))
    assert month.detail == "2 x n2-standard-4 without traffic, up to 5 with it"


def test_artifacts_cost_their_storage() -> None:
    (month,) = rated(vertex(), stored_gb=50).monthly
    assert month.per_month == pytest.approx(1.0)


def dataflow(region: str) -> Dataflow:
    return Dataflow("demo", region, "gs://demo-bucket/temp", IMAGE)


def test_workers_of_dataflow_have_their_own_prices() -> None:
    found = rated(vertex(dataflow=dataflow(REGION)))
    worker = part(found, "StatisticsGen", "dataflow")
    assert worker.per_hour == pytest.approx(4 * 0.056 + 16 * 0.003557 + 25 * 0.000054)
    assert {rate.task for rate in found.rates if rate.part == "dataflow"} == set(BEAM_TASKS)


def test_what_has_no_price_is_named_and_the_rest_is_priced() -> None:
    found = rated(vertex(region="europe-west4", dataflow=dataflow("europe-west4")))
    (sentence,) = found.unpriced
    assert sentence.startswith("Dataflow of ExampleGen, Dataflow of StatisticsGen, Dataflow of Transform, and 1 more: ")
    assert "has no price on demand of dataflow.vcpu in europe-west4; it has that of us-central1" in sentence
    assert len(found.rates) == len(TASKS)


def test_a_machine_type_that_is_not_in_the_table_is_named_with_the_nearest() -> None:
    (sentence,) = rated(vertex(Machines(training=Job("n1-standard-9")))).unpriced
    assert "job of the Trainer: " in sentence
    assert "no machine type 'n1-standard-9'; the nearest is n1-standard-" in sentence


def test_a_task_takes_the_family_that_has_a_price_in_the_region() -> None:
    without_e2 = {name: by for name, by in PRICES.resources.items() if not name.startswith("e2.")}
    assert task_machine(Resources(4, 16), replace(PRICES, resources=without_e2), REGION) == "n1-highmem-4"
    with pytest.raises(UserError, match="no price on demand of n1.vcpu in us-central1"):
        task_machine(Resources(4, 16), replace(PRICES, resources={"storage": PRICES.resources["storage"]}), REGION)


def test_a_region_without_prices_leaves_nothing_priced() -> None:
    found = rated(vertex(region="me-west1"))
    assert found.rates == ()
    assert "no prices of the region 'me-west1'" in found.unpriced[0]


def test_rates_come_back_from_json_as_they_were() -> None:
    machines = Machines(training=Job("n1-standard-8", "NVIDIA_TESLA_T4", 1))
    found = rated(vertex(machines, endpoint=Endpoint("late-flights")), stored_gb=1)
    assert checks.from_json(Rates, checks.to_json(found)) == found
