"""The steps that a module file for stock TFX asks for."""

from pathlib import Path

import pytest
import tensorflow as tf
from tfx.components.trainer import fn_args_utils
from tfx.types import standard_artifacts
from tfx_bsl.public import tfxio

from pipeline.components.trainer import FnArgs, TrainerExecutor
from pipeline.packaging import user_code


def write(folder: Path, *counts: int) -> list[str]:
    """Write a split with the given number of records per file; return its pattern as TFX does."""
    folder.mkdir()
    for number, count in enumerate(counts):
        with tf.io.TFRecordWriter(str(folder / f"part-{number}.gz"), "GZIP") as writer:
            for row in range(count):
                writer.write(b"%d" % row)
    return [f"{folder}/*"]


@pytest.fixture
def fn_args(tmp_path: Path) -> FnArgs:
    return FnArgs.of(
        fn_args_utils.FnArgs(
            working_dir="here",
            train_files=write(tmp_path / "Split-train", 90, 11),
            eval_files=write(tmp_path / "Split-eval", 30),
            custom_config={"batch_size": 50},
            data_accessor=fn_args_utils.DataAccessor(
                tf_dataset_factory=lambda files, options, schema=None: (files, options.batch_size, schema),
                record_batch_factory=lambda files, options, schema=None: "batches",
                data_view_decode_fn=None,
            ),
        )
    )


def test_the_steps_of_one_pass_follow_from_the_batch_size_that_the_module_reads_with(fn_args):
    options = tfxio.TensorFlowDatasetOptions(batch_size=10)
    made = fn_args.data_accessor.tf_dataset_factory(fn_args.train_files, options, "schema")
    assert made == (fn_args.train_files, 10, "schema")
    fn_args.data_accessor.tf_dataset_factory(fn_args.eval_files, tfxio.TensorFlowDatasetOptions(batch_size=30))
    assert (fn_args.train_steps, fn_args.eval_steps) == (11, 1)


def test_record_batches_tell_their_size_as_well(fn_args):
    assert fn_args.data_accessor.record_batch_factory(fn_args.eval_files, tfxio.RecordBatchesOptions(batch_size=7)) == (
        "batches"
    )
    assert fn_args.eval_steps == 5


def test_a_module_that_reads_files_in_its_own_way_gets_those_of_the_configs_batch_size(fn_args):
    assert (fn_args.train_steps, fn_args.eval_steps) == (3, 1)


def test_the_configs_steps_count_and_everything_else_is_tfxs(fn_args):
    fn_args.train_steps, fn_args.eval_steps = 7, 2
    assert (fn_args.train_steps, fn_args.eval_steps) == (7, 2)
    assert isinstance(fn_args, fn_args_utils.FnArgs)
    assert fn_args.working_dir == "here"


SAYS_ITS_CODE = """\
from pathlib import Path


def run_fn(fn_args):
    Path(fn_args.serving_model_dir).mkdir(parents=True)
    Path(fn_args.serving_model_dir, "code").write_text(fn_args.code)
"""


def test_the_trainer_says_which_code_it_runs(tmp_path):
    examples, model, model_run = (
        standard_artifacts.Examples(),
        standard_artifacts.Model(),
        standard_artifacts.ModelRun(),
    )
    examples.split_names = '["train", "eval"]'
    examples.set_string_custom_property("payload_format", "FORMAT_TF_EXAMPLE")
    for artifact in (examples, model, model_run):
        artifact.uri = str(tmp_path / artifact.type_name)
    wheel = user_code.write_wheel("flights_run_fn", "0.0+1a2b", {"flights.py": SAYS_ITS_CODE}, tmp_path)
    TrainerExecutor().Do(
        {"examples": [examples]},
        {"model": [model], "model_run": [model_run]},
        {"train_args": "{}", "eval_args": "{}", "custom_config": "{}", "module_path": f"flights@{wheel}"},
    )
    (written,) = Path(model.uri).rglob("code")
    assert written.read_text() == "flights_run_fn-0.0+1a2b-py3-none-any.whl"
