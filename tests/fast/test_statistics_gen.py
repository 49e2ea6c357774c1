"""Our StatisticsGen describes the data as TFX's does, and the same way every time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx.components.statistics_gen import executor as tfx_statistics_gen
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.types import standard_artifacts

from pipeline.fast import beam_options, blocks, statistics_gen
from pipeline.graph import create_pipeline
from pipeline.packaging import fingerprints
from pipeline.settings.config import Data, load_config
from pipeline.settings.target import IN_PROCESS, Target
from tests.components.example_gen import run

ROOT = Path(__file__).resolve().parent.parent.parent
SPLITS = ("train", "eval", "test")
# Several workers are for Beam to ask; here they are this process, too.
PROPERTIES = {"stats_options_json": tfdv.StatsOptions().to_json()}
WAYS = {"in this process": IN_PROCESS, "by Beam": (*IN_PROCESS, "--direct_num_workers=2")}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def examples(few_flights: Path, tmp_path_factory: pytest.TempPathFactory) -> standard_artifacts.Examples:
    splits = {split: f"{split}/*.parquet" for split in SPLITS}
    return run(Data(str(few_flights), splits=splits), tmp_path_factory.mktemp("statistics") / "examples")


def describe(
    executor: type, examples: standard_artifacts.Examples, to: Path, beam_args: tuple[str, ...] = IN_PROCESS
) -> list[str]:
    statistics = standard_artifacts.ExampleStatistics()
    statistics.uri = str(to)
    context = BaseBeamExecutor.Context(beam_pipeline_args=list(beam_args))
    executor(context).Do({"examples": [examples]}, {"statistics": [statistics]}, PROPERTIES)
    return list(json.loads(statistics.split_names))


def read(folder: Path, split: str) -> statistics_pb2.DatasetFeatureStatistics:
    return tfdv.load_stats_binary(str(folder / f"Split-{split}" / "FeatureStats.pb")).datasets[0]


@pytest.mark.parametrize("beam_args", WAYS.values(), ids=WAYS)
def test_every_split_is_described_as_by_tfx(examples, tmp_path, monkeypatch, beam_args):
    monkeypatch.setattr(statistics_gen, "SMALL_BYTES", 0)
    monkeypatch.setattr("pipeline.data.blocks.BLOCK", 100)  # several blocks of the few rows
    assert describe(statistics_gen.FastStatisticsGenExecutor, examples, tmp_path / "ours", beam_args) == list(SPLITS)
    assert describe(tfx_statistics_gen.Executor, examples, tmp_path / "tfx") == list(SPLITS)
    for split in SPLITS:
        ours, theirs = (read(tmp_path / which, split) for which in ("ours", "tfx"))
        assert ours.num_examples == theirs.num_examples
        one, other = ({feature.path.step[0]: feature for feature in each.features} for each in (ours, theirs))
        assert one.keys() == other.keys()
        for name, feature in one.items():
            assert feature.type == other[name].type
            kind = feature.WhichOneof("stats")
            mine, its = getattr(feature, kind), getattr(other[name], kind)
            assert mine.common_stats.num_non_missing == its.common_stats.num_non_missing
            assert mine.common_stats.num_missing == its.common_stats.num_missing
            if kind == "num_stats":
                for field in ("mean", "std_dev", "min", "max", "num_zeros"):
                    assert getattr(mine, field) == pytest.approx(getattr(its, field), rel=1e-6)
                assert mine.median == pytest.approx(its.median, rel=0.02)  # a sketch of quantiles
            else:
                assert mine.unique == its.unique
                assert {top.value: top.frequency for top in mine.top_values} == {
                    top.value: top.frequency for top in its.top_values
                }


@pytest.mark.parametrize(
    "beam_args", [WAYS["in this process"], pytest.param(WAYS["by Beam"], marks=pytest.mark.long)], ids=WAYS
)
def test_it_comes_out_the_same_every_time(examples, tmp_path, monkeypatch, beam_args):
    monkeypatch.setattr(statistics_gen, "SMALL_BYTES", 0)
    monkeypatch.setattr("pipeline.data.blocks.BLOCK", 100)  # several blocks of the few rows
    for which in ("once", "again"):
        describe(statistics_gen.FastStatisticsGenExecutor, examples, tmp_path / which, beam_args)
    for split in SPLITS:
        once, again = (
            {feature.path.step[0]: feature for feature in read(tmp_path / which, split).features}
            for which in ("once", "again")
        )
        assert once == again


def test_an_edit_of_the_library_describes_the_data_again(few_flights, tmp_path):
    """TFX alone would reuse the cached statistics: its cache key has the properties but not the executor's code."""
    flights = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    config = replace(flights, data=replace(flights.data, path=str(few_flights)))
    components = {one.id: one for one in create_pipeline(config, Target.local(tmp_path, config.name)).components}
    code = components["StatisticsGen"].exec_properties["code"]
    modules = [Path(module.__file__) for module in (statistics_gen, blocks, beam_options)]
    assert code == fingerprints.fingerprint_of(modules[0])
    assert set(modules) <= {modules[0], *fingerprints.repository_modules(modules[0].read_text())}
