"""The fake lists jobs by the filters that Google documents, and what stands page by page, of its parent only."""

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from tests.fakes.google_cloud import NUMBER, REGION, GoogleCloud
from tests.vertex.pipelines.idle.conftest import ago

IMAGE = "europe-docker.pkg.dev/p/r/i:1"
BOARD = f"projects/{NUMBER}/locations/{REGION}/tensorboards/1"


def make_job(cloud, name: str) -> None:
    pool = v1.WorkerPoolSpec(
        machine_spec=v1.MachineSpec(machine_type="n1-standard-4"),
        replica_count=1,
        container_spec=v1.ContainerSpec(image_uri=IMAGE),
    )
    job = v1.CustomJob(display_name=name, job_spec=v1.CustomJobSpec(worker_pool_specs=[pool]), labels={"team": name})
    cloud.client(v1.JobServiceClient).create_custom_job(parent=cloud.parent, custom_job=job)


def test_jobs_are_listed_by_state_name_and_label(cloud, there: GoogleCloud):
    client = cloud.client(v1.JobServiceClient)
    for name in ("a", "b", "b"):
        make_job(cloud, name)

    def found(conditions: str) -> list[str]:
        request = {"parent": cloud.parent, "filter": conditions}
        return [job.display_name for job in client.list_custom_jobs(request=request)]

    assert found("") == ["a", "b", "b"]
    assert found('state="JOB_STATE_QUEUED" AND display_name="b"') == ["b", "b"]
    assert found('state="JOB_STATE_RUNNING"') == []
    assert found('labels.team="a"') == ["a"]
    assert found(f'create_time>"{ago(-1):%Y-%m-%dT%H:%M:%SZ}"') == []


@pytest.mark.parametrize(
    "conditions", ["state=JOB_STATE_RUNNING", 'job_spec="x"', 'state>"a"', 'state="a" OR state="b"']
)
def test_a_filter_that_is_not_documented_is_refused(conditions: str, cloud):
    request = {"parent": cloud.parent, "filter": conditions}
    with pytest.raises(exceptions.InvalidArgument, match="filter"):
        list(cloud.client(v1.JobServiceClient).list_custom_jobs(request=request))


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
