"""SKUs of Google's Cloud Billing Catalog, for the fake that answers with them."""

from pathlib import Path
from typing import Any

from pipeline.costs.prices import read_prices
from pipeline.vertex.pipelines import billing


def sku(description: str, regions: list[str], price: float, unit: str = "h") -> dict[str, Any]:
    """Return a SKU as services.skus.list has it."""
    units, nanos = divmod(round(price * 1e9), 10**9)
    money = {"currencyCode": "USD", "units": str(units), "nanos": nanos}
    expression = {"usageUnit": unit, "tieredRates": [{"startUsageAmount": 0, "unitPrice": money}]}
    return {
        "description": description,
        "category": {"resourceFamily": "Compute", "usageType": "OnDemand"},
        "serviceRegions": regions,
        "pricingInfo": [{"summary": "", "pricingExpression": expression}],
    }


def skus_like(table: Path) -> list[dict[str, Any]]:
    """Return Compute Engine's SKUs with the prices that a table has, one for each region."""
    prices, skus = read_prices(table), []
    for pattern, resource, kind, unit in billing._patterns():
        beginning = pattern.partition("(")[0]
        for region, price in prices.resources[resource].items():
            value = getattr(price, kind)
            if value is not None:
                name = beginning if "(" in pattern else f"{beginning}{region}"
                skus.append(sku(name, [region, "mars-north1"], value, unit))
    return skus
