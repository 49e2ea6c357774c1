"""A model of images on an endpoint and in batch jobs: the real server answers what the real clients send."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1
from starlette.testclient import TestClient

from pipeline.model.export_format import INPUTS
from pipeline.serving.answering import Answering
from pipeline.serving.app import create_app
from pipeline.serving.bodies import Limits
from pipeline.serving.current import Current
from pipeline.serving.metrics import Metrics
from pipeline.settings.config import Label
from pipeline.settings.image_data import Images
from pipeline.vertex.endpoints import batch
from pipeline.vertex.endpoints.endpoint import ServingEndpoint
from pipeline.vertex.endpoints.observation import predict
from pipeline.vertex.endpoints.registry import Registry, Version
from tests.components.test_model_probe import probe_images
from tests.fakes.google_cloud import GoogleCloud
from tests.serving.test_image_inputs import b64, grey_image
from tests.vertex.serving import ENDPOINT, Pushes

pytestmark = pytest.mark.slow
GREYS = (30, 120, 200)
LIMITS = Limits(body_bytes=20_000, instances=100)
# In base64, two of them are more than the server takes in a request.
LARGE = grey_image(90, (60, 160), "BMP")


class Server:
    """Our server with a model that answers the mean grey of an image, and the rows that the model check has kept."""

    def __init__(self, client: TestClient, rows: list[dict[str, Any]]):
        self.client = client
        self.rows = rows

    def batch(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """As the container of a batch job."""
        response = self.client.post("/predict", json=body)
        return response.status_code, response.json()

    def answer(self, instance: dict[str, Any]) -> Any:
        """As the container of an endpoint."""
        status, body = self.batch({"instances": [instance]})
        assert status == 200, body
        return body["predictions"][0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("model") / "greys"
    rows = probe_images(folder, pictures=[grey_image(grey) for grey in GREYS])["rows"]
    described = {"image": {"type": "image", "required": True, "max_pixels": 1_000_000, "max_bytes": 1 << 20}}
    (folder / INPUTS).parent.mkdir(exist_ok=True)
    (folder / INPUTS).write_text(json.dumps(described))
    metrics = Metrics()
    current = Current(str(folder), "greys", metrics, 1_000)
    current.start()
    with TestClient(create_app(Answering(current, metrics, LIMITS), look_every=60)) as client:
        yield Server(client, rows)


def test_the_rows_of_the_model_check_are_images_that_the_endpoint_answers(
    server: Server, pushes: Pushes, there: GoogleCloud, cloud
):
    assert [row["instance"] for row in server.rows] == [{"image": b64(grey_image(grey))} for grey in GREYS]
    asked: list[dict[str, Any]] = []

    def answer(instance: dict[str, Any]) -> Any:
        asked.append(instance)
        return server.answer(instance)

    there.vertex.serving.answers["1"] = answer
    pushes.rows = server.rows
    pushes.push(1)
    assert there.vertex.serving.traffic() == {"1": 100}
    assert asked == [row["instance"] for row in server.rows]

    serving = ServingEndpoint(cloud, ENDPOINT)
    for instance in (b64(grey_image(70)), {"image": b64(grey_image(70))}):
        assert predict(serving, instance).prediction == 70.0
    with pytest.raises(exceptions.InvalidArgument, match="bytes, at most 1,500,000"):
        predict(serving, b64(bytes(1_200_000)))


@pytest.fixture
def version(cloud) -> Version:
    container = v1.ModelContainerSpec(image_uri="europe-docker.pkg.dev/p/r/i:1")
    return Registry(cloud, "greys").add("gs://m", "gs://demo-bucket/greys/serving/1", container, {}, "", None)


def contents(images: list[bytes]) -> dict[str, Any]:
    """The same images in each form that a batch job of images takes."""
    files = {f"gs://demo-bucket/images/{number}.png": image for number, image in enumerate(images)}
    rows = [
        {"image": b64(image), "image_path": path, "image_format": "PNG", "grey": 1.0} for path, image in files.items()
    ]
    return {
        "gs://demo-bucket/rows/*.jsonl": "\n".join(map(json.dumps, rows)),
        "gs://demo-bucket/list.txt": ("\n".join(files), files),
        "bq://demo.images.today": rows,
    }


@pytest.mark.parametrize(
    "source", ["gs://demo-bucket/rows/*.jsonl", "gs://demo-bucket/list.txt", "bigquery://demo.images.today"]
)
def test_a_batch_job_answers_every_image_whatever_64_of_them_weigh(
    source: str, version: Version, server: Server, vertex, cloud, there: GoogleCloud
):
    assert len(json.dumps(b64(LARGE))) < LIMITS.body_bytes - 100 < 2 * len(json.dumps(b64(LARGE)))
    jobs = there.vertex.jobs
    jobs.containers[version.name] = server.batch
    jobs.rows = contents([grey_image(30), LARGE, LARGE, grey_image(200)])
    notes: list[str] = []
    to = "gs://demo-bucket/answers"
    batch.predict(version, source, to, Label("grey"), vertex, cloud, notes.append, 0.01, images=Images())
    (answered,) = jobs.answered.values()
    assert answered.errors == []
    assert answered.predictions == [30.0, 90.0, 90.0, 200.0]
    assert notes[-1].startswith("4 rows answered, 0 not")
