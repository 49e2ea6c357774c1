"""Connections to Google Cloud: credentials, clients, waiting through outages, and messages for its errors."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import google.auth
import google.auth.credentials
import google.auth.transport.requests
import requests
from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError, TransportError
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
LOGIN = "run gcloud auth application-default login, or point GOOGLE_APPLICATION_CREDENTIALS at a key file"
# Transient errors: network failures, or a service that restarts.
OUTAGES = (
    exceptions.ServiceUnavailable,
    exceptions.DeadlineExceeded,
    exceptions.GatewayTimeout,
    exceptions.InternalServerError,
    exceptions.BadGateway,
    exceptions.Aborted,
    exceptions.RetryError,
    TransportError,
    requests.ConnectionError,
    requests.Timeout,
)
# Transient errors, and too many requests.
PASSING = (*OUTAGES, exceptions.TooManyRequests)
# Every error that a call can raise.
FAILURES = (exceptions.GoogleAPICallError, GoogleAuthError, *PASSING)
SECONDS = 30.0  # timeout of one request
# Google's hosts, which may receive access tokens.
GOOGLE = re.compile(r"gcr\.io|.+\.(gcr\.io|pkg\.dev|googleapis\.com)")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Retry for idempotent calls. An exhausted quota is not transient.
RETRY = Retry(if_exception_type(*OUTAGES), initial=1.0, maximum=15.0, timeout=180.0)
# Final states of a PipelineJob.
ENDED_STATES = frozenset(
    {
        v1.PipelineState.PIPELINE_STATE_SUCCEEDED,
        v1.PipelineState.PIPELINE_STATE_FAILED,
        v1.PipelineState.PIPELINE_STATE_CANCELLED,
    }
)


@dataclass(frozen=True)
class Cloud:
    """Connection to one project and region, with the credentials of this machine."""

    project: str
    region: str
    credentials: google.auth.credentials.Credentials
    endpoints: Mapping[str, str] = field(default_factory=dict)  # address by service, in place of Google's public one

    @classmethod
    def connect(cls, project: str, region: str) -> "Cloud":
        """Connect with the application default credentials.

        The environment may name other addresses of the services, for networks with Private Service Connect:
        https://cloud.google.com/sdk/gcloud/reference/topic/configurations, api_endpoint_overrides.
        """
        try:
            credentials, _ = google.auth.default(scopes=SCOPES)
            credentials.refresh(google.auth.transport.requests.Request())
        except DefaultCredentialsError as error:
            raise UserError(f"no credentials for Google Cloud: {LOGIN}") from error
        except RefreshError as error:
            raise UserError(f"the credentials for Google Cloud are expired or revoked: {LOGIN}") from error
        except TransportError as error:
            raise UserError(
                f"cannot reach Google Cloud to check the credentials: {error}; is there a network?"
            ) from error
        prefix = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
        overrides = {name: value for name, value in os.environ.items() if name.startswith(prefix)}
        open_ones = [
            f"{name} is {value}" for name, value in overrides.items() if "://" in value and not is_private(value)
        ]
        if open_ones:
            raise UserError(
                f"{', '.join(open_ones)}; expected an address that starts with https://, because every request carries "
                "an access token"
            )
        endpoints = {name.removeprefix(prefix).lower(): value for name, value in overrides.items()}
        return cls(project, region, credentials, endpoints)

    @classmethod
    def connect_to(cls, name: str) -> "Cloud":
        """Connect to the project and region of a resource, "projects/P/locations/R" and what follows."""
        _, project, _, region, *_ = name.split("/")
        return cls.connect(project, region)

    @property
    def parent(self) -> str:
        """Return project and region as the name of a resource."""
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def caller(self) -> str:
        """Return the account of the credentials, where they name it."""
        return getattr(self.credentials, "service_account_email", None) or "the person logged in"

    def client(self, kind: Any) -> Any:
        """Return a client of Vertex AI, such as ``aiplatform_v1.PipelineServiceClient``."""
        address = self.endpoints.get("aiplatform", f"https://{self.region}-aiplatform.googleapis.com/")
        options = {"api_endpoint": address.partition("://")[2].rstrip("/") or address}
        return kind(credentials=self.credentials, client_options=options)

    def storage(self) -> Any:
        """Return a client of Cloud Storage."""
        from google.cloud import storage

        return storage.Client(project=self.project, credentials=self.credentials)

    def request(self, service: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a REST request and return the response; with a body it is a POST.

        ``service`` is its name for gcloud, such as "serviceusage"; ``path`` follows the service's address.
        """
        address = self.endpoints.get(service, f"https://{service}.googleapis.com/").rstrip("/")
        # gcloud has the version in the address of some services: .../bigquery/v2/.
        version = "/".join(path.split("/")[:2])
        if address.endswith(f"/{version}"):
            path = path.removeprefix(f"{version}/")
        return self.request_url(f"{address}/{path}", body)

    def pages(self, service: str, path: str) -> Iterator[Any]:
        """Yield the responses of a method that lists, page by page; see ``request``."""
        token = ""
        while True:
            response = self.request(service, f"{path}{'&' if '?' in path else '?'}pageToken={token}" if token else path)
            yield response
            token = quote(response.get("nextPageToken", ""), safe="")
            if not token:
                return

    def request_url(self, url: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request with an access token to a whole address of Google or of the settings; see ``request``."""
        if not is_private(url):
            raise UserError(f"no access token is sent to {url}: expected an address that starts with https://")
        with google.auth.transport.requests.AuthorizedSession(self.credentials) as session:
            try:
                method = "GET" if body is None else "POST"
                response = session.request(method, url, json=body, timeout=SECONDS)
            except (requests.RequestException, TransportError) as error:
                raise exceptions.ServiceUnavailable(str(error)) from error
        return checked(response).json()


def is_private(url: str) -> bool:
    """Return whether requests are private: sent over TLS, or to this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)


def is_googles(url: str) -> bool:
    """Return whether an address is one of Google's, over TLS."""
    parts = urlsplit(url)
    return parts.scheme == "https" and bool(GOOGLE.fullmatch(parts.hostname or ""))


def checked(response: requests.Response) -> requests.Response:
    """Return a response; raise GoogleAPICallError if its status is an error."""
    if not response.ok:
        raise exceptions.from_http_status(response.status_code, _message(response))
    return response


class LostContact(UserError):
    """Vertex AI did not answer for too long; the job may well go on."""


_Resource = TypeVar("_Resource")


def poll(
    read: Callable[[], _Resource], seconds: float, patience: float, note: Callable[[str], None]
) -> Iterator[_Resource]:
    """Yield the state of a job again and again; wait through outages of the network or the service.

    ``note`` receives a line when Vertex AI stops answering, and when it answers again. After ``patience`` seconds
    without an answer LostContact is raised; the job itself goes on.
    """
    answered, is_out = time.monotonic(), False
    while True:
        try:
            resource = read()
        except PASSING as error:
            silent = time.monotonic() - answered
            if silent > patience:
                raise LostContact(
                    f"no answer from Vertex AI for {silent:,.0f} s ({first_line(error)}). The job goes on"
                ) from error
            if not is_out:
                note(f"no answer from Vertex AI ({first_line(error)}); the job goes on, trying again")
            is_out = True
            # No slower than requested, and frequent enough for a short patience.
            time.sleep(min(seconds, max(0.05, patience / 10)))
            continue
        if is_out:
            note("Vertex AI answers again")
        answered, is_out = time.monotonic(), False
        yield resource
        time.sleep(seconds)


def _message(response: requests.Response) -> str:
    """Return the service's own message of a refusal; registries of images have a list of errors."""
    try:
        content = response.json()
        return str((content.get("error") or content["errors"][0])["message"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return response.reason or f"status {response.status_code}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    text = str(getattr(error, "message", None) or error)
    return (text.splitlines() or [type(error).__name__])[0][:300]


@contextlib.contextmanager
def explaining(action: str) -> Iterator[None]:
    """Turn an error of a Google Cloud call into a UserError, as ``explained``."""
    try:
        yield
    except FAILURES as error:
        raise explained(error, action) from error


def explained(error: Exception, action: str) -> UserError:
    """Return the message of an error of ``action``, such as "submitting the job", with its remedy."""
    if isinstance(error, exceptions.RetryError) and isinstance(error.cause, Exception):
        error = error.cause
    remedy = "try again"
    if isinstance(error, (exceptions.Unauthenticated, GoogleAuthError)):
        remedy = LOGIN
    elif isinstance(error, exceptions.Forbidden):
        remedy = "ask for the roles Vertex AI User, Storage Object Admin and Service Account User in the project"
    elif isinstance(error, exceptions.NotFound):
        remedy = "correct the name, or make what is missing"
    elif isinstance(error, exceptions.ResourceExhausted):
        remedy = "wait, ask for more quota at https://console.cloud.google.com/iam-admin/quotas, or take another region"
    elif isinstance(error, exceptions.ClientError):
        remedy = "python vertex_runner.py check looks at what may be wrong"
    return UserError(f"{action} failed: {first_line(error)}. What to do: {remedy}")


SECONDS_BETWEEN_TRIES = 0.01


@contextlib.contextmanager
def raised_on_sigterm(error: Exception) -> Iterator[None]:
    """Raise ``error`` in the main thread when this process gets SIGTERM, so that what it holds can be given back.

    Not within a call of gRPC, but when it, or one after it, has ended: gRPC runs signal handlers inside its C core,
    where an exception aborts the process.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if _in_grpc(frame):
            signal.setitimer(signal.ITIMER_REAL, SECONDS_BETWEEN_TRIES)
            return
        raise error

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_grpc(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").split(".")[0] == "grpc":
            return True
        frame = frame.f_back
    return False
