"""Send the outcome of a run to a webhook, with form and signature of Standard Webhooks (standardwebhooks.com, 1.0.0).

Delivery is tried several times, and a failed delivery never fails a run.
"""

import base64
import binascii
import hmac
import logging
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from pipeline.errors import UserError
from pipeline.quality.verdict import FAILED

URL_VARIABLE, SECRET_VARIABLE = "PIPELINE_WEBHOOK_URL", "PIPELINE_WEBHOOK_SECRET"
DETAILS_VARIABLE = "PIPELINE_WEBHOOK_DETAILS"
SECRET_PREFIX = "whsec_"
TRIES = 4
SECONDS_BETWEEN = 1.0  # doubled each time, but for the first retry
SECONDS_FOR_AN_ANSWER = 5.0
# All tries together: the exit code of the run waits for them.
SECONDS_IN_ALL = 15.0


@dataclass(frozen=True)
class Webhook:
    """Address of the receiver, and the key to sign with."""

    url: str = field(repr=False)  # https://..., or http:// on this machine
    key: bytes = field(repr=False)  # at least 16 bytes
    details: bool = False  # whether the receiver gets the texts of errors, which may quote values of rows

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        here = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and here)):
            # The path of such an address is often a secret.
            raise UserError(f"{URL_VARIABLE} must be https://..., got {parts.scheme}://{parts.hostname or ''}...")
        if len(self.key) < 16:
            raise UserError(
                f"{SECRET_VARIABLE} must have at least 16 bytes, got {len(self.key)}; make one: python -c "
                "'import base64, secrets; print(\"whsec_\" + base64.b64encode(secrets.token_bytes(24)).decode())'"
            )

    def tell(self, pipeline: str, run: str, outcome: Mapping[str, Any]) -> str | None:
        """Post {"type": "pipeline.run.ended", "timestamp": ..., "data": outcome}, the content of verdict.json.

        The id of the message consists of pipeline and run, so that a receiver recognizes one that comes twice.

        Returns:
            Why it was not delivered; None if it was. It raises nothing.
        """
        problems: list[str] = []

        def deliver() -> None:
            try:
                problems.append(self._deliver(pipeline, run, outcome))
            except Exception as error:
                problems.append(f"{type(error).__name__}: {error}")

        # Time-outs of a socket begin anew with every byte of an answer.
        thread = threading.Thread(target=deliver, daemon=True)
        thread.start()
        thread.join(SECONDS_IN_ALL)
        problem = problems[0] if problems else f"no whole answer within {SECONDS_IN_ALL:.3g} s"
        return f"{urllib.parse.urlsplit(self.url).hostname}: {problem}" if problem else None

    def _deliver(self, pipeline: str, run: str, outcome: Mapping[str, Any]) -> str:
        """Post the message, again while that may help; return the problem, "" for none."""
        import urllib3

        logger = logging.getLogger("urllib3")
        level = logger.level
        logger.setLevel(logging.ERROR)  # its records contain the path of the address
        now = int(time.time())
        data = {"pipeline": pipeline, "run": run, **outcome}
        if data.get("exit_code") == FAILED and not self.details:
            data["failed"] = [f"{data.get('failed_step') or 'the run'} failed; its log and its report say why"]
        sent = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        # Unlike json, orjson writes NaN and infinity as null.
        body = orjson.dumps({"type": "pipeline.run.ended", "timestamp": sent, "data": data})
        retries = urllib3.Retry(
            TRIES - 1,
            allowed_methods=None,
            status_forcelist=(408, 425, 429, *range(500, 600)),
            raise_on_status=False,
            respect_retry_after_header=False,
            backoff_factor=SECONDS_BETWEEN,
            backoff_jitter=SECONDS_BETWEEN / 4,
        )
        id_ = f"{pipeline}_{run}"
        signature = base64.b64encode(hmac.digest(self.key, f"{id_}.{now}.".encode() + body, "sha256")).decode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "tfx-production-pipeline",
            "webhook-id": id_,
            "webhook-timestamp": str(now),
            "webhook-signature": f"v1,{signature}",
        }
        parts = urllib.parse.urlsplit(self.url)
        proxy = urllib.request.getproxies().get(parts.scheme, "")
        proxy = proxy if not proxy or "://" in proxy else f"http://{proxy}"
        if not proxy or urllib.request.proxy_bypass(str(parts.hostname)):
            pool = urllib3.PoolManager()
        else:
            user = urllib.parse.unquote(urllib3.util.parse_url(proxy).auth or "")
            pool = urllib3.ProxyManager(proxy, proxy_headers=urllib3.make_headers(proxy_basic_auth=user))
        try:
            answer = pool.request(
                "POST",
                self.url,
                body=body,
                headers=headers,
                redirect=False,  # which would turn the POST into a GET, or send the outcome elsewhere
                preload_content=False,
                timeout=SECONDS_FOR_AN_ANSWER,
                retries=retries,
            )
        except urllib3.exceptions.HTTPError as error:  # its own message has the whole address
            return str(getattr(error, "reason", "") or type(error).__name__)
        finally:
            logger.setLevel(level)
        return "" if answer.status < 300 else f"answered {answer.status} {answer.reason}"


def read(environment: Mapping[str, str]) -> Webhook | None:
    """Return the webhook that the environment names; None if it names none."""
    url, secret = environment.get(URL_VARIABLE, ""), environment.get(SECRET_VARIABLE, "")
    if not url and not secret:
        return None
    if not url or not secret:
        given, missing = (URL_VARIABLE, SECRET_VARIABLE) if url else (SECRET_VARIABLE, URL_VARIABLE)
        raise UserError(f"{given} is set and {missing} is not; a webhook needs both")
    details = environment.get(DETAILS_VARIABLE, "")
    if details not in ("", "0", "1"):
        raise UserError(f"{DETAILS_VARIABLE} must be 0 or 1, got {details!r}")
    key = secret.encode()
    if secret.startswith(SECRET_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error as error:
            problem = f"{SECRET_VARIABLE} starts with {SECRET_PREFIX}, and the rest is not base64: {error}"
            raise UserError(problem) from error
    return Webhook(url, key, details == "1")
