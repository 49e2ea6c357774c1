"""What new says of a table whose rows come in groups, such as the rows of one patient."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.scaffold import files
from pipeline.scaffold.table import check_leaks, look
from pipeline.settings.config import Data


def patients(folder: Path, number: int, *, text: bool = False, leave: tuple[str, ...] = ()) -> Path:
    """Write ten near-equal rows for each patient; the label is a coin for each."""
    random = np.random.RandomState(0)
    patient = np.repeat(np.arange(number), 10)
    frame = pd.DataFrame({"patient": [f"p{at}" for at in patient] if text else 10_000 + patient})
    for name in ("a", "b"):
        frame[name] = random.randn(number)[patient] + 0.01 * random.randn(len(patient))
    frame["sick"] = np.array(["no", "yes"])[random.randint(0, 2, number)[patient]]
    frame.drop(columns=list(leave)).to_csv(folder / "patients.csv", index=False)
    return folder / "patients.csv"


@pytest.mark.parametrize(
    ("number", "text", "line"),
    [
        (300, False, 'split_by=HashSplit("patient")'),
        (300, True, 'split_by=HashSplit("patient")'),
        (60, False, 'split_by=HashSplit("patient", shares={"train": 6, "eval": 2, "test": 2})'),
    ],
)
def test_a_column_of_groups_is_named_with_the_line_that_splits_by_it_and_is_disabled(tmp_path, number, text, line):
    looked = look(Data(str(patients(tmp_path, number, text=text))), "sick", None)
    table, ((kind, warning),) = files.with_groups(looked, (), "configs/patients.py")
    assert kind == "warning"
    assert f"In configs/patients.py import HashSplit and write into Data(...): {line}" in warning
    check_leaks(table, ())
    schema = text_format.Parse(files.schema_text(table, ()), schema_pb2.Schema())
    disabled = [one.name for one in schema.feature if one.lifecycle_stage == schema_pb2.DISABLED]
    assert disabled == ["patient"]
    assert '"patient"' not in files.module_text("patients", table)


def test_a_column_of_groups_that_is_asked_for_stays_and_the_warning_too(tmp_path):
    looked = look(Data(str(patients(tmp_path, 300))), "sick", None)
    table, warnings = files.with_groups(looked, ("patient",), "configs/patients.py")
    assert table == looked
    assert len(warnings) == 1


def test_near_equal_rows_without_a_column_of_groups_are_shown(tmp_path):
    looked = look(Data(str(patients(tmp_path, 300, leave=("patient",)))), "sick", None)
    table, ((_, warning),) = files.with_groups(looked, (), "configs/patients.py")
    assert table == looked
    assert "% are near-equal to a row of train and mostly have its label: a=" in warning
