"""The job compiled for Vertex AI runs on gs:// as it is submitted, with TensorFlow's own client of Cloud Storage.

It needs network and mount namespaces (``unshare``); where there are none, the tests fail and say why.
"""

import re
from pathlib import Path

import pytest

from tests.e2e.run import Run
from tests.fakes.cloud_machine import isolated
from tests.vertex.rehearsal.on_cloud_storage import Rehearsal, rehearse, table

pytestmark = [pytest.mark.slow, pytest.mark.long]

ARTIFACTS = "gs://demo-bucket/flights/artifacts"


@pytest.fixture(scope="module")
def rehearsed(clone: Path, few_flights: Path, tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    out = tmp_path_factory.mktemp("on_cloud_storage")
    rehearsal, text = rehearse(clone / "configs/small.py", out, few_flights)
    assert not rehearsal.error, f"{rehearsal.error}\n{text}"
    return rehearsal


def test_every_step_runs_and_the_model_is_pushed_to_the_bucket(rehearsed: Rehearsal, first: Run):
    assert rehearsed.states == {**first.states, "Report": "ran"}
    pushed = [address for address in rehearsed.addresses if address.startswith("gs://demo-bucket/flights/serving/")]
    assert any(re.fullmatch(r"gs://demo-bucket/flights/serving/\d+/saved_model.pb", address) for address in pushed)
    assert any(
        re.fullmatch(rf"{ARTIFACTS}/0/flights-1/Report_\d+/report.html", address) for address in rehearsed.addresses
    )


def test_the_model_is_as_good_as_the_one_of_the_local_run(rehearsed: Rehearsal, first: Run):
    found = re.search(r"^blessed: auc ([\d.]+)", first.text, re.MULTILINE)
    assert found, first.text
    assert f"{rehearsed.metrics['auc']:.{len(found[1]) - 2}f}" == found[1]


def test_nothing_temporary_stays_in_the_bucket(rehearsed: Rehearsal):
    left = [
        address for address in rehearsed.addresses if re.search(r"//.*(//|/\.temp|transform_tmp|\.partial)", address)
    ]
    assert left == []


def test_transform_writes_what_passes_between_its_phases_on_its_machine(rehearsed: Rehearsal, capsys):
    with capsys.disabled():
        from rich.console import Console

        Console(width=140).print(table(rehearsed))
    # 2,057 when TensorFlow Transform wrote its temporary files to the bucket.
    assert sum(rehearsed.requests["Transform"].values()) < 120


def test_a_machine_without_namespaces_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"Operation not permitted\. It needs util-linux and user namespaces"):
        isolated("true")
