"""TensorBoards to which nothing was added are found with what their storage costs."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.vertex.pipelines.idle import tensorboards
from pipeline.vertex.pipelines.idle.finding import Scope
from tests.fakes.google_cloud import NUMBER, REGION, GoogleCloud
from tests.vertex.pipelines.idle.conftest import ago

PARENT = f"projects/{NUMBER}/locations/{REGION}/tensorboards"
GIB = 1 << 30


@pytest.fixture
def board(there: GoogleCloud) -> Callable[..., None]:
    """Make a TensorBoard of a size, with experiments by the days since each of their runs."""

    def made(number: int, size: int = 3 * GIB, days: float = 400, **experiments: list[float]) -> None:
        name = f"{PARENT}/{number}"
        standing = there.vertex.standing
        standing.tensorboards[name] = v1.Tensorboard(name=name, display_name="flights", create_time=ago(days))
        standing.sizes[name] = size
        for key, runs in experiments.items():
            experiment = f"{name}/experiments/{key}"
            standing.experiments[experiment] = v1.TensorboardExperiment(name=experiment, update_time=ago(max(runs)))
            for place, run in enumerate(runs):
                one = f"{experiment}/runs/{place}"
                standing.runs[one] = v1.TensorboardRun(name=one, update_time=ago(run))

    return made


def test_one_without_new_data_costs_its_storage(scope: Scope, board: Callable[..., None]):
    board(1, a=[200, 90], b=[300])
    (idle,) = tensorboards.look(replace(scope, whole=True))
    assert (idle.what, idle.why) == ("TensorBoard flights", "3.0 GiB, no new data for 90 days; all of it is deleted")
    assert idle.price.dollars == pytest.approx(30)
    assert idle.command == "gcloud ai tensorboards delete 1 --region=us-central1 --project=demo"


def test_a_new_run_in_an_old_experiment_is_new_data(scope: Scope, board: Callable[..., None]):
    board(1, a=[200, 3], b=[300])
    board(2, days=3)
    assert list(tensorboards.look(replace(scope, whole=True))) == []


def test_one_without_data_costs_nothing(scope: Scope, board: Callable[..., None]):
    board(1, size=0)
    assert list(tensorboards.look(replace(scope, whole=True))) == []


def test_without_all_only_those_of_the_table_of_machines_are_looked_at(scope: Scope, board: Callable[..., None]):
    board(1, a=[90])
    board(2, a=[90])
    assert list(tensorboards.look(scope)) == []
    ours = frozenset({f"projects/demo/locations/{REGION}/tensorboards/2"})
    (idle,) = tensorboards.look(replace(scope, tensorboards=ours))
    assert " delete 2 " in idle.command


def test_a_region_without_a_price_is_said(scope: Scope, board: Callable[..., None]):
    board(1)
    (idle,) = tensorboards.look(replace(scope, whole=True, prices=replace(scope.prices, resources={})))
    assert (idle.price.dollars, "has no prices of the region 'us-central1'" in idle.price.unknown) == (None, True)
