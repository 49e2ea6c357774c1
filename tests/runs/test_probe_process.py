"""The process that measures calls the module file as the Trainer does, and stops one that trains by itself."""

from pathlib import Path

import pytest
import tensorflow as tf

from pipeline.packaging import wheels
from pipeline.runs import probe_process
from pipeline.runs.probe_process import MEASURED, OWN_LOOP, ProbeArguments, main

pytestmark = pytest.mark.slow

OWN = {
    "its own input": "def run_fn(fn_args):\n    fn_args.data_accessor.tf_dataset_factory([])\n",
    "its own steps": "def run_fn(fn_args):\n    print(fn_args.train_steps)\n",
    "the loop of Keras": (
        "import keras\n\ndef run_fn(fn_args):\n    keras.Sequential([keras.layers.Dense(1)]).fit([[1.0]], [1.0])\n"
    ),
    "a loop that asks for nothing": "def run_fn(fn_args):\n    pass\n",
}
OURS = """\
from pathlib import Path


def run_fn(fn_args):
    assert fn_args.base_model is None
    Path(fn_args.custom_config["probe"]).write_text("{}")
"""


@pytest.fixture
def call(tmp_path: Path):
    """Calls the process's main function with a module of that source; returns its exit code."""

    def call(name: str, source: str) -> int:
        path = f"{name}@{wheels.write(name, '0.0', {f'{name}.py': source}, tmp_path)}"
        arguments = {"train_files": [], "eval_files": [], "custom_config": {}, "base_model": None}
        return main({"module_path": path, "arguments": arguments, "to": str(tmp_path / f"{name}.json")})

    return call


@pytest.mark.parametrize(("place", "kind"), enumerate(OWN))
def test_a_module_that_trains_by_itself_is_stopped(call, place, kind):
    assert call(f"own_{place}", OWN[kind]) == OWN_LOOP


def test_a_module_that_calls_the_library_is_measured(call):
    assert call("ours", OURS) == MEASURED


def test_the_error_of_a_module_is_its_own(call):
    with pytest.raises(ZeroDivisionError):
        call("broken", "def run_fn(fn_args):\n    1 / 0\n")


def test_what_the_library_may_ask_for_in_passing_is_no_loop():
    assert not hasattr(ProbeArguments(a=1), "__deepcopy__")


@pytest.mark.parametrize("compression", ["GZIP", ""])
def test_of_more_data_than_is_needed_the_first_records_are_taken(tmp_path: Path, monkeypatch, compression):
    file = str(tmp_path / ("rows.gz" if compression else "rows.tfrecord"))
    with tf.io.TFRecordWriter(file, compression) as writer:
        for row in range(2_000):
            writer.write(str(row).encode() * 50)
    assert probe_process._part([file], str(tmp_path / "all")) == [file]
    monkeypatch.setattr(probe_process, "MOST_BYTES", 1_000)
    (part,) = probe_process._part([file], str(tmp_path / "some"))
    records = list(tf.data.TFRecordDataset(part, compression).as_numpy_iterator())
    assert 0 < len(records) < 2_000
    assert records[1] == b"1" * 50
