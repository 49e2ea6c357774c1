"""Which model a candidate is compared with."""

from __future__ import annotations

from tfx.types import standard_artifacts

from pipeline.components.baseline import LatestOtherBlessedModelStrategy


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
