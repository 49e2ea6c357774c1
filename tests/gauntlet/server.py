"""Ask the server for the rows of a table, and judge its answers."""

import contextlib
import datetime
import decimal
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.e2e.run import users_environment
from tests.gauntlet.outcome import Failure, Outcome

# Until the server answers, or has ended: only a server that hangs takes as long.
SECONDS = 600


@contextlib.contextmanager
def serving(copy: Path, config: str, log: Path) -> Iterator[str]:
    """Yield the address of the model behind `python -m pipeline serve`, whose output is in ``log``.

    Raises:
        Failure: it does not start, or does not end with exit code 0 on SIGTERM.
    """
    command = [sys.executable, "-m", "pipeline", "serve", "--config", config, "--port", "0"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=copy, env=users_environment(), stdout=file, stderr=file)
    try:
        yield _address(process, log)
        process.terminate()
        if process.wait(timeout=SECONDS):
            raise Failure(f"serve ended with {process.returncode}:\n{log.read_text()[-1500:]}")
    finally:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen, log: Path) -> str:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise Failure(f"serve ended with {process.returncode}:\n{log.read_text()[-1500:]}")
        if found := re.search(r"answers at (\S+):predict ", log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.2)
    raise Failure(f"serve does not answer after {SECONDS} s:\n{log.read_text()[-1500:]}")


def _post(address: str, instances: list[dict]) -> tuple[int, dict]:
    """Return the status and the answer for these rows."""
    body = json.dumps({"instances": instances}).encode()
    request = urllib.request.Request(f"{address}:predict", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            return error.code, json.loads(text)
        except ValueError:
            raise Failure(f"serve answers {error.code} without JSON: {text[:500]}") from None


def _properties(address: str) -> dict[str, dict]:
    """Return the features that the server documents, by name."""
    with urllib.request.urlopen(f"{address.partition('/v1/')[0]}/openapi.json", timeout=SECONDS) as answer:
        document = json.load(answer)
    (path,) = (path for path in document["paths"] if path.endswith(":predict"))
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return body["properties"]["instances"]["items"]["properties"]


def ask(address: str, rows: list[dict], outcome: Outcome) -> list[dict]:
    """Return the answers for rows as they stand in the file.

    When the server knows fewer columns than the file has, as it says in openapi.json, they are left out: that is noted.
    """
    described = _properties(address)
    rows = [{name: _json(value, described.get(name)) for name, value in row.items()} for row in rows]
    status, answer = _post(address, rows)
    if status == 400:
        names = {name for row in rows for name in row}
        unknown = sorted(names - set(described))
        if unknown and set(described) & names:
            outcome.notes.append(f"serve refuses the whole row: {str(answer.get('error'))[:160]}")
            rows = [{name: value for name, value in row.items() if name in described} for row in rows]
            status, answer = _post(address, rows)
    if status != 200:
        raise Failure(f"serve answers {status}: {str(answer)[:600]}")
    predictions = answer["predictions"]
    return [one if isinstance(one, dict) else {"prediction": one} for one in predictions]


def _json(value: object, described: dict | None) -> object:
    """Return a value as JSON has it: dates as the server documents them, as numbers or as ISO text."""
    integer = "integer" in json.dumps(described or {})
    if isinstance(value, decimal.Decimal | np.floating):
        return float(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(microseconds=1)
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
