"""docs/notebook.ipynb as it is, cell by cell, in a kernel of this environment."""

import re
import shutil
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.e2e.run import ROOT, copy_repository

pytestmark = [pytest.mark.slow, pytest.mark.long]
SECONDS = 600


def text_of(cell: nbformat.NotebookNode) -> str:
    """Return the text that a cell shows."""
    shown = (output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
    return "".join(shown)


def test_it_goes_from_a_data_frame_to_a_pushed_model_and_its_answers(tmp_path, monkeypatch):
    clone = copy_repository(tmp_path / "clone")
    (clone / "docs").mkdir()
    notebook = nbformat.read(shutil.copy(ROOT / "docs/notebook.ipynb", clone / "docs"), as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "save it without outputs"
    monkeypatch.setenv("PYTHONPATH", str(clone))  # in place of what is installed, which is this repository
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(clone / "docs")}}
    ).execute()

    shown = {cell.source.splitlines()[-1]: text_of(cell) for cell in notebook.cells if cell.cell_type == "code"}
    ran = shown["!{sys.executable} local_runner.py --pipeline tumours"]
    assert "pushed to output/tumours/serving/tumours/" in ran, ran
    assert "auc" in shown['pd.Series(verdict["metrics"])']
    features = shown["!{sys.executable} -m pipeline spin Transform --pipeline tumours"]
    assert re.search(r"^diagnosis +int64 ", features, re.MULTILINE), features
    assert "INFO" not in "".join(map(text_of, (cell for cell in notebook.cells if cell.cell_type == "code")))
    counts = [line.split() for line in shown['pd.crosstab(frame["diagnosis"], answers["label"])'].splitlines()]
    right = {name: int(first) for name, first, _ in (line for line in counts if line[0] == "benign")}
    assert right["benign"] > 300, counts
    (page,) = clone.glob("output/tumours/runs/*/report.html")
    assert Path(page).is_file()
