"""A Google Cloud on this machine: Vertex AI, Cloud Storage, and what preflight asks, for the real clients."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import requests
from gcp_storage_emulator.server import create_server
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.fakes.certificate import write_certificate, write_service_account
from tests.fakes.rest import SERVICES, FakeRest, Project
from tests.fakes.vertex import FakeVertex

PROJECT, REGION, BUCKET = "demo", "us-central1", "demo-bucket"
NUMBER = "415104041262"  # of the project


@dataclass(frozen=True)
class GoogleCloud:
    """What is there.

    Attributes:
        vertex: Vertex AI.
        rest: Tokens, APIs, roles, images, quota, BigQuery.
        storage: A client of Cloud Storage, with the bucket in it.
        endpoints: Addresses of the services, by their names for gcloud.
        environment: Variables with which Google's clients talk to it, as its service account.
    """

    vertex: FakeVertex
    rest: FakeRest
    storage: storage.Client
    endpoints: dict[str, str]
    environment: dict[str, str]

    def create_bucket(self, name: str, location: str) -> None:
        """Makes a bucket; the emulator only heeds a location that is set afterwards."""
        if self.storage.lookup_bucket(name) is None:
            self.storage.create_bucket(name)
        address = f"{self.environment['STORAGE_EMULATOR_HOST']}/storage/v1/b/{name}"
        requests.patch(address, json={"location": location.upper()}, timeout=10).raise_for_status()

    def empty(self) -> None:
        """Everything as it was when it started."""
        self.vertex.empty()
        self.rest.project, self.rest.asked = Project(), []
        for blob in self.storage.list_blobs(BUCKET):
            blob.delete()

    def files(self, prefix: str = "", bucket: str = BUCKET) -> set[str]:
        """The addresses of all objects."""
        return {f"gs://{bucket}/{blob.name}" for blob in self.storage.list_blobs(bucket, prefix=prefix)}


@contextlib.contextmanager
def google_cloud(folder: Path) -> Iterator[GoogleCloud]:
    """Starts everything, with the bucket ``BUCKET`` in ``REGION``; ``folder`` takes the keys."""
    certificate, key = write_certificate(folder)
    storage_port = _free_port()
    emulator = f"http://localhost:{storage_port}"
    with (
        FakeVertex(certificate, key, {PROJECT: NUMBER}) as vertex,
        FakeRest(PROJECT) as rest,
        create_server("localhost", storage_port, in_memory=True),
    ):
        rest.requests = lambda: vertex.serving.observed()
        account = write_service_account(folder, PROJECT, rest.token_uri)
        client = storage.Client(
            project=PROJECT, credentials=AnonymousCredentials(), client_options={"api_endpoint": emulator}
        )
        endpoints = {name: rest.endpoint(name) for name in SERVICES}
        endpoints |= {"aiplatform": f"https://{vertex.endpoint}/", "bigquery": rest.endpoint("bigquery/bigquery/v2")}
        there = GoogleCloud(
            vertex,
            rest,
            client,
            endpoints,
            environment={
                "GOOGLE_APPLICATION_CREDENTIALS": str(account),
                "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificate),
                "STORAGE_EMULATOR_HOST": emulator,
                **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name.upper()}": at for name, at in endpoints.items()},
            },
        )
        there.create_bucket(BUCKET, REGION)
        yield there


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])
