"""The question that ``pipeline.runs.engine`` asks a worker; it imports little, for the worker has to as well."""

import json

from pipeline import filesystem
from pipeline.packaging.fingerprints import library_fingerprint

ASKED, ANSWERED = "asked", "answered.json"


def answer(folder: str) -> None:
    """Write which library this worker has into a folder, if it is the one in which it was asked."""
    if filesystem.exists(f"{folder}/{ASKED}"):
        filesystem.write(f"{folder}/{ANSWERED}", json.dumps({"library": library_fingerprint()}))
