"""The table of prices as it is shipped; tests of its sums are passed over in a clone that has refreshed it."""

import datetime

import pytest

from pipeline.costs.prices import read_prices
from pipeline.settings.repository import REPOSITORY

TABLE = REPOSITORY / "configs/prices.toml"
PRICES = read_prices(TABLE)
only_shipped = pytest.mark.skipif(
    PRICES.date != datetime.date(2026, 9, 8), reason="configs/prices.toml was refreshed; these are sums of 2026-09-08"
)
