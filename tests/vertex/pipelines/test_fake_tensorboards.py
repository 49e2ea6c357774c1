"""The fake lists TensorBoards, experiments and runs of their parent only, page by page."""

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from tests.fakes.google_cloud import NUMBER, REGION, GoogleCloud

BOARD = f"projects/{NUMBER}/locations/{REGION}/tensorboards/1"


def test_experiments_and_runs_are_those_of_their_parent_and_a_board_has_a_size(cloud, there: GoogleCloud):
    standing = there.vertex.standing
    standing.tensorboards[BOARD] = v1.Tensorboard(name=BOARD)
    for number in (1, 2):
        experiment = f"{BOARD}/experiments/{number}"
        standing.experiments[experiment] = v1.TensorboardExperiment(name=experiment)
        standing.runs[f"{experiment}/runs/1"] = v1.TensorboardRun(name=f"{experiment}/runs/1")
    client = cloud.client(v1.TensorboardServiceClient)
    assert [board.name for board in client.list_tensorboards(parent=cloud.parent)] == [BOARD]
    assert len(list(client.list_tensorboard_experiments(parent=BOARD))) == 2
    assert there.vertex.count("ListTensorboardExperiments") == 2
    (run,) = client.list_tensorboard_runs(parent=f"{BOARD}/experiments/2")
    assert run.name == f"{BOARD}/experiments/2/runs/1"
    with pytest.raises(exceptions.NotFound):
        client.read_tensorboard_size(tensorboard=f"{BOARD}2")
