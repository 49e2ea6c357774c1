"""Choice of the model that a candidate is compared with."""

import re
from pathlib import Path

import pytest
from tfx.types import standard_artifacts

from pipeline.components.earlier_model import LatestOtherBlessedModelStrategy
from pipeline.errors import UserError
from pipeline.graph import model_of_run
from tests.e2e.run import Run


def model(number: int) -> standard_artifacts.Model:
    artifact = standard_artifacts.Model()
    artifact.id = number
    return artifact


def blessing(of: int, blessed: int) -> standard_artifacts.ModelBlessing:
    artifact = standard_artifacts.ModelBlessing()
    artifact.set_int_custom_property("current_model_id", of)
    artifact.set_int_custom_property("blessed", blessed)
    return artifact


def baseline_of(candidate: int, blessings: dict[int, int]) -> list[int]:
    candidate_model = model(candidate)
    resolved = LatestOtherBlessedModelStrategy().resolve_artifacts(
        None,
        {
            "model": [model(number) for number in sorted({*blessings, candidate})],
            "model_blessing": [blessing(number, blessed) for number, blessed in blessings.items()],
            "candidate": [candidate_model],
        },
    )
    assert resolved is not None
    assert resolved["candidate"] == [candidate_model]
    return [artifact.id for artifact in resolved["model"]]


def test_a_first_model_has_no_baseline_and_still_none_when_it_is_blessed():
    assert baseline_of(1, {}) == []
    assert baseline_of(1, {1: 1}) == []


def test_the_baseline_is_the_latest_blessed_model_other_than_the_candidate():
    assert baseline_of(4, {1: 1, 2: 1, 3: 0}) == [2]
    assert baseline_of(4, {1: 1, 2: 1, 3: 0, 4: 1}) == [2]
    # Back to the code of an earlier model: it has to beat the one that came after it.
    assert baseline_of(1, {1: 1, 2: 1}) == [2]


@pytest.fixture(scope="module")
def named(clone: Path, first: Run) -> tuple[str, str]:
    """The first run in the clone: its name and its metadata."""
    found = re.search(r"^flights, run (\S+)$", first.text, re.MULTILINE)
    assert found, first.text
    return found[1], str(clone / "output/flights/metadata.sqlite")


@pytest.mark.slow
def test_a_named_run_stands_for_the_model_it_trained(named):
    run, store = named
    assert (Path(model_of_run(store, run)) / "Format-Serving/saved_model.pb").is_file()
    assert model_of_run(store, "gs://bucket/Trainer/model/1") == "gs://bucket/Trainer/model/1"
    with pytest.raises(UserError, match=rf"no run 'yesterday' with a model; the last runs with one: .*{run}"):
        model_of_run(store, "yesterday")


def test_without_any_run_none_can_be_named(tmp_path):
    with pytest.raises(UserError, match="the last runs with one: none"):
        model_of_run(str(tmp_path / "metadata.sqlite"), "yesterday")
