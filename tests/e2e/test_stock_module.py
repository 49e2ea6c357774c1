"""A module file written for stock TFX, and somebody's own CSV file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
import tensorflow as tf

from tests.e2e.run import copy_repository, run

pytestmark = pytest.mark.slow


def test_a_stock_module_and_a_csv_file_run_unchanged(tmp_path: Path, few_flights: Path):
    clone = copy_repository(tmp_path / "clone")
    stock_module = clone / "models/stock.py"
    shutil.copy(Path(__file__).parent / "stock_module.py", stock_module)
    (clone / "configs/small.py").write_text(
        (clone / "configs/small.py").read_text()
        + 'CONFIG = replace(CONFIG, module="models/stock.py", schema=None, tuning=Tuning())\n'
    )
    csv = tmp_path / "flights.csv"
    pd.concat([pd.read_parquet(file) for file in sorted(few_flights.glob("*/*.parquet"))]).to_csv(csv, index=False)

    first = run(clone, "--data", csv)

    assert first.code == 0, first.text
    assert f"No Tuner: {stock_module} has no tuner_fn." in first.text
    assert "Tuner" not in first.states
    assert "ReviewedSchema" not in first.states
    model = tf.saved_model.load(str(clone / first.pushed_to))
    assert list(model.signatures) == ["serving_default"]
    splits = {path.name for path in (clone / "output/flights/artifacts/ExampleGen/examples/1").glob("Split-*")}
    assert splits == {"Split-train", "Split-eval", "Split-test"}

    # Nothing has ever been searched there, so there are no best values to reuse.
    reuse = run(clone, "--data", csv, "--tuning", "reuse")
    assert reuse.code == 1
    assert "LastSearch failed: tuning mode 'reuse' found no earlier search in this output folder" in reuse.text
    assert (clone / first.pushed_to).is_dir()
