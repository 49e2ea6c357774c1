import pytest
from tests.training.processes import Data
@pytest.fixture(scope="session")
def transformed():
    return Data(["/tmp/w/small/train.gz"],["/tmp/w/small/eval.gz"],"/tmp/w/small/graph")
