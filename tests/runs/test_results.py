"""Message of a run whose model is no longer where it was pushed to."""

import json
from pathlib import Path

import pytest
from tfx.types import standard_artifacts

from pipeline.errors import UserError
from pipeline.model.versions import Versions
from pipeline.runs.results import read_results, refusals_of
from pipeline.runs.step import Step
from pipeline.settings.target import Target


def test_a_model_that_was_taken_back_is_not_pushed_again_unsaid(tmp_path: Path):
    versions = Versions(tmp_path / "flights")
    for number in (10, 11):
        versions.path(number).mkdir(parents=True)
        (versions.path(number) / "saved_model.pb").touch()
    verdict = standard_artifacts.String()
    verdict.uri = str(tmp_path / "verdict")
    Path(verdict.uri).write_text(json.dumps({"pushed_to": str(versions.path(11))}))
    versions.roll_back()
    with pytest.raises(UserError, match=r"was taken back by a rollback.*serve it again: .* --restore --model "):
        read_results({"Verdict": Step("Verdict", "cached", 0.0, {"verdict": [verdict]}, None)})


def test_what_has_refused_the_model_so_far_is_known_when_a_later_step_fails():
    check, blessing = standard_artifacts.InfraBlessing(), standard_artifacts.ModelBlessing()
    check.set_string_custom_property("reasons", "signature predict fails")
    blessing.set_string_custom_property("reasons", "model check: signature predict fails; auc on all rows is 0.5")
    steps = [
        Step("Evaluator", "ran", 0.0, {"blessing": [blessing]}, None),
        Step("ModelCheck", "ran", 0.0, {"blessing": [check]}, None),
        Step("Trainer", "ran", 0.0, {"model": []}, None),
    ]
    assert refusals_of(steps) == ["model check: signature predict fails; auc on all rows is 0.5"]
    assert refusals_of(steps[1:]) == ["model check: signature predict fails"]
    assert refusals_of(steps[2:]) == []
    check.set_string_custom_property("reasons", "")
    assert refusals_of(steps[1:]) == []


def test_fewer_than_two_kept_versions_leave_no_way_back(tmp_path: Path):
    with pytest.raises(UserError, match="keep_versions must be a whole number of 2 or more, .* got 1"):
        Target.local(tmp_path, "flights", keep_versions=1)
