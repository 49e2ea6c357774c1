"""Models, endpoints and predictions of the fake Vertex AI: what is registered and deployed, and who answers."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Callable
from typing import Any

from google.cloud import aiplatform_v1 as v1
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, json_format, struct_pb2

from tests.fakes import checks
from tests.fakes.checks import require

ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")
AUTOSCALING = "aiplatform.googleapis.com/prediction/online/"


class Conflict(Exception):
    """The etag is of an earlier state."""


class FakeServing:
    """The state and its methods.

    Attributes:
        models: Versions by "<name>@<version>".
        evaluations: What was imported for a version, by its name.
        endpoints: By name.
        answers: What a version answers to an instance, by its id; it may raise.
        delays: Seconds that a version takes, by its id.
        of_others: Requests beside ours as (code, milliseconds), by version.
        seen: Requests as (code, milliseconds), by deployed model.
        splits: Every traffic split that was set, with version ids, in order.
    """

    def __init__(self, parent: Callable[[str], str], numbers: itertools.count[int]):
        self._parent = parent
        self._numbers = numbers
        self._chance = random.Random(0)
        self.models: dict[str, v1.Model] = {}
        self.evaluations: dict[str, list[v1.ModelEvaluation]] = {}
        self.endpoints: dict[str, v1.Endpoint] = {}
        self.answers: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self.delays: dict[str, float] = {}
        self.of_others: dict[str, list[tuple[int, float]]] = {}
        self.seen: dict[str, list[tuple[int, float]]] = {}
        self.splits: list[dict[str, int]] = []

    def services(self) -> dict[str, dict[str, tuple[Any, Callable[[Any], Any]]]]:
        """Request type and answer, by service and method."""
        return {
            "ModelService": {
                "UploadModel": (v1.UploadModelRequest, self._upload_model),
                "GetModel": (v1.GetModelRequest, lambda ask: self.model(ask.name)),
                "ListModels": (v1.ListModelsRequest, lambda ask: v1.ListModelsResponse(models=self._newest())),
                "ListModelVersions": (v1.ListModelVersionsRequest, self._list_versions),
                "UpdateModel": (v1.UpdateModelRequest, self._update_model),
                "MergeVersionAliases": (v1.MergeVersionAliasesRequest, self._merge_aliases),
                "ImportModelEvaluation": (v1.ImportModelEvaluationRequest, self._import_evaluation),
            },
            "EndpointService": {
                "CreateEndpoint": (v1.CreateEndpointRequest, self._create_endpoint),
                "GetEndpoint": (v1.GetEndpointRequest, lambda ask: self.endpoints[ask.name]),
                "ListEndpoints": (
                    v1.ListEndpointsRequest,
                    lambda ask: v1.ListEndpointsResponse(endpoints=list(self.endpoints.values())),
                ),
                "UpdateEndpoint": (v1.UpdateEndpointRequest, self._update_endpoint),
                "DeployModel": (v1.DeployModelRequest, self._deploy_model),
                "UndeployModel": (v1.UndeployModelRequest, self._undeploy_model),
            },
            "PredictionService": {"Predict": (v1.PredictRequest, self._predict)},
        }

    # For tests.

    def traffic(self, endpoint: v1.Endpoint | None = None) -> dict[str, int]:
        """Percent by version id, of the only endpoint."""
        if endpoint is None:
            (endpoint,) = self.endpoints.values()
        versions = {one.id: one.model_version_id for one in endpoint.deployed_models}
        return {versions[key]: share for key, share in endpoint.traffic_split.items() if share}

    def deployed(self) -> list[str]:
        """Version ids that are deployed to the only endpoint."""
        (endpoint,) = self.endpoints.values()
        return sorted(one.model_version_id for one in endpoint.deployed_models)

    def aliases(self) -> dict[str, set[str]]:
        """Aliases by version id."""
        return {one.version_id: set(one.version_aliases) for one in self.models.values()}

    def observed(self) -> dict[str, list[tuple[int, float]]]:
        """Requests as (code, milliseconds), by deployed model, those of others with them."""
        found = {key: list(requests) for key, requests in self.seen.items()}
        for endpoint in self.endpoints.values():
            for one in endpoint.deployed_models:
                found.setdefault(one.id, []).extend(self.of_others.get(one.model_version_id, []))
        return found

    # Models.

    def _versions_of(self, name: str) -> list[v1.Model]:
        return [one for key, one in self.models.items() if key.partition("@")[0] == name]

    def _newest(self) -> list[v1.Model]:
        return list({key.partition("@")[0]: one for key, one in self.models.items()}.values())

    def model(self, name: str) -> v1.Model:
        """A version by its number or alias."""
        entry, _, version = name.partition("@")
        wanted = version or "default"
        for one in self._versions_of(entry):
            if wanted == one.version_id or wanted in one.version_aliases:
                return one
        raise KeyError(name)

    def _upload_model(self, ask: v1.UploadModelRequest) -> operations_pb2.Operation:
        require(ask.model.display_name, "model.display_name is required")
        require(ask.model.artifact_uri.startswith("gs://"), "model.artifact_uri must be a gs:// address")
        image = ask.model.container_spec.image_uri
        require(checks.IMAGE.fullmatch(image), f"model.container_spec.image_uri {image!r}")
        checks.check_labels(ask.model.labels)
        if ask.parent_model and not self._versions_of(ask.parent_model):
            raise KeyError(ask.parent_model)
        require(re.fullmatch(r"([a-z_][a-z0-9_-]{0,62})?", ask.model_id), f"bad model_id {ask.model_id!r}")
        new = f"{self._parent(ask.parent)}/models/{ask.model_id or next(self._numbers)}"
        if not ask.parent_model and self._versions_of(new):
            raise FileExistsError(new)
        model = v1.Model(ask.model)
        model.name = ask.parent_model or new
        earlier = self._versions_of(model.name)
        model.version_id = str(len(earlier) + 1)
        if not earlier:
            model.version_aliases = [*model.version_aliases, "default"]
        self.models[f"{model.name}@{model.version_id}"] = model
        return done(v1.UploadModelResponse(model=model.name, model_version_id=model.version_id))

    def _list_versions(self, ask: v1.ListModelVersionsRequest) -> v1.ListModelVersionsResponse:
        found = self._versions_of(ask.name.partition("@")[0])
        if not found:
            raise KeyError(ask.name)
        return v1.ListModelVersionsResponse(models=found)

    def _update_model(self, ask: v1.UpdateModelRequest) -> v1.Model:
        require(list(ask.update_mask.paths) == ["labels"], f"update_mask {list(ask.update_mask.paths)}")
        require("@" in ask.model.name, "labels of all versions are not what a push changes")
        checks.check_labels(ask.model.labels)
        model = self.model(ask.model.name)
        model.labels = dict(ask.model.labels)
        return model

    def _merge_aliases(self, ask: v1.MergeVersionAliasesRequest) -> v1.Model:
        model = self.model(ask.name)
        for alias in ask.version_aliases:
            name = alias.removeprefix("-")
            require(ALIAS.fullmatch(name), f"bad alias {alias!r}")
            others = [one for one in self._versions_of(model.name) if name in one.version_aliases and one is not model]
            if alias.startswith("-"):
                require(name != "default", "the alias default cannot be removed, only given to another version")
                model.version_aliases = [one for one in model.version_aliases if one != name]
                continue
            require(
                not others or name == "default", f"the alias {name} is that of version {[o.version_id for o in others]}"
            )
            for other in others:
                other.version_aliases = [one for one in other.version_aliases if one != name]
            model.version_aliases = [*dict.fromkeys([*model.version_aliases, name])]
        return model

    def _import_evaluation(self, ask: v1.ImportModelEvaluationRequest) -> v1.ModelEvaluation:
        model = self.model(ask.parent)
        evaluation = v1.ModelEvaluation(ask.model_evaluation)
        require(evaluation.metrics_schema_uri.startswith("gs://google-cloud-aiplatform/schema/"), "metrics_schema_uri")
        self.evaluations.setdefault(f"{model.name}@{model.version_id}", []).append(evaluation)
        evaluation.name = f"{ask.parent}/evaluations/{next(self._numbers)}"
        return evaluation

    # Endpoints.

    def _create_endpoint(self, ask: v1.CreateEndpointRequest) -> operations_pb2.Operation:
        require(ask.endpoint.display_name, "endpoint.display_name is required")
        require(
            re.fullmatch(r"([a-z]([a-z0-9-]{0,61}[a-z0-9])?)?", ask.endpoint_id), f"endpoint_id {ask.endpoint_id!r}"
        )
        checks.check_labels(ask.endpoint.labels)
        self._check_logging(ask.endpoint)
        endpoint = v1.Endpoint(ask.endpoint)
        endpoint.name = f"{self._parent(ask.parent)}/endpoints/{ask.endpoint_id or next(self._numbers)}"
        if endpoint.name in self.endpoints:
            raise FileExistsError(endpoint.name)
        self._changed(endpoint)
        self.endpoints[endpoint.name] = endpoint
        return done(endpoint)

    def _update_endpoint(self, ask: v1.UpdateEndpointRequest) -> v1.Endpoint:
        endpoint = self.endpoints[ask.endpoint.name]
        if ask.endpoint.etag and ask.endpoint.etag != endpoint.etag:
            raise Conflict(f"the etag {ask.endpoint.etag} is not {endpoint.etag}")
        paths = list(ask.update_mask.paths)
        require(
            set(paths) <= {"labels", "traffic_split", "predict_request_response_logging_config"}, f"update_mask {paths}"
        )
        if "traffic_split" in paths:
            self._split(endpoint, dict(ask.endpoint.traffic_split))
        if "labels" in paths:
            checks.check_labels(ask.endpoint.labels)
            endpoint.labels = dict(ask.endpoint.labels)
        if "predict_request_response_logging_config" in paths:
            self._check_logging(ask.endpoint)
            endpoint.predict_request_response_logging_config = ask.endpoint.predict_request_response_logging_config
        self._changed(endpoint)
        return endpoint

    def _deploy_model(self, ask: v1.DeployModelRequest) -> operations_pb2.Operation:
        endpoint = self.endpoints[ask.endpoint]
        model = self.model(ask.deployed_model.model)
        resources = ask.deployed_model.dedicated_resources
        machine = resources.machine_spec
        require(checks.MACHINE.fullmatch(machine.machine_type), f"machine_type {machine.machine_type!r} unknown")
        checks.check_accelerator(machine, "deployed_model")
        require(
            1 <= resources.min_replica_count <= resources.max_replica_count, "min_replica_count and max_replica_count"
        )
        for metric in resources.autoscaling_metric_specs:
            known = metric.metric_name.removeprefix(AUTOSCALING) in ("cpu/utilization", "accelerator/duty_cycle")
            require(known and 1 <= metric.target <= 100, f"autoscaling_metric_specs {metric}")
        deployed = v1.DeployedModel(ask.deployed_model)
        deployed.id = deployed.id or str(next(self._numbers))
        deployed.model, deployed.model_version_id = model.name, model.version_id
        traffic = {deployed.id if key == "0" else key: one for key, one in ask.traffic_split.items()}
        require(not traffic or sum(traffic.values()) == 100, f"traffic_split must sum to 100, got {traffic}")
        endpoint.deployed_models.append(deployed)
        if traffic:
            self._split(endpoint, traffic)
        self._changed(endpoint)
        return done(v1.DeployModelResponse(deployed_model=deployed))

    def _undeploy_model(self, ask: v1.UndeployModelRequest) -> operations_pb2.Operation:
        endpoint = self.endpoints[ask.endpoint]
        if ask.traffic_split:
            self._split(endpoint, dict(ask.traffic_split))
        left = [one for one in endpoint.deployed_models if one.id != ask.deployed_model_id]
        require(len(left) < len(endpoint.deployed_models), f"no deployed model {ask.deployed_model_id!r}")
        require(not endpoint.traffic_split.get(ask.deployed_model_id), f"{ask.deployed_model_id} has traffic")
        endpoint.deployed_models = left
        self._changed(endpoint)
        return done(v1.UndeployModelResponse())

    def _split(self, endpoint: v1.Endpoint, traffic: dict[str, int]) -> None:
        require(not traffic or sum(traffic.values()) == 100, f"traffic_split must sum to 100, got {traffic}")
        ids = {one.id for one in endpoint.deployed_models}
        require(set(traffic) <= ids, f"traffic_split names {sorted(set(traffic) - ids)}, which are not deployed")
        endpoint.traffic_split = traffic
        self.splits.append(self.traffic(endpoint))

    def _check_logging(self, endpoint: v1.Endpoint) -> None:
        logging = endpoint.predict_request_response_logging_config
        if logging.enabled:
            require(0 < logging.sampling_rate <= 1, "sampling_rate must be above 0 and at most 1")
            require(logging.bigquery_destination.output_uri.startswith("bq://"), "bigquery_destination must be bq://")

    def _changed(self, endpoint: v1.Endpoint) -> None:
        endpoint.etag = f"etag-{next(self._numbers)}"

    # Predictions.

    def _predict(self, ask: v1.PredictRequest) -> v1.PredictResponse:
        endpoint = self.endpoints[ask.endpoint]
        require(endpoint.traffic_split, f"{ask.endpoint} has no model with traffic")
        ids, weights = zip(*endpoint.traffic_split.items(), strict=True)
        (chosen,) = self._chance.choices(ids, weights)
        (deployed,) = (one for one in endpoint.deployed_models if one.id == chosen)
        version = deployed.model_version_id
        requests = self.seen.setdefault(chosen, [])
        time.sleep(self.delays.get(version, 0))
        milliseconds = 1000 * self.delays.get(version, 0) + 1
        predictions = []
        try:
            for instance in v1.PredictRequest.pb(ask).instances:
                answered = self.answers[version](json_format.MessageToDict(instance))
                predictions.append(json_format.ParseDict(answered, struct_pb2.Value()))
        except checks.InvalidArgument:
            requests.append((400, milliseconds))
            raise
        except ConnectionError:
            requests.append((500, milliseconds))
            raise
        requests.append((200, milliseconds))
        response = v1.PredictResponse(deployed_model_id=chosen, model=deployed.model, model_version_id=version)
        v1.PredictResponse.pb(response).predictions.extend(predictions)
        return response


def done(response: Any) -> operations_pb2.Operation:
    """An operation that has ended with an answer."""
    packed = any_pb2.Any()
    packed.Pack(type(response).pb(response) if hasattr(type(response), "pb") else response)
    return operations_pb2.Operation(name="operations/1", done=True, response=packed)
