"""The README's "Make it yours", on the taxi trips that lie in the tfx package: no schema, gaps in every split."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import tfx

from tests.e2e.run import copy_repository, run

pytestmark = pytest.mark.slow

CONFIG = """\
from pipeline.config import Data, Evaluation, Gate, Label, PipelineConfig, Training, Tuning

CONFIG = PipelineConfig(
    name="trips",
    data=Data("data/trips.csv"),
    label=Label("big_tip", classes=("small", "big")),
    module="models/mine.py",
    tuning=Tuning(trials=1, epochs=1),
    training=Training(epochs=3, batch_size=256),
    evaluation=Evaluation(gates=(Gate("auc", floor=0.8),), slices=("trip_start_day",)),
)
"""


def test_a_csv_of_ones_own_trains_and_pushes_with_the_copied_module(tmp_path: Path):
    clone = copy_repository(tmp_path / "clone")
    trips = pd.read_csv(Path(tfx.__file__).parent / "examples/chicago_taxi_pipeline/data/simple/data.csv")
    trips["big_tip"] = (trips["tips"] > 0.2 * trips["fare"]).astype(int)
    trips.drop(columns=["tips", "trip_start_timestamp"]).to_csv(clone / "data/trips.csv", index=False)
    module = (clone / "models/flights.py").read_text()
    start, end = module.index('    angle = features["sched_dep_minute"]'), module.index("def vocabulary(")
    module = module[:start] + "    return {}\n\n\n" + module[end:]
    (clone / "models/mine.py").write_text(module.replace('CALENDAR = ("year", "month", "day")', "CALENDAR = ()"))
    (clone / "configs/small.py").write_text(CONFIG)

    first = run(clone)

    assert first.code == 0, first.text
    assert "ReviewedSchema" not in first.states
    assert first.pushed_to.parent == Path("output/trips/serving/trips")
