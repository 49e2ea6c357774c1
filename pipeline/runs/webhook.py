"""Send the outcome of a run to a webhook: signed, tried again, and never the reason that a run fails.

Form and signature are those of Standard Webhooks (standardwebhooks.com, version 1.0.0), for which receivers have
libraries: the header ``webhook-signature`` is "v1," and the base64 of HMAC-SHA256 over "id.timestamp.body".
"""

import base64
import binascii
import hashlib
import hmac
import http.client
import random
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from pipeline.errors import UserError
from pipeline.evaluation.verdict import FAILED

URL_VARIABLE, SECRET_VARIABLE = "PIPELINE_WEBHOOK_URL", "PIPELINE_WEBHOOK_SECRET"
DETAILS_VARIABLE = "PIPELINE_WEBHOOK_DETAILS"
SECRET_PREFIX = "whsec_"
TRIES = 4
SECONDS_BETWEEN = 1.0  # doubled each time
SECONDS_FOR_AN_ANSWER = 5.0
# All tries together: the run is over by then, and whoever waits for the exit code waits this long at most.
SECONDS_IN_ALL = 15.0


@dataclass(frozen=True)
class Webhook:
    """Address of the receiver, and the key to sign with.

    Attributes:
        url: https://..., or http:// on this machine.
        key: Shared with the receiver, at least 16 bytes.
        details: Whether the receiver gets the texts of errors, which may quote values of rows. Those of gates do not.
    """

    url: str = field(repr=False)
    key: bytes = field(repr=False)
    details: bool = False

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        here = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and here)):
            # The path of such an address is often all that a stranger lacks.
            raise UserError(f"{URL_VARIABLE} must be https://..., got {parts.scheme}://{parts.hostname or ''}...")
        if len(self.key) < 16:
            raise UserError(
                f"{SECRET_VARIABLE} must have at least 16 bytes, got {len(self.key)}; make one: python -c "
                "'import base64, secrets; print(\"whsec_\" + base64.b64encode(secrets.token_bytes(24)).decode())'"
            )

    def tell(self, pipeline: str, run: str, outcome: Mapping[str, Any]) -> str | None:
        """Post {"type": "pipeline.run.ended", "timestamp": ..., "data": outcome}; try again while that may help.

        Args:
            pipeline: Its name.
            run: Its run; the id of the message is made of both, so that a receiver knows one that comes twice.
            outcome: The content of verdict.json.

        Returns:
            Why it was not delivered; None when it was. It raises nothing.
        """
        try:
            return self._tell(pipeline, run, outcome)
        except Exception as error:  # a run that has ended well has ended well
            return f"{type(error).__name__}: {error}"

    def _tell(self, pipeline: str, run: str, outcome: Mapping[str, Any]) -> str | None:
        until = time.monotonic() + SECONDS_IN_ALL
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        data = {"pipeline": pipeline, "run": run, **outcome}
        if data.get("exit_code") == FAILED and not self.details:
            data["failed"] = [f"{data.get('failed_step') or 'the run'} failed; its log and its report say why"]
        # With null in place of NaN and infinity, which JSON does not have and receivers refuse.
        body = orjson.dumps({"type": "pipeline.run.ended", "timestamp": now, "data": data})
        problem = ""
        for attempt in range(TRIES):
            if attempt:
                pause = SECONDS_BETWEEN * 2 ** (attempt - 1) * random.uniform(0.75, 1.25)
                if time.monotonic() + pause >= until:
                    break
                time.sleep(pause)
            left = min(SECONDS_FOR_AN_ANSWER, max(0.1, until - time.monotonic()))
            problem, again = self._post_within(left, f"{pipeline}_{run}", body)
            if not problem or not again:
                break
        return f"{urllib.parse.urlsplit(self.url).hostname}: {problem}" if problem else None

    def _post_within(self, seconds: float, id_: str, body: bytes) -> tuple[str, bool]:
        """Try once, as ``_post``, for no longer than that: its time-out begins anew with every byte of an answer."""
        results: list[tuple[str, bool]] = []

        def attempt() -> None:
            try:
                results.append(self._post(id_, body, seconds))
            except Exception as error:
                results.append((f"{type(error).__name__}: {error}", False))

        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        thread.join(seconds)
        return results[0] if results else (_late(seconds), True)

    def _post(self, id_: str, body: bytes, seconds: float) -> tuple[str, bool]:
        """Try once; return the problem, "" for none, and whether another try may help."""
        request = urllib.request.Request(self.url, body, signed(self.key, id_, int(time.time()), body), method="POST")
        try:
            with _OPENER.open(request, timeout=seconds):
                return "", False
        except urllib.error.HTTPError as error:
            error.close()
            return f"answered {error.code} {error.reason}", error.code in (408, 425, 429) or error.code >= 500
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, TimeoutError):
                return _late(seconds), True
            return str(reason) or type(error).__name__, True


def _late(seconds: float) -> str:
    return f"no whole answer within {seconds:.3g} s"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would turn the POST into a GET, or carry the outcome elsewhere: it is an error."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def read(environment: Mapping[str, str]) -> Webhook | None:
    """Return the webhook that the environment names; None where it names none.

    Raises:
        UserError: it cannot be used.
    """
    url, secret = environment.get(URL_VARIABLE, ""), environment.get(SECRET_VARIABLE, "")
    if not url and not secret:
        return None
    if not url or not secret:
        given, missing = (URL_VARIABLE, SECRET_VARIABLE) if url else (SECRET_VARIABLE, URL_VARIABLE)
        raise UserError(f"{given} is set and {missing} is not; a webhook needs both")
    details = environment.get(DETAILS_VARIABLE, "")
    if details not in ("", "0", "1"):
        raise UserError(f"{DETAILS_VARIABLE} must be 0 or 1, got {details!r}")
    if not secret.startswith(SECRET_PREFIX):
        return Webhook(url, secret.encode(), details == "1")
    try:
        return Webhook(url, base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True), details == "1")
    except binascii.Error as error:
        raise UserError(
            f"{SECRET_VARIABLE} starts with {SECRET_PREFIX}, and the rest is not base64: {error}"
        ) from error


def signed(key: bytes, id_: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of a message."""
    digest = hmac.new(key, f"{id_}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "Content-Type": "application/json",
        "User-Agent": "tfx-production-pipeline",
        "webhook-id": id_,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
