"""What lies beside the model in a version, damaged or forged: read, or refused in a sentence, and never signed."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.model.export_format import CLASSES, INPUTS
from pipeline.model.outside_operations import outside_operations
from pipeline.model.signatures import load
from pipeline.model.versions import MANIFEST, MANIFEST_KEY, Versions, changed_since_push, not_signed
from tests.bounds import bounded
from tests.hostile.mutations import CASES, attempt, mutated
from tests.serving.conftest import push

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    found = Versions(tmp_path_factory.mktemp("serving") / "flights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MANIFEST_KEY, "0123456789abcdef")
        push(found, 7, 0)
    return found


def test_no_manifest_but_the_one_that_was_signed_is_taken(versions: Versions, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(MANIFEST_KEY, "0123456789abcdef")
    version = versions.path(7)
    file = version / MANIFEST
    good = file.read_bytes()
    assert not_signed(version) == ""

    @CASES
    @given(mutated([good], [b'"signature": null', b'"files": {}', b"[" * 2_000, b'{"a":' * 2_000, b"9" * 5_000]))
    def holds(content: bytes) -> None:
        file.write_bytes(content)
        with bounded(seconds=5, megabytes=200):
            found = [not_signed(version), changed_since_push(version)]
            manifest, refusal = attempt(lambda: versions.manifest(7), UserError)
            found.append(refusal)
        # The same facts written in other letters are the same.
        assert bool(found[0]) != (manifest == json.loads(good))
        assert all(len(problem) < 1_000 and "\n" not in problem for problem in found)

    try:
        holds()
    finally:
        file.write_bytes(good)


@pytest.mark.parametrize("name", [INPUTS, CLASSES])
def test_a_model_with_a_damaged_description_answers_or_is_refused(versions: Versions, tmp_path: Path, name: str):
    file = versions.path(7) / name
    before = file.read_bytes() if file.exists() else None
    (versions.path(7) / MANIFEST).rename(tmp_path / MANIFEST)  # which would refuse them all
    seeds = [(versions.path(7) / INPUTS).read_bytes(), b'["on time", "late"]', b'{"carrier": {"type": []}}', b"[[]]"]

    @CASES
    @given(
        mutated(seeds, [b'"type"', b'"required": 7', b'"name": "x"', b"[" * 2_000, b"9" * 5_000]) | st.just(seeds[0])
    )
    def holds(content: bytes) -> None:
        file.write_bytes(content)
        with bounded(seconds=20, megabytes=500):
            model, refusal = attempt(lambda: load(str(versions.path(7))), UserError)
            if model:
                model.warm_up()
        assert len(refusal) < 1_000
        assert "\n" not in refusal

    try:
        holds()
    finally:
        (tmp_path / MANIFEST).rename(versions.path(7) / MANIFEST)
        file.write_bytes(before) if before is not None else file.unlink()


def test_a_damaged_graph_is_looked_at_without_an_error(versions: Versions, tmp_path: Path):
    good = (versions.path(7) / "saved_model.pb").read_bytes()

    @CASES
    @given(mutated([good], [b"ReadFile", b"StatefulPartitionedCall"]))
    def holds(content: bytes) -> None:
        (tmp_path / "saved_model.pb").write_bytes(content)
        with bounded(seconds=5, megabytes=300):
            problems, notes = outside_operations(str(tmp_path))
        assert all(isinstance(sentence, str) for sentence in (*problems, *notes))

    holds()
