"""A blessed model becomes a version in the registry and takes over an endpoint, by the real client."""

from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.settings.endpoint import Endpoint
from pipeline.vertex import REHEARSAL_VARIABLE
from tests.fakes.google_cloud import BUCKET, GoogleCloud
from tests.fakes.script import Fault
from tests.vertex.serving import ENDPOINT, QUICK, Pushes

pytestmark = pytest.mark.slow
PARENT = "projects/demo/locations/us-central1"


def test_the_first_push_makes_the_endpoint_and_the_entry_and_gets_all_the_traffic(pushes: Pushes, there: GoogleCloud):
    pushed = pushes.push(1)
    serving = there.vertex.serving
    assert list(serving.endpoints) == [f"{PARENT}/endpoints/late-flights"]
    assert list(serving.models) == [f"{PARENT}/models/flights@1"]
    assert serving.traffic() == {"1": 100}
    assert serving.aliases() == {"1": {"default", "live"}}
    assert pushed.get_int_custom_property("pushed") == 1
    assert pushed.get_string_custom_property("endpoint") == f"{PARENT}/endpoints/late-flights"
    assert pushed.get_string_custom_property("model_version") == f"{PARENT}/models/flights@1"


def test_the_second_push_is_a_version_that_takes_over_and_the_one_before_is_undeployed(pushes, there: GoogleCloud):
    pushes.push(1)
    pushes.push(2)
    serving = there.vertex.serving
    assert list(serving.models) == [f"{PARENT}/models/flights@{number}" for number in (1, 2)]
    assert serving.splits[1:] == [{"1": 90, "2": 10}, {"1": 50, "2": 50}, {"2": 100}]
    assert serving.deployed() == ["2"]
    assert serving.aliases() == {"1": {"previous"}, "2": {"default", "live"}}
    (endpoint,) = serving.endpoints.values()
    assert dict(endpoint.labels) == {}


def test_a_version_says_what_it_is(pushes: Pushes, there: GoogleCloud, vertex):
    pushes.vertex = replace(vertex, labels={"team": "flights"})
    pushes.push(1)
    (model,) = there.vertex.serving.models.values()
    assert model.labels["team"] == "flights"
    assert model.labels["run"] == "run-1"
    assert model.labels["state"] == "promoted"
    assert (model.labels["span"], model.labels["schema"]) == ("7", "abababababababab")
    assert model.version_description == "auc 0.7100, auc_precision_recall 0.5000 on the test split; run run-1"
    assert model.artifact_uri.startswith("gs://demo-bucket/flights/serving/")
    assert (pushes.buckets / model.artifact_uri.removeprefix("gs://") / "saved_model.pb").read_text() == "model 1"
    assert model.container_spec.image_uri == vertex.image
    assert list(model.container_spec.command) == ["python", "-m", "pipeline", "serve"]
    assert list(model.container_spec.args) == ["--processes=1"]
    ((evaluation,),) = there.vertex.serving.evaluations.values()
    assert dict(evaluation.metrics) == pytest.approx({"auRoc": 0.71, "auPrc": 0.5})


def test_every_setting_reaches_the_endpoint_and_the_deployed_version(pushes: Pushes, there: GoogleCloud, vertex):
    key = "projects/demo/locations/us-central1/keyRings/r/cryptoKeys/k"
    pushes.vertex = replace(vertex, encryption_key=key)
    settings = Endpoint(
        "late-flights",
        machine_type="g2-standard-8",
        accelerator="NVIDIA_L4",
        accelerators=1,
        min_replicas=2,
        max_replicas=5,
        cpu_target=70,
        accelerator_target=80,
        service_account="server@demo.iam.gserviceaccount.com",
        log_to="bq://demo.logs.requests",
        log_share=0.5,
        canary=QUICK,
    )
    pushes.push(1, settings)
    (endpoint,) = there.vertex.serving.endpoints.values()
    logging = endpoint.predict_request_response_logging_config
    assert (logging.enabled, logging.sampling_rate) == (True, 0.5)
    assert logging.bigquery_destination.output_uri == "bq://demo.logs.requests"
    assert endpoint.encryption_spec.kms_key_name == key
    (deployed,) = endpoint.deployed_models
    assert deployed.service_account == "server@demo.iam.gserviceaccount.com"
    resources = deployed.dedicated_resources
    assert (resources.min_replica_count, resources.max_replica_count) == (2, 5)
    assert resources.machine_spec.accelerator_type == v1.AcceleratorType.NVIDIA_L4
    assert [(one.metric_name.split("online/")[1], one.target) for one in resources.autoscaling_metric_specs] == [
        ("cpu/utilization", 70),
        ("accelerator/duty_cycle", 80),
    ]


def test_a_replica_of_several_cores_answers_with_as_many_processes(pushes: Pushes, there: GoogleCloud):
    pushes.push(1, replace(ENDPOINT, machine_type="n2-standard-4", processes=4))
    (model,) = there.vertex.serving.models.values()
    assert list(model.container_spec.args) == ["--processes=4"]


def test_logging_that_is_asked_for_later_is_set_on_the_endpoint_that_is_there(pushes: Pushes, there: GoogleCloud):
    pushes.push(1)
    pushes.push(2, replace(ENDPOINT, log_to="bq://demo.logs.requests"))
    (endpoint,) = there.vertex.serving.endpoints.values()
    assert endpoint.predict_request_response_logging_config.enabled


def test_a_model_that_is_not_blessed_changes_nothing(pushes: Pushes, there: GoogleCloud):
    pushed = pushes.push(1, blessed=False)
    assert pushed.get_int_custom_property("pushed") == 0
    assert there.vertex.serving.models == {}
    assert there.vertex.serving.endpoints == {}


def test_a_copy_that_is_not_what_was_checked_leaves_the_bucket_and_nothing_is_deployed(pushes, there):
    with pytest.raises(UserError, match="saved_model.pb, variables/variables.index of the copy to push is not what"):
        pushes.push(2, checked=1)
    assert there.vertex.serving.models == {}
    assert list((pushes.buckets / BUCKET / "flights/serving").rglob("saved_model.pb")) == []


def test_a_rehearsal_pushes_to_its_folder_and_deploys_nothing(pushes, there: GoogleCloud, monkeypatch, tmp_path):
    monkeypatch.setenv(REHEARSAL_VARIABLE, str(tmp_path))
    pushed = pushes.push(1, to=str(tmp_path / "serving"))
    version = Path(pushed.get_string_custom_property("pushed_destination"))
    assert version.parent == tmp_path / "serving"
    assert (version / "saved_model.pb").read_text() == "model 1"
    assert there.vertex.calls == []


def test_a_task_that_is_started_again_makes_no_second_version(pushes: Pushes, there: GoogleCloud):
    pushes.push(1)
    there.vertex.script.faults.append(Fault("DeployModel", grpc.StatusCode.INTERNAL, "no machines"))
    with pytest.raises(UserError, match="version 2 does not take over: no machines. The traffic is as it was before"):
        pushes.push(2)
    pushes.push(2)
    assert there.vertex.serving.traffic() == {"2": 100}
    assert list(there.vertex.serving.aliases()) == ["1", "2"]


def test_pushing_the_same_model_again_leaves_the_traffic_alone(pushes: Pushes, there: GoogleCloud):
    pushes.push(1)
    splits = list(there.vertex.serving.splits)
    pushes.push(1, run="run-2")
    assert there.vertex.serving.splits == splits


def test_an_endpoint_of_ours_that_was_deleted_by_hand_is_made_anew(pushes: Pushes, there: GoogleCloud):
    pushes.push(1)
    there.vertex.serving.endpoints.clear()
    pushes.push(2)
    assert there.vertex.serving.traffic() == {"2": 100}


def test_a_named_endpoint_that_was_deleted_by_hand_is_one_message_and_registers_nothing(pushes, there: GoogleCloud):
    gone = replace(ENDPOINT, name=f"{PARENT}/endpoints/1234")
    with pytest.raises(
        UserError, match=r"there is no endpoint .*/endpoints/1234: it was deleted, .* What to do: correct"
    ):
        pushes.push(1, gone)
    assert there.vertex.serving.models == {}
    assert there.vertex.serving.endpoints == {}


def test_an_answer_that_is_lost_while_the_endpoint_is_made_does_not_make_a_second_one(pushes, there: GoogleCloud):
    lost = Fault("CreateEndpoint", grpc.StatusCode.UNAVAILABLE, "connection reset", once_done=True)
    there.vertex.script.faults.append(lost)
    with pytest.raises(UserError, match="deploying to .* failed: connection reset. What to do: try again"):
        pushes.push(1)
    pushes.push(1)
    assert len(there.vertex.serving.endpoints) == 1
    assert there.vertex.serving.traffic() == {"1": 100}


def test_operations_that_fail_after_they_were_accepted_are_one_message_with_vertex_ais_reason(pushes, there):
    failing = there.vertex.script.failing_operations
    failing["UploadModel"] = "the image cannot be pulled"
    with pytest.raises(UserError, match="deploying to .* failed: .*the image cannot be pulled. What to do: python"):
        pushes.push(1)
    assert there.vertex.serving.models == {}
    del failing["UploadModel"]
    failing["DeployModel"] = "Model server exited unexpectedly"
    with pytest.raises(UserError, match="version 1 does not take over: .*exited unexpectedly. The traffic"):
        pushes.push(1)
    assert there.vertex.serving.deployed() == []
    del failing["DeployModel"]
    pushes.push(1)
    assert there.vertex.serving.traffic() == {"1": 100}


def test_metrics_that_cannot_be_shown_do_not_keep_a_model_back(pushes: Pushes, there: GoogleCloud):
    there.vertex.script.faults.append(Fault("ImportModelEvaluation", grpc.StatusCode.PERMISSION_DENIED, "no", times=9))
    pushes.push(1)
    assert there.vertex.serving.traffic() == {"1": 100}
