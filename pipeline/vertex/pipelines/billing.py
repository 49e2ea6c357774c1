"""Bring the table of prices up to date from Google's Cloud Billing Catalog.

The catalog has a SKU for each resource, which only its description names, as in "N1 Predefined Instance Core running in
Americas" (cloud.google.com/billing/docs/reference/rest/v1/services.skus).
"""

import collections
import datetime
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.costs.prices import Price, Prices, read_prices
from pipeline.errors import UserError
from pipeline.filesystem import new_file
from pipeline.settings.repository import shown
from pipeline.vertex.cloud import Cloud, explaining

COMPUTE_ENGINE, VERTEX_AI = "6F81-5844-456A", "C7E2-9256-1C43"
SOURCE = "catalog"  # name of the catalog among the sources of the table
LEAST_CHANGE = 0.01
FAMILIES = {
    "n1": "N1 Predefined Instance",
    "e2": "E2 Instance",
    "n2": "N2 Instance",
    "c2": "Compute optimized",
    "g2": "G2 Instance",
    "a2": "A2 Instance",
    "a3": "A3 Instance",
}
GPUS = {
    "NVIDIA_TESLA_T4": "Nvidia Tesla T4 GPU",
    "NVIDIA_TESLA_P4": "Nvidia Tesla P4 GPU",
    "NVIDIA_TESLA_P100": "Nvidia Tesla P100 GPU",
    "NVIDIA_TESLA_V100": "Nvidia Tesla V100 GPU",
    "NVIDIA_L4": "Nvidia L4 GPU",
    "NVIDIA_TESLA_A100": "Nvidia Tesla A100 GPU",
    "NVIDIA_A100_80GB": "Nvidia Tesla A100 80GB GPU",
    "NVIDIA_H100_80GB": "Nvidia H100 80GB GPU",
    "NVIDIA_H100_MEGA_80GB": "Nvidia H100 80GB Mega GPU",
}
DISKS = {"disks.pd-ssd": "SSD backed PD Capacity", "disks.pd-standard": "Storage PD Capacity"}
HOUR, GIB_HOUR, GIB_MONTH = "h", "GiBy.h", "GiBy.mo"
# Vertex AI's own SKUs of a vCPU of n1, from which its fee over Compute Engine's price is seen.
FEES = {
    "training": "Vertex AI: Training/Pipelines on N1 Predefined Instance Core running in",
    "prediction": "Vertex AI: Online/Batch Prediction N1 Predefined Instance Core running in",
}
HOME = "us-central1"


def refresh(path: Path, cloud: Cloud, note: Callable[[str], None]) -> None:
    """Rewrite the prices and the date of configs/prices.toml, whole or not at all; its comments stay.

    A price that the catalog does not have stays as it was, and is named.
    """
    prices = read_prices(path)
    note("reading Google's Cloud Billing Catalog")
    with explaining("reading the Cloud Billing Catalog"):
        found = _found(_skus(COMPUTE_ENGINE, cloud), prices)
        fees = dict(_fees(_skus(VERTEX_AI, cloud), found))
    if not found:
        raise UserError(
            f"Google's Cloud Billing Catalog has none of the prices in {shown(path)}, which stays as it was; its SKUs "
            "may have other names now: see pipeline/vertex/pipelines/billing.py"
        )
    changes: collections.Counter[str] = collections.Counter()
    missing: dict[str, None] = {}  # in their order
    today = datetime.date.today()

    def line_of(resource: str, name: str, line: str) -> str:
        return _line(resource, name, line, prices, found, changes, missing)

    text = _rewritten(path.read_text(encoding="utf-8"), line_of, {**prices.fees, **fees}, today)
    with new_file(path) as partial:
        Path(partial).write_text(text, encoding="utf-8")
        read_prices(Path(partial))
    note(
        f"{shown(path)} has the prices of {today}: {changes['up']} prices rose and {changes['down']} fell by more than "
        f"1 %, {changes['new']} are new, {changes['same']} stay"
    )
    if missing:
        note(f"not in the catalog, and left as they were: {', '.join(missing)}")


def _skus(service: str, cloud: Cloud) -> Iterator[Mapping[str, Any]]:
    for page in cloud.pages("cloudbilling", f"v1/services/{service}/skus?currencyCode=USD&pageSize=5000"):
        yield from page.get("skus", [])


def _found(skus: Iterator[Mapping[str, Any]], prices: Prices) -> dict[tuple[str, str], Price]:
    """Return the prices of the catalog by resource and region."""
    patterns = list(_patterns())
    found: dict[tuple[str, str], Price] = {}
    for sku in skus:
        for pattern, resource, kind, unit in patterns:
            price = _price(sku, unit) if re.match(pattern, sku["description"]) else None
            for region in sku["serviceRegions"] if price is not None else ():
                if region in prices.regions:
                    found[resource, region] = replace(found.get((resource, region), Price()), **{kind: price})
    return found


def _patterns() -> Iterator[tuple[str, str, str, str]]:
    """Yield the beginning of a description, the resource, the kind of price, and its unit."""
    for family, name in FAMILIES.items():
        for part, word, unit in (("vcpu", "Core", HOUR), ("gib", "Ram", GIB_HOUR)):
            yield f"{name} {word} running in ", f"{family}.{part}", "on_demand", unit
            yield f"Spot Preemptible {name} {word} running in ", f"{family}.{part}", "spot", unit
    for resource, name in GPUS.items():
        yield f"{name} running in ", resource, "on_demand", HOUR
        yield f"{name} attached to Spot Preemptible VMs running in ", resource, "spot", HOUR
    for resource, name in DISKS.items():
        yield rf"{name}( in .*)?$", resource, "on_demand", GIB_MONTH


def _fees(skus: Iterator[Mapping[str, Any]], found: Mapping[tuple[str, str], Price]) -> Iterator[tuple[str, float]]:
    core = found.get(("n1.vcpu", HOME), Price()).on_demand
    for sku in skus:
        for use, beginning in FEES.items():
            price = _price(sku, HOUR) if sku["description"].startswith(beginning) else None
            if price and core and HOME in sku["serviceRegions"]:
                yield use, round(price / core - 1, 4)


def _price(sku: Mapping[str, Any], unit: str) -> float | None:
    """Return the price of a SKU in US dollars; None where it has another unit or no price."""
    for info in sku.get("pricingInfo", [])[-1:]:
        expression = info["pricingExpression"]
        for rate in expression.get("tieredRates", [])[-1:]:
            money = rate["unitPrice"]
            if expression["usageUnit"] == unit and money.get("currencyCode") == "USD":
                return int(money.get("units", 0)) + int(money.get("nanos", 0)) / 1e9
    return None


def _rewritten(
    text: str, line_of: Callable[[str, str, str], str], fees: Mapping[str, float], today: datetime.date
) -> str:
    """Return the text of the table with other prices; it has a line for each price of a region."""
    sources = tomllib.loads(text)["sources"]
    listed = f'{SOURCE} = {{ day = {today}, text = "Google\'s Cloud Billing Catalog" }}'
    lines, section = [], ""
    for line in text.splitlines():
        name, _, value = (part.strip() for part in line.partition("="))
        if line.startswith("["):
            section = line.strip("[]")
            lines += [line, *([listed] if section == "sources" and SOURCE not in sources else [])]
        elif not value or line.startswith("#"):
            lines.append(line)
        elif section == "" and name == "date":
            lines.append(f"date = {today}")
        elif section == "fees":
            lines.append(f"{name} = {fees[name]:g}")
        elif section == "sources" and name == SOURCE:
            lines.append(listed)
        elif section.startswith("prices."):
            lines.append(line_of(section.removeprefix("prices."), name, line))
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _line(
    resource: str,
    name: str,
    line: str,
    prices: Prices,
    found: Mapping[tuple[str, str], Price],
    changes: collections.Counter[str],
    missing: dict[str, None],
) -> str:
    """Return a line of a section of prices: the price of a region, or the section's source."""
    in_catalog = any(key[0] == resource for key in found)
    if name == "source":
        return f'source = "{SOURCE}"' if in_catalog else line
    before, after, values = prices.resources[resource][name], found.get((resource, name), Price()), []
    for kind in ("on_demand", "spot"):
        was, now = getattr(before, kind), getattr(after, kind)
        if now is not None:
            is_same = was is not None and abs(now - was) <= LEAST_CHANGE * was
            changes["new" if was is None else "same" if is_same else "up" if now > was else "down"] += 1
        elif was is not None:
            place = f"{resource} in {name}{' on spot' if kind == 'spot' else ''}"
            missing[place if in_catalog else resource] = None
        if (now if now is not None else was) is not None:
            values.append(f"{kind} = {now if now is not None else was:.9g}")
    return f"{name} = {{ {', '.join(values)} }}"
