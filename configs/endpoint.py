"""Endpoint of the default pipeline's model on Vertex AI; its settings: pipeline/settings/endpoint.py."""

from pipeline.config import Canary, Endpoint

ENDPOINT = Endpoint(
    name="late-flights",
    machine_type="n2-standard-4",
    processes=4,  # as many as it has cores
    min_replicas=1,
    max_replicas=4,
    canary=Canary(steps=(10, 50), minutes=10, max_error_share=0.01, max_latency_ms=200, grace_minutes=60),
)
