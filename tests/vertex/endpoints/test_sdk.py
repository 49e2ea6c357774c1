"""Our requests against the Google SDK's for the same model, deployment and batch job: every difference is intended."""

from dataclasses import replace
from typing import Any

import pytest
from google.cloud.aiplatform import initializer, jobs, models
from google.protobuf import json_format

from pipeline.settings.config import Label
from pipeline.settings.endpoint import Endpoint
from pipeline.vertex.endpoints import batch, pusher
from pipeline.vertex.endpoints.endpoint import ServingEndpoint
from pipeline.vertex.endpoints.registry import Registry, Version
from tests.fakes.google_cloud import NUMBER, PROJECT, REGION, GoogleCloud

pytestmark = pytest.mark.slow  # the import of the SDK alone takes seconds
IMAGE = "europe-docker.pkg.dev/p/r/i:1"
FOLDER = "gs://demo-bucket/flights/serving/1"
SETTINGS = Endpoint(
    "late-flights",
    machine_type="g2-standard-8",
    accelerator="NVIDIA_L4",
    accelerators=1,
    max_replicas=3,
    cpu_target=70,
    accelerator_target=80,
    service_account="server@demo.iam.gserviceaccount.com",
)


@pytest.fixture
def sdk(there: GoogleCloud, cloud, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Configure the SDK for the fake; the settings of ``init`` are reset after the test."""
    monkeypatch.setattr(jobs, "_JOB_WAIT_TIME", 0.01)  # the fake's jobs have ended
    monkeypatch.setattr(initializer, "global_config", initializer._Config())
    initializer.global_config.init(
        project=PROJECT, location=REGION, credentials=cloud.credentials, api_endpoint=there.vertex.endpoint
    )
    return models


@pytest.fixture
def uploaded(cloud, there: GoogleCloud) -> Version:
    container = pusher.container_of(IMAGE, SETTINGS)
    return Registry(cloud, "flights").add("gs://m", FOLDER, container, {"team": "a"}, "auc 0.7", None)


def last(there: GoogleCloud, method: str) -> dict[str, Any]:
    """Return the fields of a method's last request: values by path."""
    ask = [ask for name, ask in there.vertex.requests if name == method][-1]
    content = json_format.MessageToDict(type(ask).pb(ask), preserving_proto_field_name=True)
    flat: dict[str, Any] = {}

    def put(path: str, value: Any) -> None:
        if isinstance(value, (dict, list)):
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                put(f"{path}.{key}".lstrip("."), inner)
        else:
            flat[path] = value.replace(NUMBER, PROJECT) if isinstance(value, str) else value

    put("", content)
    return flat


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return our value and the SDK's by path where they differ."""
    return {
        path: (ours.get(path), theirs.get(path))
        for path in sorted({*ours, *theirs})
        if ours.get(path) != theirs.get(path)
    }


def test_a_model_is_uploaded_as_by_the_sdk(uploaded: Version, sdk, there: GoogleCloud):
    ours = last(there, "UploadModel")
    there.vertex.serving.models.clear()
    model = sdk.Model.upload(
        serving_container_image_uri=IMAGE,
        artifact_uri=FOLDER,
        model_id="flights",
        display_name="flights",
        labels={"team": "a"},
        version_description="auc 0.7",
        serving_container_predict_route="/predict",
        serving_container_health_route="/health",
        serving_container_ports=[8080],
        serving_container_command=["python", "-m", "pipeline", "serve"],
        serving_container_args=["--processes=1"],
    )
    assert (model.name, model.version_id) == ("flights", "1")
    assert differences(ours, last(there, "UploadModel")) == {
        # How a run finds its version again, and what became of it.
        "model.labels.source": (uploaded.labels["source"], None),
        "model.labels.state": ("canary", None),
        # The SDK makes each new version the default; ours is when it has all the traffic.
        "model.version_aliases.0": (None, "default"),
    }


def test_a_version_is_deployed_as_by_the_sdk(uploaded: Version, sdk, cloud, there: GoogleCloud):
    serving = ServingEndpoint(cloud, SETTINGS)
    serving.create({}, None)
    key = serving.deploy(uploaded)
    ours = last(there, "DeployModel")
    serving.undeploy(key)
    sdk.Endpoint(serving.name).deploy(
        sdk.Model(uploaded.entry, version="1"),
        deployed_model_display_name="flights-1",
        traffic_percentage=0,
        machine_type="g2-standard-8",
        accelerator_type="NVIDIA_L4",
        accelerator_count=1,
        min_replica_count=1,
        max_replica_count=3,
        autoscaling_target_cpu_utilization=70,
        autoscaling_target_accelerator_duty_cycle=80,
        service_account="server@demo.iam.gserviceaccount.com",
    )
    # The SDK routes all traffic to an endpoint's first model in the deploy request; ours routes it after deployment.
    assert differences(ours, last(there, "DeployModel")) == {"traffic_split.0": (None, 100)}


def test_rows_are_answered_as_by_the_sdk(uploaded: Version, sdk, vertex, cloud, there: GoogleCloud):
    vertex = replace(vertex, endpoint=SETTINGS, labels={"team": "a"})
    batch.predict(uploaded, "bigquery://demo.d.rows", "bq://demo.d", Label("late"), vertex, cloud, lambda _: None, 0.01)
    ours = last(there, "CreateBatchPredictionJob")
    job = sdk.Model(uploaded.entry, version="1").batch_predict(
        job_display_name="flights-1",
        bigquery_source="bq://demo.d.rows",
        bigquery_destination_prefix="bq://demo.d",
        instances_format="bigquery",
        predictions_format="bigquery",
        machine_type="g2-standard-8",
        accelerator_type="NVIDIA_L4",
        accelerator_count=1,
        starting_replica_count=3,
        max_replica_count=3,
        labels={"team": "a"},
        service_account="server@demo.iam.gserviceaccount.com",
        sync=False,
    )
    job.wait()  # or its thread asks the fake of another test
    assert differences(ours, last(there, "CreateBatchPredictionJob")) == {
        # The SDK cannot ask for rows by name; they would reach the model as arrays.
        "batch_prediction_job.instance_config.instance_type": ("object", None),
        "batch_prediction_job.instance_config.excluded_fields.0": ("late", None),
    }


def test_the_sdk_reads_what_we_have_made(uploaded: Version, sdk, cloud, there: GoogleCloud):
    serving = ServingEndpoint(cloud, SETTINGS)
    serving.create({}, None)
    key = serving.deploy(uploaded)
    serving.take("run", 60, lambda _: False)
    serving.set_traffic("run", {key: 100})
    there.vertex.serving.answers["1"] = lambda one: {"probability": 0.5}
    endpoint = sdk.Endpoint(serving.name)
    assert [one.id for one in endpoint.list_models()] == [key]
    assert endpoint.traffic_split == {key: 100}
    assert endpoint.predict(instances=[{"distance": 1}]).predictions == [{"probability": 0.5}]
    assert [one.version_id for one in sdk.ModelRegistry(uploaded.entry).list_versions()] == ["1"]
