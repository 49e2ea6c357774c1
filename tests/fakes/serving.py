"""Models, endpoints and predictions of the fake Vertex AI: what is registered and deployed, and who answers."""

import datetime
import itertools
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.cloud import aiplatform_v1 as v1
from google.longrunning import operations_pb2
from google.protobuf import json_format, struct_pb2

from tests.fakes import checks, rules
from tests.fakes.checks import require
from tests.fakes.operations import FakeOperations
from tests.fakes.resources import (
    Conflict,
    Ids,
    Methods,
    Precondition,
    check_account,
    check_new,
    renamed,
    updated,
    with_numbers,
    with_project,
)
from tests.fakes.script import Script

# "at most 128 characters, and match": MergeVersionAliasesRequest.version_aliases; that a letter is among them keeps
# aliases apart from version ids.
ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z-0-9]")
# "up to 63 characters, and valid characters are [a-z0-9_-]. The first character cannot be a number or hyphen":
# UploadModelRequest.model_id.
MODEL_ID = re.compile(r"[a-z_][a-z0-9_-]{0,62}")
# "If the first character is a letter ... up to 63 characters, [a-z0-9-]. The last character must be a letter or number.
# If the first character is a number ... up to 9 characters, [0-9] with no leading zeros": CreateEndpointRequest.
ENDPOINT_ID = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?|[1-9][0-9]{0,8}")
# "1-10 characters, and valid characters are /[0-9]/": DeployedModel.id, where the caller gives it.
DEPLOYED_ID = re.compile(r"[0-9]{1,10}")
# "Public endpoints have a maximum request size of 1.5 MB": dataflow/docs/notebooks/run_inference_vertex_ai.
MOST_BYTES = 1_500_000
AUTOSCALING = "aiplatform.googleapis.com/prediction/online/"
# What Vertex AI says of a model with a container of one's own: Model.supported_*.
INPUTS = ("jsonl", "bigquery", "csv", "tf-record", "tf-record-gzip", "file-list")


class FakeServing:
    """The state and its methods; names in it have the project's id, those in answers its number.

    Attributes:
        models: Versions by "<name>@<version>".
        entry_labels: Labels of all versions of an entry, by its name.
        evaluations: What was imported for a version, by its name.
        endpoints: By name.
        answers: What a version answers to an instance, by its id; it may raise.
        delays: Seconds that a version takes, by its id.
        of_others: Requests beside ours as (code, milliseconds), by version.
        seen: Requests as (code, milliseconds), by deployed model.
        splits: Every traffic split that was set, with version ids, in order.
        etag_code: What a write with an old etag is refused with.
        version_in_name: Whether a deployed model's ``model`` has the version behind its name.
    """

    def __init__(
        self,
        parent: Callable[[str], str],
        numbers: "itertools.count[int]",
        operations: FakeOperations,
        script: Script,
        projects: Mapping[str, str],
    ):
        self._parent = parent
        self._numbers = numbers
        self._operations = operations
        self._script = script
        self.projects = projects
        self._ids = Ids()
        self._chance = random.Random(0)
        self.models: dict[str, v1.Model] = {}
        self.entry_labels: dict[str, dict[str, str]] = {}
        self.evaluations: dict[str, list[v1.ModelEvaluation]] = {}
        self.endpoints: dict[str, v1.Endpoint] = {}
        self.answers: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self.delays: dict[str, float] = {}
        self.of_others: dict[str, list[tuple[int, float]]] = {}
        self.seen: dict[str, list[tuple[int, float]]] = {}
        self.splits: list[dict[str, int]] = []
        self.etag_code = grpc.StatusCode.ABORTED
        self.version_in_name = True

    def services(self) -> dict[str, Methods]:
        """Request type and answer, by service and method."""
        services: dict[str, Methods] = {
            "ModelService": {
                "UploadModel": (v1.UploadModelRequest, self._upload_model),
                "GetModel": (v1.GetModelRequest, self._get_model),
                "ListModelVersions": (v1.ListModelVersionsRequest, self._list_versions),
                "UpdateModel": (v1.UpdateModelRequest, self._update_model),
                "MergeVersionAliases": (v1.MergeVersionAliasesRequest, self._merge_aliases),
                "ImportModelEvaluation": (v1.ImportModelEvaluationRequest, self._import_evaluation),
            },
            "EndpointService": {
                "CreateEndpoint": (v1.CreateEndpointRequest, self._create_endpoint),
                "GetEndpoint": (v1.GetEndpointRequest, lambda ask: self.endpoints[ask.name]),
                "ListEndpoints": (v1.ListEndpointsRequest, self._list_endpoints),
                "UpdateEndpoint": (v1.UpdateEndpointRequest, self._update_endpoint),
                "DeployModel": (v1.DeployModelRequest, self._deploy_model),
                "UndeployModel": (v1.UndeployModelRequest, self._undeploy_model),
            },
            "PredictionService": {"Predict": (v1.PredictRequest, self._predict)},
        }
        return with_numbers(services, self.projects, self._operations.pass_time)

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

    def observed(self, endpoint_id: str) -> dict[str, list[tuple[int, float]]]:
        """Requests to an endpoint as (code, milliseconds), by deployed model, those of others with them."""
        found: dict[str, list[tuple[int, float]]] = {}
        for endpoint in self.endpoints.values():
            for one in endpoint.deployed_models if endpoint.name.endswith(f"/{endpoint_id}") else ():
                others = self.of_others.get(one.model_version_id, [])
                found[one.id] = [*self.seen.get(one.id, []), *others]
        return found

    # Models.

    def _versions_of(self, name: str) -> list[v1.Model]:
        return [one for key, one in self.models.items() if key.partition("@")[0] == name]

    def model(self, name: str) -> v1.Model:
        """A version by its number or alias; without one that of the alias "default" (GetModelRequest.name)."""
        entry, _, version = name.partition("@")
        wanted = version or "default"
        for one in self._versions_of(entry):
            if wanted == one.version_id or wanted in one.version_aliases:
                return one
        raise KeyError(name)

    def _shown(self, model: v1.Model, version_in_name: bool = False) -> v1.Model:
        """A version as it is returned: "the model labels and the version labels are merged" (UpdateModelRequest)."""
        shown = v1.Model(model)
        shown.labels = {**self.entry_labels.get(model.name, {}), **model.labels}
        if version_in_name:
            shown.name = f"{model.name}@{model.version_id}"
        return shown

    def _get_model(self, ask: v1.GetModelRequest) -> v1.Model:
        return self._shown(self.model(ask.name))

    def _list_versions(self, ask: v1.ListModelVersionsRequest) -> v1.ListModelVersionsResponse:
        found = self._versions_of(ask.name.partition("@")[0])
        if not found:
            raise KeyError(ask.name)
        versions, token = rules.page(found, ask, self._script.page_size)
        # "In the returned Model name field, version ID ... will be included" (ListModelVersionsResponse.models).
        shown = [self._shown(one, version_in_name=True) for one in versions]
        return v1.ListModelVersionsResponse(models=shown, next_page_token=token)

    def _upload_model(self, ask: v1.UploadModelRequest) -> operations_pb2.Operation:
        parent = self._parent(ask.parent)
        model = check_new(ask.model, parent, "model")
        require(model.artifact_uri.startswith("gs://"), "model.artifact_uri must be a gs:// address")
        container = model.container_spec
        require(checks.IMAGE.fullmatch(container.image_uri), f"model.container_spec.image_uri {container.image_uri!r}")
        for route in (container.predict_route, container.health_route):
            require(route.startswith("/") or not route, f"container_spec: the route {route!r} is no path")
        for port in container.ports:
            require(1 <= port.container_port <= 65535, f"container_spec.ports {port.container_port}")
        checks.check_labels(model.labels)
        for alias in model.version_aliases:
            require(ALIAS.fullmatch(alias), f"bad alias {alias!r}")
        # "Only specify this field when uploading a new version" (UploadModelRequest.parent_model).
        require(not (ask.parent_model and ask.model_id), "model_id and parent_model exclude each other")
        if ask.parent_model and not self._versions_of(ask.parent_model):
            raise KeyError(ask.parent_model)
        require(not ask.model_id or MODEL_ID.fullmatch(ask.model_id), f"bad model_id {ask.model_id!r}")
        model.name = ask.parent_model or f"{parent}/models/{ask.model_id or self._ids.new()}"
        if not ask.parent_model and self._versions_of(model.name):
            raise FileExistsError(model.name)

        def upload() -> Any:
            if not ask.parent_model and self._versions_of(model.name):
                raise FileExistsError(model.name)
            earlier = self._versions_of(model.name)
            # "an auto-incrementing decimal number in string representation" (Model.version_id).
            model.version_id = str(max([int(one.version_id) for one in earlier], default=0) + 1)
            if not earlier:
                model.version_aliases = [*model.version_aliases, "default"]
            model.supported_deployment_resources_types = [v1.Model.DeploymentResourcesType.DEDICATED_RESOURCES]
            model.supported_input_storage_formats = INPUTS
            model.supported_output_storage_formats = ["jsonl", "bigquery"]
            self.models[f"{model.name}@{model.version_id}"] = model
            return self._packed(v1.UploadModelResponse(model=model.name, model_version_id=model.version_id))

        return self._start("UploadModel", model.name, upload)

    def _update_model(self, ask: v1.UpdateModelRequest) -> v1.Model:
        # With "@" a version is updated, without it or with "@-" the model (UpdateModelRequest.model).
        entry, _, version = ask.model.name.partition("@")
        paths, one = set(ask.update_mask.paths), self.model(entry if version == "-" else ask.model.name)
        allowed = {"labels", "version_description"} if version not in ("", "-") else {"labels", "display_name"}
        checks.check_labels(ask.model.labels)
        if "labels" in paths and version in ("", "-"):
            self.entry_labels[entry] = dict(ask.model.labels)
            paths -= {"labels"}
        if paths:
            updated(one, ask.model, sorted(paths), allowed)
        return self._shown(one)

    def _merge_aliases(self, ask: v1.MergeVersionAliasesRequest) -> v1.Model:
        # "The name of the model version ..., with a version ID explicitly included".
        require(re.search(r"@\d+$", ask.name), f"{ask.name!r} has no version id")
        model = self.model(ask.name)
        for alias in ask.version_aliases:
            name = alias.removeprefix("-")
            require(ALIAS.fullmatch(name), f"bad alias {alias!r}")
            others = [one for one in self._versions_of(model.name) if name in one.version_aliases and one is not model]
            if alias.startswith("-"):
                # "there must be exactly one default version alias for a model" (Model.version_aliases).
                require(name != "default", "the alias default cannot be removed, only given to another version")
                model.version_aliases = [one for one in model.version_aliases if one != name]
                continue
            # Nobody says what happens to an alias that another version has; refusing it is the stricter.
            require(
                not others or name == "default", f"the alias {name} is that of version {[o.version_id for o in others]}"
            )
            for other in others:
                other.version_aliases = [one for one in other.version_aliases if one != name]
            model.version_aliases = [*dict.fromkeys([*model.version_aliases, name])]
        return self._shown(model)

    def _import_evaluation(self, ask: v1.ImportModelEvaluationRequest) -> v1.ModelEvaluation:
        model = self.model(ask.parent)
        evaluation = rules.as_new(ask.model_evaluation)
        require(evaluation.metrics_schema_uri.startswith("gs://google-cloud-aiplatform/schema/"), "metrics_schema_uri")
        self.evaluations.setdefault(f"{model.name}@{model.version_id}", []).append(evaluation)
        evaluation.name = f"{model.name}/evaluations/{self._ids.new()}"
        return evaluation

    def _start(self, method: str, resource: str, act: Callable[[], Any]) -> operations_pb2.Operation:
        return self._operations.start(method, renamed(resource, self.projects), act)

    def _packed(self, response: Any) -> Any:
        """A response as an operation holds it."""
        renamed = with_project(response, self.projects)
        return type(renamed).pb(renamed)

    # Endpoints.

    def _list_endpoints(self, ask: v1.ListEndpointsRequest) -> v1.ListEndpointsResponse:
        found, token = rules.page(list(self.endpoints.values()), ask, self._script.page_size)
        return v1.ListEndpointsResponse(endpoints=found, next_page_token=token)

    def _create_endpoint(self, ask: v1.CreateEndpointRequest) -> operations_pb2.Operation:
        parent = self._parent(ask.parent)
        endpoint = check_new(ask.endpoint, parent, "endpoint")
        require(not ask.endpoint_id or ENDPOINT_ID.fullmatch(ask.endpoint_id), f"endpoint_id {ask.endpoint_id!r}")
        checks.check_labels(endpoint.labels)
        self._check_logging(endpoint)
        # The ids in it are those of deployed models, and a new endpoint has none.
        require(not endpoint.traffic_split, "traffic_split names deployed models that are not there")
        private = endpoint.private_service_connect_config.enable_private_service_connect
        # "network and private_service_connect_config are mutually exclusive" (Endpoint.network).
        require(not (endpoint.network and private), "network and private_service_connect_config")
        endpoint.name = f"{parent}/endpoints/{ask.endpoint_id or self._ids.new()}"
        if endpoint.name in self.endpoints:
            raise FileExistsError(endpoint.name)

        def create() -> Any:
            if endpoint.name in self.endpoints:
                raise FileExistsError(endpoint.name)
            if endpoint.dedicated_endpoint_enabled:  # Endpoint.dedicated_endpoint_dns
                region = endpoint.name.split("/")[3]
                host = f"{endpoint.name.rpartition('/')[2]}.{region}-{self._ids.new()}.prediction.vertexai.goog"
                endpoint.dedicated_endpoint_dns = f"https://{host}"
            self._changed(endpoint)
            self.endpoints[endpoint.name] = endpoint
            return self._packed(endpoint)

        return self._start("CreateEndpoint", endpoint.name, create)

    def _update_endpoint(self, ask: v1.UpdateEndpointRequest) -> v1.Endpoint:
        endpoint, new, paths = self.endpoints[ask.endpoint.name], ask.endpoint, list(ask.update_mask.paths)
        # "consistent read-modify-write updates. If not set, a blind overwrite update happens" (Endpoint.etag).
        if new.etag and new.etag != endpoint.etag:
            kind = Conflict if self.etag_code == Conflict.code else Precondition
            raise kind(f"the etag {new.etag} is not {endpoint.etag}")
        checks.check_labels(new.labels)
        self._check_logging(new)
        if "traffic_split" in paths:
            self._split(endpoint, dict(new.traffic_split))
        rest = [path for path in paths if path != "traffic_split"]
        if rest or not paths:
            updated(endpoint, new, rest, {"labels", "predict_request_response_logging_config", "description"})
        self._changed(endpoint)
        return endpoint

    def _deploy_model(self, ask: v1.DeployModelRequest) -> operations_pb2.Operation:
        endpoint = self.endpoints[ask.endpoint]
        deployed = rules.as_new(ask.deployed_model)
        model = self.model(deployed.model)
        # Model.supported_deployment_resources_types of such a model has DEDICATED_RESOURCES only.
        kind = v1.DeployedModel.pb(deployed).WhichOneof("prediction_resources")
        require(kind == "dedicated_resources", f"the model supports dedicated_resources, got {kind}")
        self._check_resources(deployed.dedicated_resources)
        check_account(deployed.service_account, "deployed_model")
        rules.check_display_name(deployed.display_name, "deployed_model")
        require(not deployed.id or DEPLOYED_ID.fullmatch(deployed.id), f"deployed_model.id {deployed.id!r}")
        deployed.id = deployed.id or self._ids.new()
        deployed.display_name = deployed.display_name or model.display_name
        deployed.model = f"{model.name}@{model.version_id}" if self.version_in_name else model.name
        deployed.model_version_id = model.version_id
        deployed.create_time = datetime.datetime.now(datetime.UTC)
        # "To refer to the ID of the just being deployed Model, a "0" should be used" (traffic_split).
        traffic = {deployed.id if key == "0" else key: one for key, one in ask.traffic_split.items()}
        self._check_split(endpoint, traffic, deployed.id)

        def deploy() -> Any:
            endpoint.deployed_models.append(deployed)
            if traffic:
                self._split(endpoint, traffic)
            self._changed(endpoint)
            return self._packed(v1.DeployModelResponse(deployed_model=deployed))

        return self._start("DeployModel", endpoint.name, deploy)

    @staticmethod
    def _check_resources(resources: v1.DedicatedResources) -> None:
        """Check the comments of DedicatedResources and MachineSpec."""
        machine, least, most = resources.machine_spec, resources.min_replica_count, resources.max_replica_count
        # "optional, and the default value is n1-standard-2" (MachineSpec.machine_type of a DeployedModel).
        kind = machine.machine_type or "n1-standard-2"
        require(checks.MACHINE.fullmatch(kind), f"machine_type {machine.machine_type!r} unknown")
        checks.check_accelerator(machine, "deployed_model")
        # "greater than or equal to 1": 0 is of v1beta1 only, where "scale-to-zero" has fields of its own
        # (DedicatedResources); "If this value is not provided, will use min_replica_count".
        require(least >= 1, f"min_replica_count is {least}, at least 1")
        require(not most or most >= least, f"max_replica_count is {most} and min_replica_count {least}")
        names = [metric.metric_name for metric in resources.autoscaling_metric_specs]
        require(len(set(names)) == len(names), "autoscaling_metric_specs: at most one entry is allowed per metric")
        for metric in resources.autoscaling_metric_specs:
            name = metric.metric_name.removeprefix(AUTOSCALING)
            known = ("cpu/utilization", *(["accelerator/duty_cycle"] if machine.accelerator_count else []))
            require(name in known and 1 <= metric.target <= 100, f"autoscaling_metric_specs {metric}")

    def _undeploy_model(self, ask: v1.UndeployModelRequest) -> operations_pb2.Operation:
        endpoint, deployed = self.endpoints[ask.endpoint], ask.deployed_model_id
        ids = [one.id for one in endpoint.deployed_models]
        if deployed not in ids:
            raise KeyError(f"deployed model {deployed}")
        traffic = dict(ask.traffic_split)
        self._check_split(endpoint, traffic)

        def undeploy() -> Any:
            # "successfully undeployed only if it doesn't have any traffic assigned to it when this method executes, or
            # if this field unassigns any traffic to it. If last DeployedModel is being undeployed ..., the
            # traffic_split will always end up empty" (UndeployModelRequest.traffic_split).
            split = traffic or dict(endpoint.traffic_split)
            require(not split.get(deployed), f"{deployed} has traffic")
            if split != dict(endpoint.traffic_split):
                self._split(endpoint, split)
            endpoint.deployed_models = [one for one in endpoint.deployed_models if one.id != deployed]
            if not endpoint.deployed_models:
                endpoint.traffic_split = {}
            self._changed(endpoint)
            return self._packed(v1.UndeployModelResponse())

        require(not (traffic or dict(endpoint.traffic_split)).get(deployed), f"{deployed} has traffic")
        return self._start("UndeployModel", endpoint.name, undeploy)

    def _check_split(self, endpoint: v1.Endpoint, traffic: dict[str, int], new: str | None = None) -> None:
        # "must add up to 100, or map must be empty if the Endpoint is to not accept any traffic" (traffic_split).
        require(not traffic or sum(traffic.values()) == 100, f"traffic_split must sum to 100, got {traffic}")
        require(all(share >= 0 for share in traffic.values()), f"traffic_split {traffic}")
        ids = {one.id for one in endpoint.deployed_models} | {new}
        unknown = sorted(key for key in traffic if key not in ids)
        require(not unknown, f"traffic_split names {unknown}, which are not deployed")

    def _split(self, endpoint: v1.Endpoint, traffic: dict[str, int]) -> None:
        self._check_split(endpoint, traffic)
        endpoint.traffic_split = traffic
        self.splits.append(self.traffic(endpoint))

    def _check_logging(self, endpoint: v1.Endpoint) -> None:
        logging = endpoint.predict_request_response_logging_config
        if logging.enabled:
            # "expressed as a fraction in range(0,1]" (PredictRequestResponseLoggingConfig.sampling_rate).
            require(0 < logging.sampling_rate <= 1, "sampling_rate must be above 0 and at most 1")
            table = logging.bigquery_destination.output_uri  # "bq://projectId.bqDatasetId.bqTableId" and less
            require(re.fullmatch(r"bq://[^.\s/]+(\.[^.\s]+){0,2}", table), f"bigquery_destination {table!r}")

    def _changed(self, endpoint: v1.Endpoint) -> None:
        endpoint.etag = f"AMEw9y{next(self._numbers)}="

    # Predictions.

    def _predict(self, ask: v1.PredictRequest) -> v1.PredictResponse:
        endpoint = self.endpoints[ask.endpoint]
        size = v1.PredictRequest.pb(ask).ByteSize()
        require(size <= MOST_BYTES, f"the request has {size:,} bytes, at most {MOST_BYTES:,}")
        # "you won't be able to send request to the shared DNS" (Endpoint.dedicated_endpoint_enabled).
        require(
            not endpoint.dedicated_endpoint_enabled, f"{ask.endpoint} is asked at {endpoint.dedicated_endpoint_dns}"
        )
        if not endpoint.traffic_split:
            raise Precondition(f"Endpoint {ask.endpoint} doesn't have traffic_split.")
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
