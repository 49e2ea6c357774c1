"""Damaged or manipulated files of steps and pushed models: read them, or fail with a one-line error."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given

from pipeline.data.tfrecord_files import read_records
from pipeline.errors import UserError
from pipeline.quality import reference, schema_text
from pipeline.quality.statistics import Statistics
from tests.bounds import bounded
from tests.hostile.mutations import CASES, attempt, mutated

pytestmark = pytest.mark.slow

SCHEMA = b"""feature { name: "amount" type: FLOAT presence { min_fraction: 1.0 } float_domain { min: 0 } }
feature { name: "kind" type: BYTES string_domain { value: "a" value: "b" } not_in_environment: "SERVING" }
"""


def transformed() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with tf.io.TFRecordWriter(f"{folder}/rows", "GZIP") as writer:
            for number in range(20):
                example = tf.train.Example()
                example.features.feature["amount_xf"].float_list.value.append(number)
                writer.write(example.SerializeToString())
        return Path(folder, "rows").read_bytes()


def statistics() -> bytes:
    found = Statistics()
    dataset = found.datasets.add(name="train", num_examples=3)
    column = dataset.features.add()
    column.path.step.append("amount")
    column.num_stats.mean = 2.5
    column.num_stats.common_stats.num_non_missing = 3
    return bytes(found.SerializeToString())


MANIFEST = json.dumps({"run": "one", "splits": ["train"]}).encode()
ARTIFACTS: dict[str, tuple[str, bytes, Callable[[Path], object]]] = {
    "transformed examples": (
        "transformed_examples-00000-of-00001.gz",
        transformed(),
        lambda file: list(read_records(str(file), 8)),
    ),
    "a schema": ("schema.pbtxt", SCHEMA, schema_text.parse),
    "kept statistics": ("train.pb", statistics(), lambda file: reference.read_newest(str(file.parent.parent))),
    "their manifest": ("manifest.json", MANIFEST, lambda file: reference.read_newest(str(file.parent.parent))),
}


@pytest.mark.parametrize(("name", "good", "read"), ARTIFACTS.values(), ids=list(ARTIFACTS))
def test_a_damaged_artifact_is_read_or_refused_in_a_sentence(
    tmp_path: Path, name: str, good: bytes, read: Callable[[Path], object]
):
    folder = tmp_path / "1"
    folder.mkdir()
    (folder / "train.pb").write_bytes(statistics())
    (folder / "manifest.json").write_bytes(MANIFEST)
    file = folder / name
    file.write_bytes(good)
    assert read(file)

    @CASES
    @given(mutated([good]))
    def holds(content: bytes) -> None:
        file.write_bytes(content)
        with bounded(seconds=5, megabytes=300):
            _, refusal = attempt(lambda: read(file), UserError)
        assert len(refusal) < 1_000
        assert not refusal or str(folder) in refusal

    holds()


@pytest.mark.parametrize("split", ["test", "null" * 400])
def test_a_manifest_that_names_a_split_without_a_file_is_damaged(tmp_path: Path, split: str):
    (tmp_path / "1").mkdir()
    (tmp_path / "1/train.pb").write_bytes(statistics())
    (tmp_path / "1/manifest.json").write_text(json.dumps({"run": "one", "splits": ["train", split]}))
    with pytest.raises(UserError, match="manifest.json does not hold .*it names a split ") as refused:
        reference.read_newest(str(tmp_path))
    assert len(str(refused.value)) < 1_000
