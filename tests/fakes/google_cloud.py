"""A Google Cloud on this machine: Vertex AI, Cloud Storage, and what preflight asks, for the real clients."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.fakes.bucket_access import GuardedStorage
from tests.fakes.certificate import write_certificate, write_service_account
from tests.fakes.internet import proxy_to
from tests.fakes.project import Project
from tests.fakes.rest import SERVICES, FakeRest
from tests.fakes.vertex import FakeVertex

PROJECT, REGION, BUCKET = "demo", "us-central1", "demo-bucket"
NUMBER = "415104041262"  # of the project
# Beside this machine, the hosts that are led here.
HOSTS = ("localhost", "gcr.io", "*.gcr.io", "*.pkg.dev", "*.googleapis.com", "*.example.com")


@dataclass(frozen=True)
class GoogleCloud:
    """Fakes of all services, of one project.

    Attributes:
        vertex: Vertex AI.
        rest: Tokens, APIs, roles, images, quota, BigQuery.
        storage: A client of Cloud Storage, with the bucket in it.
        buckets: Cloud Storage itself.
        endpoints: Addresses of the services, by their names for gcloud.
        environment: Variables with which Google's clients talk to it, as its service account.
        internet: Variables with which every other host that speaks TLS is led here, too.
    """

    vertex: FakeVertex
    rest: FakeRest
    storage: storage.Client
    buckets: GuardedStorage
    endpoints: dict[str, str]
    environment: dict[str, str]
    internet: dict[str, str]

    def create_bucket(self, name: str, location: str, data_locations: Sequence[str] = ()) -> None:
        """Makes a bucket; with ``data_locations`` it is a dual-region that was configured."""
        self.buckets.create_bucket(name, location, data_locations)

    def empty(self) -> None:
        """Everything as it was when it started."""
        self.vertex.empty()
        self.rest.project, self.rest.asked, self.rest.saw_token = Project(), [], set()
        self.buckets.empty(BUCKET)

    def files(self, prefix: str = "", bucket: str = BUCKET) -> set[str]:
        """The addresses of all objects."""
        return {f"gs://{bucket}/{blob.name}" for blob in self.storage.list_blobs(bucket, prefix=prefix)}


@contextlib.contextmanager
def google_cloud(folder: Path) -> Iterator[GoogleCloud]:
    """Starts everything, with the bucket ``BUCKET`` in ``REGION``; ``folder`` takes the keys."""
    certificate, key = write_certificate(folder, HOSTS)
    with (
        FakeVertex(certificate, key, {PROJECT: NUMBER}) as vertex,
        FakeRest(PROJECT, NUMBER, certificate, key) as rest,
        proxy_to(rest.port_of_hosts) as proxy,
    ):
        buckets = GuardedStorage(lambda: rest.project, PROJECT)
        with buckets.serve() as address:
            rest.requests = lambda endpoint: vertex.serving.observed(endpoint)
            account = write_service_account(folder, PROJECT, rest.token_uri)
            client = storage.Client(
                project=PROJECT, credentials=AnonymousCredentials(), client_options={"api_endpoint": address}
            )
            endpoints = {name: rest.endpoint(name) for name in SERVICES}
            endpoints |= {
                "aiplatform": f"https://{vertex.endpoint}/",
                "bigquery": rest.endpoint("bigquery/bigquery/v2"),
            }
            there = GoogleCloud(
                vertex,
                rest,
                client,
                buckets,
                endpoints,
                environment={
                    "GOOGLE_APPLICATION_CREDENTIALS": str(account),
                    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificate),
                    "STORAGE_EMULATOR_HOST": address,
                    "BIGQUERY_EMULATOR_HOST": rest.endpoint("bigquery").rstrip("/"),
                    **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name.upper()}": at for name, at in endpoints.items()},
                },
                internet={"HTTPS_PROXY": proxy, "NO_PROXY": "localhost", "REQUESTS_CA_BUNDLE": str(certificate)},
            )
            there.create_bucket(BUCKET, REGION)
            yield there
