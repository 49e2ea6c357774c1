"""The fake's models and endpoints refuse what Vertex AI refuses; each rule is named in ``tests/fakes/serving.py``."""

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from tests.fakes.google_cloud import NUMBER, GoogleCloud

IMAGE = "europe-docker.pkg.dev/p/r/i:1"
MACHINE = v1.MachineSpec(machine_type="n2-standard-4")
CPU = "aiplatform.googleapis.com/prediction/online/cpu/utilization"
DUTY = "aiplatform.googleapis.com/prediction/online/accelerator/duty_cycle"


def model(**settings: Any) -> v1.Model:
    container = v1.ModelContainerSpec(image_uri=IMAGE, **settings.pop("container", {}))
    return v1.Model(**{"display_name": "flights", "artifact_uri": "gs://b/1", "container_spec": container, **settings})


def upload(cloud, **request: Any) -> Any:
    ask = v1.UploadModelRequest(**{"parent": cloud.parent, "model": model(), "model_id": "flights", **request})
    return cloud.client(v1.ModelServiceClient).upload_model(request=ask).result()


@pytest.fixture
def deployed(cloud, there: GoogleCloud) -> str:
    """A model with two versions, and an endpoint on which the second has all the traffic; returns its deployed id."""
    upload(cloud)
    upload(cloud, model_id="", parent_model=f"{cloud.parent}/models/flights")
    client = cloud.client(v1.EndpointServiceClient)
    endpoint = v1.Endpoint(display_name="late")
    name = client.create_endpoint(parent=cloud.parent, endpoint=endpoint, endpoint_id="late").result().name
    return str(deploy(cloud, name, traffic_split={"0": 100}).deployed_model.id)


def deploy(cloud, endpoint: str, traffic_split: dict[str, int] | None = None, **settings: Any) -> Any:
    resources = {"machine_spec": MACHINE, "min_replica_count": 1, **settings.pop("resources", {})}
    one = {"model": f"{cloud.parent}/models/flights@2", "dedicated_resources": resources, **settings}
    return (
        cloud.client(v1.EndpointServiceClient)
        .deploy_model(endpoint=endpoint, deployed_model=v1.DeployedModel(**one), traffic_split=traffic_split)
        .result()
    )


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"model": model(display_name="x" * 129)}, "has 129 characters, at most 128"),
        ({"model": model(display_name="")}, "display_name is required"),
        ({"model": model(artifact_uri="/tmp/model")}, "artifact_uri must be a gs:// address"),
        ({"model": model(container={"predict_route": "predict"})}, "the route 'predict' is no path"),
        ({"model": model(version_aliases=["2"])}, "bad alias '2'"),
        ({"model": model(labels={"Team": "a"})}, "bad label key 'Team'"),
        ({"model_id": "1flights"}, "bad model_id '1flights'"),
        (
            {"model": model(encryption_spec={"kms_key_name": "projects/p/locations/eu/keyRings/r/cryptoKeys/k"})},
            "the key is of another region",
        ),
    ],
)
def test_a_model_that_vertex_ai_does_not_take_is_refused(request_, message: str, cloud, there: GoogleCloud):
    with pytest.raises(exceptions.InvalidArgument, match=message):
        upload(cloud, **request_)
    assert there.vertex.serving.models == {}


def test_names_come_back_with_the_projects_number_and_pages_have_one_version(deployed, cloud, there: GoogleCloud):
    client = cloud.client(v1.ModelServiceClient)
    name = f"projects/{NUMBER}/locations/us-central1/models/flights"
    assert client.get_model(name=f"{cloud.parent}/models/flights").name == name
    assert [one.name for one in client.list_model_versions(name=name)] == [f"{name}@1", f"{name}@2"]
    assert there.vertex.count("ListModelVersions") == 2


def test_output_only_fields_are_not_the_callers(cloud, there: GoogleCloud):
    upload(cloud, model=model(version_id="7", etag="mine", name="mine"))
    (one,) = there.vertex.serving.models.values()
    assert (one.version_id, one.name) == ("1", f"{cloud.parent}/models/flights")


def test_labels_of_the_model_and_of_a_version_are_merged(deployed, cloud, there: GoogleCloud):
    client, name = cloud.client(v1.ModelServiceClient), f"{cloud.parent}/models/flights"
    mask = {"paths": ["labels"]}
    client.update_model(model=v1.Model(name=name, labels={"team": "a"}), update_mask=mask)
    client.update_model(model=v1.Model(name=f"{name}@1", labels={"state": "b"}), update_mask=mask)
    assert dict(client.get_model(name=f"{name}@1").labels) == {"team": "a", "state": "b"}
    assert dict(client.get_model(name=f"{name}@2").labels) == {"team": "a"}
    with pytest.raises(exceptions.InvalidArgument, match="only .* can be changed"):
        client.update_model(model=v1.Model(name=f"{name}@1"), update_mask={"paths": ["artifact_uri"]})


def test_aliases_are_given_to_versions_by_their_ids(deployed, cloud):
    client, name = cloud.client(v1.ModelServiceClient), f"{cloud.parent}/models/flights"
    for version, alias, message in (
        ("@default", "a", "no version id"),
        ("@1", "Live", "bad alias"),
        ("@1", "3", "bad"),
    ):
        with pytest.raises(exceptions.InvalidArgument, match=message):
            client.merge_version_aliases(name=name + version, version_aliases=[alias])
    with pytest.raises(exceptions.InvalidArgument, match="cannot be removed"):
        client.merge_version_aliases(name=f"{name}@1", version_aliases=["-default"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"endpoint_id": "Late"}, "endpoint_id 'Late'"),
        ({"endpoint_id": "late-"}, "endpoint_id 'late-'"),
        ({"endpoint_id": "0123"}, "endpoint_id '0123'"),
        ({"endpoint": v1.Endpoint(display_name="x" * 129)}, "at most 128"),
        ({"endpoint": v1.Endpoint(display_name="x", traffic_split={"1": 100})}, "that are not there"),
        (
            {
                "endpoint": v1.Endpoint(
                    display_name="x",
                    network="projects/1/global/networks/n",
                    private_service_connect_config={"enable_private_service_connect": True},
                )
            },
            "network and private_service_connect_config",
        ),
    ],
)
def test_an_endpoint_that_vertex_ai_does_not_take_is_refused(settings, message: str, cloud):
    ask = {"parent": cloud.parent, "endpoint": v1.Endpoint(display_name="late"), **settings}
    with pytest.raises(exceptions.InvalidArgument, match=message):
        cloud.client(v1.EndpointServiceClient).create_endpoint(request=v1.CreateEndpointRequest(**ask)).result()


def metrics(*names: str) -> list[v1.AutoscalingMetricSpec]:
    return [v1.AutoscalingMetricSpec(metric_name=name, target=60) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resources": {"min_replica_count": 0}}, "min_replica_count is 0, at least 1"),
        ({"resources": {"min_replica_count": 3, "max_replica_count": 2}}, "max_replica_count is 2"),
        ({"resources": {"autoscaling_metric_specs": metrics(CPU, CPU)}}, "at most one entry"),
        ({"resources": {"autoscaling_metric_specs": metrics(DUTY)}}, "autoscaling_metric_specs"),
        (
            {"resources": {"machine_spec": {"machine_type": "n2-standard-4", "accelerator_type": 9}}},
            "n2-standard-4 takes no NVIDIA_",
        ),
        ({"dedicated_resources": None, "automatic_resources": {"min_replica_count": 1}}, "got automatic_resources"),
        ({"service_account": "me"}, "service_account 'me'"),
        ({"id": "12345678901"}, "deployed_model.id"),
    ],
)
def test_a_deployment_that_vertex_ai_does_not_take_is_refused(deployed, settings, message: str, cloud):
    with pytest.raises(exceptions.InvalidArgument, match=message):
        deploy(cloud, f"{cloud.parent}/endpoints/late", **settings)


def test_a_model_with_traffic_is_undeployed_only_when_the_traffic_goes_elsewhere(deployed, cloud, there: GoogleCloud):
    client, name = cloud.client(v1.EndpointServiceClient), f"{cloud.parent}/endpoints/late"
    other = deploy(cloud, name).deployed_model.id
    with pytest.raises(exceptions.InvalidArgument, match="has traffic"):
        client.undeploy_model(endpoint=name, deployed_model_id=deployed)
    for split, message in (({other: 60}, "must sum to 100"), ({"77": 100}, "are not deployed")):
        with pytest.raises(exceptions.InvalidArgument, match=message):
            client.undeploy_model(endpoint=name, deployed_model_id=deployed, traffic_split=split)
    client.undeploy_model(endpoint=name, deployed_model_id=deployed, traffic_split={other: 100}).result()
    assert there.vertex.serving.traffic() == {"2": 100}


def test_an_endpoint_changes_only_where_a_mask_says_so_and_its_etag_is_of_now(deployed, cloud):
    client, name = cloud.client(v1.EndpointServiceClient), f"{cloud.parent}/endpoints/late"
    for paths, message in (([], "update_mask is required"), (["network"], "only .* can be changed")):
        with pytest.raises(exceptions.InvalidArgument, match=message):
            client.update_endpoint(endpoint=v1.Endpoint(name=name), update_mask={"paths": paths})
    etag = client.get_endpoint(name=name).etag
    changed = v1.Endpoint(name=name, etag=etag, labels={"a": "b"})
    client.update_endpoint(endpoint=changed, update_mask={"paths": ["labels"]})
    with pytest.raises(exceptions.Aborted, match="the etag"):
        client.update_endpoint(endpoint=changed, update_mask={"paths": ["labels"]})


@pytest.mark.slow
def test_an_operation_pends_and_what_it_makes_is_there_when_it_has_ended(cloud, there: GoogleCloud):
    there.vertex.script.operations_pend = 3
    client = cloud.client(v1.EndpointServiceClient)
    operation = client.create_endpoint(
        parent=cloud.parent, endpoint=v1.Endpoint(display_name="late"), endpoint_id="late"
    )
    with pytest.raises(exceptions.NotFound):
        client.get_endpoint(name=f"{cloud.parent}/endpoints/late")
    assert operation.result().name == f"projects/{NUMBER}/locations/us-central1/endpoints/late"


def test_version_1_of_the_api_has_no_scaling_to_zero():
    """Where this fails, docs/serving_vertex.md and the refusal of ``min_replicas=0`` are out of date."""
    assert not {"scale_to_zero_spec", "initial_replica_count"} & set(v1.DedicatedResources.meta.fields)
