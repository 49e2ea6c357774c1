"""Choose an engine: the accelerators, or TFX's own executors."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.fast import engine as fast
from pipeline.graph import create_pipeline
from pipeline.settings.config import load_config
from pipeline.settings.target import Target

ROOT = Path(__file__).resolve().parents[2]
ACCELERATED = {"ExampleGen", "StatisticsGen", "Transform", "Evaluator"}


@pytest.fixture(autouse=True)
def ask_again():
    fast.usable.cache_clear()
    yield
    fast.usable.cache_clear()


def executors(engine: str, few_flights: Path, folder: Path) -> dict[str, str]:
    """The module of each node's executor."""
    flights = load_config(ROOT / "configs/flights.py").with_paths_from(ROOT)
    config = replace(flights, data=replace(flights.data, path=str(few_flights)))
    pipeline = create_pipeline(config, replace(Target.local(folder, config.name), engine=engine))
    found = {}
    for node in pipeline.components:
        kind = getattr(getattr(node, "executor_spec", None), "executor_class", None)
        found[node.id] = kind.__module__ if kind else ""
    return found


def test_the_fast_engine_replaces_four_executors_and_the_stock_engine_none(few_flights, tmp_path):
    accelerated = executors("fast", few_flights, tmp_path / "fast")
    stock = executors("stock", few_flights, tmp_path / "stock")
    assert accelerated.keys() == stock.keys()
    assert {name for name, module in accelerated.items() if module.startswith("pipeline.fast.")} == ACCELERATED
    assert {name for name in stock if accelerated[name] != stock[name]} == ACCELERATED
    assert not any(module.startswith("pipeline.fast.") for module in stock.values())


def test_an_untested_version_falls_back_to_the_stock_engine_with_one_warning(
    few_flights, tmp_path, monkeypatch, caplog
):
    monkeypatch.setitem(fast.TESTED, "apache-beam", "2.99.0")
    with caplog.at_level(logging.WARNING, "pipeline"):
        for number in range(2):
            found = executors("fast", few_flights, tmp_path / str(number))
            assert not any(module.startswith("pipeline.fast.") for module in found.values())
    (record,) = caplog.records
    assert "not tested with apache-beam" in record.getMessage()
    assert "(tested: 2.99.0)" in record.getMessage()


def test_the_installed_versions_are_tested():
    assert fast.usable("fast")
