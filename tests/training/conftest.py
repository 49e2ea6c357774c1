"""Real transformed flights, from the first run of the pipeline in the clone; and scikit-learn with one thread."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

from tests.e2e.run import Run
from tests.training.processes import Data


@pytest.fixture(scope="session")
def transformed(clone: Path, first: Run) -> Data:
    """Output of Transform for a few flights: about 3,200 of them to train on, 800 to evaluate."""
    assert first.code == 0, first.text
    (transform,) = (clone / "output").glob("*/artifacts/Transform")
    # Other tests may have run the pipeline in the clone again, with other code or data: the first run's are wanted.
    number = min(int(folder.name) for folder in (transform / "transform_graph").glob("[0-9]*"))
    examples, graph = transform / "transformed_examples" / str(number), transform / "transform_graph" / str(number)
    return Data([f"{examples}/Split-train/*"], [f"{examples}/Split-eval/*"], str(graph))


@pytest.fixture
def one_device():
    """Models are built in the scope of the strategy that trains them, as ``training.run`` does."""
    from tests.training.one_device import ONE_DEVICE

    with ONE_DEVICE.strategy.scope():
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Beside other tests OpenMP's threads spin until all have a core: ten times the time, on a few rows."""
    with threadpool_limits(1):
        yield
