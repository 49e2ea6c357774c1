"""The way to Google Cloud: credentials, clients, and one message for what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
# What goes away by itself: the network, a restart of the service.
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
# The same, and too many questions at a time.
PASSING = (*OUTAGES, exceptions.TooManyRequests)
SECONDS = 30.0  # that one question may take
# For calls that do the same however often they are made. A quota that is used up does not pass.
AGAIN = Retry(if_exception_type(*OUTAGES), initial=1.0, maximum=15.0, timeout=180.0)
# States in which a PipelineJob stays.
ENDED = frozenset(
    {
        v1.PipelineState.PIPELINE_STATE_SUCCEEDED,
        v1.PipelineState.PIPELINE_STATE_FAILED,
        v1.PipelineState.PIPELINE_STATE_CANCELLED,
    }
)


@dataclass(frozen=True)
class Cloud:
    """One project and region, asked as the person or account whose credentials this machine has.

    Attributes:
        project: Google Cloud project.
        region: Such as "europe-west4".
        credentials: Of whoever asks.
        endpoints: Address by service, in place of Google's public one.
    """

    project: str
    region: str
    credentials: google.auth.credentials.Credentials
    endpoints: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def connect(cls, project: str, region: str, endpoints: Mapping[str, str]) -> Cloud:
        """With the application default credentials.

        Raises:
            UserError: there are none, or they have expired.
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
        return cls(project, region, credentials, endpoints)

    @property
    def parent(self) -> str:
        """Project and region as the name of a resource."""
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def caller(self) -> str:
        """Whose credentials they are, where they say it."""
        return getattr(self.credentials, "service_account_email", None) or "the person logged in"

    def client(self, kind: Any) -> Any:
        """A client of Vertex AI, such as ``aiplatform_v1.PipelineServiceClient``."""
        address = self.endpoints.get("aiplatform", f"https://{self.region}-aiplatform.googleapis.com/")
        options = {"api_endpoint": address.partition("://")[2].rstrip("/") or address}
        return kind(credentials=self.credentials, client_options=options)

    def storage(self) -> Any:
        """A client of Cloud Storage."""
        from google.cloud import storage

        return storage.Client(project=self.project, credentials=self.credentials)

    def ask(self, service: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Asks a service by REST; with a body it is a POST.

        Args:
            service: As gcloud names it, such as "serviceusage".
            path: Behind the service's address.
            body: To send as JSON.

        Raises:
            GoogleAPICallError: the service refuses, or cannot be reached.
        """
        address = self.endpoints.get(service, f"https://{service}.googleapis.com/").rstrip("/")
        # gcloud has the version in the address of some services: .../bigquery/v2/.
        version = "/".join(path.split("/")[:2])
        if address.endswith(f"/{version}"):
            path = path.removeprefix(f"{version}/")
        return self.ask_url(f"{address}/{path}", body)

    def ask_url(self, url: str, body: Mapping[str, Any] | None = None, accept: str = "application/json") -> Any:
        """The same for a whole address."""
        with google.auth.transport.requests.AuthorizedSession(self.credentials) as session:
            try:
                headers = {"Accept": accept}
                answer = (
                    session.get(url, timeout=SECONDS, headers=headers)
                    if body is None
                    else session.post(url, json=body, timeout=SECONDS, headers=headers)
                )
            except (requests.RequestException, TransportError) as error:
                raise exceptions.ServiceUnavailable(str(error)) from error
        if not answer.ok:
            raise exceptions.from_http_status(answer.status_code, _message(answer))
        return answer.json()


def _message(answer: requests.Response) -> str:
    """What a refusal says, in the words of the service."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.reason or f"status {answer.status_code}"


def explained(error: Exception, doing: str) -> UserError:
    """What a call failed for, in one message with its remedy."""
    if isinstance(error, exceptions.RetryError) and isinstance(error.cause, Exception):
        error = error.cause
    text = str(getattr(error, "message", None) or error).splitlines()[0]
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
        remedy = "python vertex_runner.py --check looks at what may be wrong"
    return UserError(f"{doing} failed: {text}. What to do: {remedy}")
