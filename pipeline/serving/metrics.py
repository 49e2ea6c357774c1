"""Metrics of the server, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess


class Metrics:
    """Metrics of one server; ``shared``: it has several processes, and the text sums up all."""

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "serve_requests",
            "Requests to predict or explain, by status of HTTP or code of gRPC",
            ["status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "serve_request_seconds",
            "From the last byte of a request to its answer",
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
        )
        self.explain_seconds = Histogram(
            "serve_explain_request_seconds",
            "The same of a request to explain, which is not among the others",
            registry=registry,
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
        )
        self.rows = Counter("serve_rows", "Rows answered", registry=registry)
        self.rows_per_call = Histogram(
            "serve_rows_per_call",
            "Rows in one call of the model",
            registry=registry,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096),
        )
        self.version = Gauge(
            "serve_model_version", "The version that answers", registry=registry, multiprocess_mode="max"
        )
        self.load_failures = Counter("serve_load_failures", "Versions that did not load", registry=registry)

    def text(self) -> bytes:
        """Return the metrics in the format that Prometheus reads."""
        if not self._shared:
            return generate_latest(self.registry)
        of_all = CollectorRegistry()
        multiprocess.MultiProcessCollector(of_all)
        return generate_latest(of_all)
