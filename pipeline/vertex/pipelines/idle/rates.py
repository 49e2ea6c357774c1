"""Prices of machines and storage that stand, by the dated table of prices."""

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from google.cloud import aiplatform_v1 as v1

from pipeline.costs.prices import HOURS_A_MONTH, Use
from pipeline.errors import UserError
from pipeline.vertex.pipelines.idle.finding import GIB, Price, Scope, total

TENSORBOARD, STORAGE = "tensorboard", "storage"


def replicas(model: Any) -> int:
    """Return the fewest machines of a deployed model; 0 if it shares those of others."""
    kind = v1.DeployedModel.pb(model).WhichOneof("prediction_resources")
    return int(getattr(model, kind).min_replica_count) if kind in ("dedicated_resources", "automatic_resources") else 0


def of_model(model: Any, scope: Scope) -> tuple[str, Price]:
    """Return the machines of a deployed model in words, and their price a month without requests."""
    count, resources = replicas(model), model.dedicated_resources
    if not resources.machine_spec.machine_type:
        unknown = "Vertex AI chooses the machines of automatic resources"
        return f"{count} x automatic resources", Price(None, unknown)
    return of_machines([(resources.machine_spec, count)], scope, "prediction", resources.spot)


def of_machines(
    pools: Iterable[tuple[v1.MachineSpec, int]],
    scope: Scope,
    use: Use,
    spot: bool = False,
    hours: float = HOURS_A_MONTH,
) -> tuple[str, Price]:
    """Return the machines of pools in words, and their price for some hours."""
    counts = collections.Counter[tuple[str, str, int]]()
    for machine, count in pools:
        accelerator = v1.AcceleratorType(machine.accelerator_type).name if machine.accelerator_type else ""
        counts[machine.machine_type, accelerator, machine.accelerator_count] += count
    words, prices = [], []
    for (machine_type, accelerator, accelerators), count in counts.items():
        words.append(f"{count} x {machine_type}" + (f" with {accelerators} {accelerator}" if accelerator else ""))
        try:
            hourly = scope.prices.per_hour(
                machine_type, accelerator or None, accelerators, region=scope.cloud.region, spot=spot, use=use
            )
            prices.append(Price(hourly * count * hours))
        except UserError as error:
            prices.append(Price(None, str(error)))
    return " and ".join(words), total(prices)


def of_storage(sizes: Mapping[str, float], scope: Scope) -> Price:
    """Return the price a month of bytes in a bucket of the region, by storage class, such as "STANDARD"."""
    others = sorted(kind for kind, size in sizes.items() if size and kind != "STANDARD")
    if others:
        return Price(None, f"{scope.prices.path} has no price of storage of the class {', '.join(others)}")
    return _of_bytes(sum(sizes.values()), STORAGE, scope)


def of_tensorboard(size: float, scope: Scope) -> Price:
    """Return the price a month of bytes in a TensorBoard; users are not paid for since 1 August 2023."""
    return _of_bytes(size, TENSORBOARD, scope)


def _of_bytes(size: float, resource: str, scope: Scope) -> Price:
    try:
        return Price(size / GIB * scope.prices.price(resource, scope.cloud.region))
    except UserError as error:
        return Price(None, str(error))
