"""Read the dated table of machines, accelerators, prices and speeds: configs/prices.toml.

Google bills resources, so the table has prices of resources: an hour of a vCPU, of a GiB and of an accelerator, by
region. What a machine costs is computed from them, with the fee that Vertex AI adds.
"""

import datetime
import difflib
import functools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import UserError
from pipeline.settings.repository import shown

Use = Literal["training", "prediction"]
TABLE = "configs/prices.toml"  # in the repository
DAYS_FRESH = 90
HOURS_A_MONTH = 730  # as Google's price lists count a month
UPDATE = "correct them from cloud.google.com/vertex-ai/pricing, and the date at the top of the file"


@dataclass(frozen=True)
class Machine:
    """A machine type."""

    name: str  # such as "n1-standard-8"
    cpus: int
    memory_gib: float
    accelerator: str | None = None  # built in
    accelerators: int = 0

    @property
    def family(self) -> str:
        """Return the family, whose vCPUs and memory have one price: "n1" of "n1-standard-8"."""
        return self.name.partition("-")[0]


@dataclass(frozen=True)
class Price:
    """Price of one resource in one region in US dollars; None where it is not known."""

    on_demand: float | None = None
    spot: float | None = None


@dataclass(frozen=True)
class Prices:
    """The table of prices."""

    date: datetime.date
    fees: Mapping[str, float]  # share that Vertex AI adds to Compute Engine's price, by use
    machines: Mapping[str, Machine]
    # By name in Vertex AI, such as "NVIDIA_TESLA_T4": whether the price includes CPUs and memory of the host.
    accelerators: Mapping[str, bool]
    # By resource, such as "n1.vcpu" or "NVIDIA_L4", then by region.
    resources: Mapping[str, Mapping[str, Price]] = field(repr=False)
    # By kind of data, then hardware ("vcpu" or an accelerator), then Keras policy.
    speeds: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    path: str = TABLE

    @functools.cached_property
    def regions(self) -> tuple[str, ...]:
        """Return the regions in which something has a price."""
        return tuple(sorted({region for by_region in self.resources.values() for region in by_region}))

    def machine(self, machine_type: str) -> Machine:
        """Return a machine type; the UserError about an unknown one names the nearest."""
        return self._named("machine type", machine_type, self.machines)

    def has_host(self, accelerator: str) -> bool:
        """Return whether an accelerator's price includes its host; an unknown one is a UserError."""
        return self._named("accelerator", accelerator, self.accelerators)

    def per_hour(
        self,
        machine_type: str,
        accelerator: str | None = None,
        count: int = 0,
        *,
        region: str,
        spot: bool = False,
        use: Use = "training",
    ) -> float:
        """Return US dollars for an hour of a machine on Vertex AI, with its fee."""
        price = self._compute_engine(machine_type, accelerator, count, region, spot=spot)
        # The fee is one and the same, on demand or spot: a share of the price on demand.
        whole = self._compute_engine(machine_type, accelerator, count, region, spot=False) if spot else price
        return price + self.fees[use] * whole

    def disk_per_hour(self, kind: str, gib: int, *, region: str) -> float:
        """Return US dollars for an hour of a boot disk on Vertex AI, with its fee."""
        return gib * self.price(f"disks.{kind}", region) / HOURS_A_MONTH * (1 + self.fees["training"])

    def _compute_engine(
        self, machine_type: str, accelerator: str | None, count: int, region: str, *, spot: bool
    ) -> float:
        machine = self.machine(machine_type)
        if machine.accelerator:
            accelerator, count = machine.accelerator, machine.accelerators
        price = 0.0
        if not (accelerator and self.has_host(accelerator)):
            price = machine.cpus * self.price(f"{machine.family}.vcpu", region, spot=spot)
            price += machine.memory_gib * self.price(f"{machine.family}.gib", region, spot=spot)
        return price + (count * self.price(accelerator, region, spot=spot) if accelerator else 0.0)

    def price(self, resource: str, region: str, *, spot: bool = False) -> float:
        """Return the price of a resource without Vertex AI's fee, in the unit of its section in the file."""
        if region not in self.regions:
            raise UserError(
                f"{self.path} has no prices of the region {region!r}; it has those of {', '.join(self.regions)}"
            )
        by_region = self.resources.get(resource, {})
        kind = "spot" if spot else "on_demand"
        price: float | None = getattr(by_region.get(region, Price()), kind)
        if price is None:
            where = sorted(name for name, known in by_region.items() if getattr(known, kind) is not None)
            raise UserError(
                f"{self.path} has no price {'on spot' if spot else 'on demand'} of {resource} in {region}; "
                + (f"it has that of {', '.join(where)}" if where else "it has none in any region")
            )
        return price

    def stale(self, today: datetime.date) -> str | None:
        """Return a sentence if the prices are older than 90 days, else None."""
        days = (today - self.date).days
        return f"the prices in {self.path} are {days} days old; {UPDATE}" if days > DAYS_FRESH else None

    def _named(self, kind: str, name: str, known: Mapping[str, Any]) -> Any:
        if name in known:
            return known[name]
        raise UserError(f"{self.path} has no {kind} {name!r}; the nearest is {nearest(name, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the name that is most like another, of those that have its last part, such as "T4", if there are any."""
    plain = {re.sub(r"[^a-z0-9]+", "-", other.casefold()): other for other in known}
    wanted = re.sub(r"[^a-z0-9]+", "-", name.casefold())
    same_end = [other for other in plain if other.endswith(wanted.rpartition("-")[2])]
    return plain[difflib.get_close_matches(wanted, same_end or plain, 1, cutoff=0)[0]]


def read_prices(path: Path) -> Prices:
    """Read the table of prices; an error in it is a UserError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return _parsed(table, shown(path))
    except OSError as error:
        raise UserError(f"{shown(path)} cannot be read: {error.strerror}; expected the table of prices") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{shown(path)} is no TOML: {error}; correct it, or take back the file of the repository"
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{shown(path)} is not the table of prices that was expected ({type(error).__name__}: {error}); correct "
            "it, or take back the file of the repository"
        ) from error


def _parsed(table: Mapping[str, Any], path: str) -> Prices:
    machines = {
        f"{shape}-{cpus}": Machine(f"{shape}-{cpus}", cpus, cpus * values["gib"])
        for shape, values in table["shapes"].items()
        for cpus in values["vcpus"]
    }
    machines |= {name: Machine(name, *values) for name, values in table["types"].items()}
    date = table["date"]
    if not isinstance(date, datetime.date) or date > datetime.date.today() + datetime.timedelta(days=1):
        raise ValueError(f"date must be a day such as 2026-09-08 and not in the future, got {date}")
    resources = dict(_resources(table["prices"]))
    return Prices(date, table["fees"], machines, table["accelerators"], resources, _speeds(table["speeds"]), path)


def _speeds(kinds: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for kind, sections in kinds.items():
        for name, section in sections.items():
            speeds = {policy: speed for policy, speed in section.items() if policy != "source"}
            for policy, speed in speeds.items():
                if not isinstance(speed, (int, float)) or not 0 < speed < math.inf:
                    raise ValueError(f"speeds.{kind}.{name}.{policy} must be a number above 0, got {speed!r}")
            found.setdefault(kind, {})[name] = speeds
    return found


def _resources(sections: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, dict[str, Price]]]:
    """Yield each section of prices by its whole name; one without a source holds others."""
    for name, section in sections.items():
        if "source" in section:
            for place, price in section.items():
                for kind, dollars in price.items() if place != "source" else ():
                    if not isinstance(dollars, (int, float)) or not 0 <= dollars < math.inf:
                        raise ValueError(
                            f"prices.{prefix}{name}.{place}.{kind} must be US dollars, 0 or more, got {dollars!r}"
                        )
            yield f"{prefix}{name}", {place: Price(**price) for place, price in section.items() if place != "source"}
        else:
            yield from _resources(section, f"{prefix}{name}.")
