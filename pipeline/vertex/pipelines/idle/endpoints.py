"""Deployed models that nobody asks: machines that are paid for without a share of the traffic, or without requests."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from pipeline.vertex.cloud import RETRY, first_line
from pipeline.vertex.endpoints.endpoint import ALL, DUE, push_of
from pipeline.vertex.endpoints.observation import requests_since
from pipeline.vertex.pipelines.idle import rates
from pipeline.vertex.pipelines.idle.finding import Idle, Scope, Unseen, last_part

# A model that is asked less often than once a day costs more than a batch job or a deployment by hand.
REQUESTS_A_DAY = 1
# What was deployed today is being tried, or waits for its traffic.
LEAST_AGE = 1.0


def look(scope: Scope) -> Iterator[Idle | Unseen]:
    """Yield the deployed models without a share of the traffic, or with hardly a request.

    Those of an endpoint that a push changes now are passed over, and so is a version in its grace period.

    Raises:
        GoogleAPICallError: the endpoints may not be listed.
    """
    client = scope.cloud.client(v1.EndpointServiceClient)
    for endpoint in client.list_endpoints(parent=scope.cloud.parent, retry=RETRY):
        push = push_of(endpoint)
        if push and push.until > scope.now.timestamp():
            continue
        models = [model for model in endpoint.deployed_models if _is_looked_at(model, endpoint, scope)]
        reasons = {model.id: _without_share(model, endpoint) for model in models if not _share(model, endpoint)}
        asked = [model for model in models if _share(model, endpoint)]
        if asked:
            try:
                requests = requests_since(scope.cloud, scope.named(endpoint.name), scope.since.timestamp())
                reasons |= {model.id: _few_requests(requests.get(model.id, 0), model, scope) for model in asked}
            except exceptions.ClientError as error:
                yield Unseen(
                    f"the requests to the endpoint {endpoint.display_name}",
                    f"{first_line(error)}; it needs roles/monitoring.viewer and the API monitoring.googleapis.com",
                )
        idle = [model for model in models if reasons.get(model.id)]
        for model, command in _commands(idle, endpoint, scope):
            machines, price = rates.of_model(model, scope)
            what = f"endpoint {endpoint.display_name}, {model.display_name or model.id}"
            yield Idle(what, f"{reasons[model.id]}, {machines}", price, command)


def _is_looked_at(model: Any, endpoint: Any, scope: Scope) -> bool:
    if not rates.replicas(model) or (model.create_time and scope.age(model.create_time) < LEAST_AGE):
        return False
    # A version without traffic in its grace period: the Pusher that waits for its end undeploys it.
    in_grace = float(endpoint.labels.get(f"{DUE}{model.id}", "0")) > scope.now.timestamp()
    if in_grace and not _share(model, endpoint):
        return False
    ours = last_part(model.model.partition("@")[0]) == scope.pipeline
    named = scope.endpoint is not None and last_part(scope.endpoint) == last_part(endpoint.name)
    return scope.whole or ours or named


def _share(model: Any, endpoint: Any) -> int:
    return int(endpoint.traffic_split.get(model.id, 0))


def _without_share(model: Any, endpoint: Any) -> str:
    over = f"{DUE}{model.id}" in endpoint.labels
    return "no share of the traffic" + (", past its grace period" if over else "")


def _few_requests(requests: int, model: Any, scope: Scope) -> str:
    """Return what shows that a model is hardly asked; "" if it is asked."""
    days = min(float(scope.days), scope.age(model.create_time)) if model.create_time else float(scope.days)
    if requests >= REQUESTS_A_DAY * days:
        return ""
    return f"{requests or 'no'} {'request' if requests == 1 else 'requests'} in {days:.0f} days"


def _commands(idle: Sequence[Any], endpoint: Any, scope: Scope) -> Iterator[tuple[Any, str]]:
    """Yield the models with the commands that undeploy them in this order, those without traffic first.

    "A DeployedModel will be successfully undeployed only if it doesn't have any traffic assigned to it when this method
    executes, or if this field unassigns any traffic to it" (UndeployModelRequest.traffic_split): a version that stays
    takes it over. The last one of an endpoint needs none.
    """
    shares: Mapping[str, int] = endpoint.traffic_split
    staying = {model.id for model in endpoint.deployed_models}
    for model in sorted(idle, key=lambda model: _share(model, endpoint)):
        staying.discard(model.id)
        words = ["ai", "endpoints", "undeploy-model", last_part(endpoint.name), f"--deployed-model-id={model.id}"]
        if _share(model, endpoint) and staying:
            heir = max(staying, key=lambda key: (shares.get(key, 0), key))
            words.append(f"--traffic-split={heir}={ALL}")
        yield model, scope.gcloud(*words)
