"""Ask the server for the rows of a table, and judge its answers."""

import datetime
import decimal
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

from tests.e2e.gauntlet_outcome import Failure, Outcome

# Until the server answers, or has ended: only a server that hangs takes as long.
SECONDS = 600


class Server:
    """`python -m pipeline serve` on a free port, as a context."""

    def __init__(self, copy: Path, name: str, config: str, logs: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/v1/models/{name}"
        self.name, self.copy, self.config, self.log = name, copy, config, logs / "serve.log"

    def __enter__(self) -> "Server":
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [sys.executable, "-m", "pipeline", "serve", "--config", self.config, "--port", str(self.port)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=self.copy, env=environment, stdout=log, stderr=log)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Failure(f"serve ended with {self.process.returncode}:\n{self.log.read_text()[-1500:]}")
            try:
                with urllib.request.urlopen(self.address, timeout=5) as answer:
                    if answer.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        self.__exit__()
        raise Failure(f"serve does not answer after {SECONDS} s:\n{self.log.read_text()[-1500:]}")

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = -9
        self.code = code

    def post(self, instances: list[dict]) -> tuple[int, dict]:
        """Return the status and the answer for these rows."""
        body = json.dumps({"instances": instances}).encode()
        request = urllib.request.Request(f"{self.address}:predict", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                return error.code, json.loads(text)
            except ValueError:
                raise Failure(f"serve answers {error.code} without JSON: {text[:500]}") from None

    def properties(self) -> dict[str, dict]:
        """Return the features that the server documents, by name."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/openapi.json", timeout=SECONDS) as answer:
            document = json.load(answer)
        (path,) = (path for path in document["paths"] if path.endswith(":predict"))
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return body["properties"]["instances"]["items"]["properties"]

    def logs(self) -> list[str]:
        """Return what it printed."""
        return [self.log.read_text(encoding="utf-8", errors="replace")]


def ask(server: Server, rows: list[dict], outcome: Outcome) -> list[dict]:
    """Return the answers for rows as they stand in the file.

    When the server knows fewer columns than the file has, as it says in openapi.json, they are left out: that is noted.
    """
    described = server.properties()
    rows = [{name: _json(value, described.get(name)) for name, value in row.items()} for row in rows]
    status, answer = server.post(rows)
    if status == 400:
        names = {name for row in rows for name in row}
        unknown = sorted(names - set(described))
        if unknown and set(described) & names:
            outcome.notes.append(f"serve refuses the whole row: {str(answer.get('error'))[:160]}")
            rows = [{name: value for name, value in row.items() if name in described} for row in rows]
            status, answer = server.post(rows)
    if status != 200:
        raise Failure(f"serve answers {status}: {str(answer)[:600]}")
    predictions = answer["predictions"]
    return [one if isinstance(one, dict) else {"prediction": one} for one in predictions]


def _json(value: object, described: dict | None) -> object:
    """Return a value as JSON has it: dates as the server documents them, as numbers or as ISO text."""
    integer = "integer" in json.dumps(described or {})
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return round(moment.timestamp()) * 1_000_000 + value.microsecond if integer else value.isoformat()
    if isinstance(value, datetime.date):
        return (value - datetime.date(1970, 1, 1)).days if integer else value.isoformat()
    if isinstance(value, datetime.time):
        seconds = value.hour * 3600 + value.minute * 60 + value.second
        return seconds * 1_000_000 + value.microsecond if integer else value.isoformat()
    return value


def judge_served(served: list[dict], predicted: list[dict]) -> None:
    """Compare the server's answers with predict's for the same rows.

    Raises:
        Failure: they differ.
    """
    if len(served) != len(predicted):
        raise Failure(f"serve answers {len(served)} of {len(predicted)} rows")
    for place, (one, other) in enumerate(zip(served, predicted, strict=True)):
        if set(one) != set(other):
            raise Failure(f"serve answers {sorted(one)}, predict {sorted(other)}")
        for key, value in one.items():
            wanted = other[key]
            if key == "label":
                same = str(value) == str(wanted)
            else:
                same = np.allclose(value, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
            if not same:
                differ = sum(str(a.get(key)) != str(b.get(key)) for a, b in zip(served, predicted, strict=True))
                raise Failure(
                    f"row {place} asked: serve answers {key} {value}, predict {wanted} ({differ} rows differ)"
                )
