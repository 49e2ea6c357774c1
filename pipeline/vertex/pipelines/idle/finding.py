"""What a look at Google Cloud finds, where it looks, and what that costs."""

import datetime
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.costs.prices import Prices
from pipeline.vertex.cloud import Cloud

GIB = float(1 << 30)


@dataclass(frozen=True)
class Price:
    """A price in US dollars.

    Attributes:
        dollars: None: it is not known.
        unknown: Why not.
    """

    dollars: float | None
    unknown: str = ""


@dataclass(frozen=True)
class Idle:
    """Something that is paid for and not used.

    Attributes:
        what: Its kind and name.
        why: What shows that it is not used.
        price: Of a month, if nothing is changed.
        command: Ends it.
    """

    what: str
    why: str
    price: Price
    command: str


@dataclass(frozen=True)
class Unseen:
    """Something that could not be looked at.

    Attributes:
        what: Its kind and name.
        reason: Why not, with what to do.
    """

    what: str
    reason: str


@dataclass(frozen=True)
class Note:
    """A line about what was seen."""

    text: str


@dataclass(frozen=True)
class Scope:
    """What is looked at.

    Attributes:
        cloud: Project and region.
        pipeline: Name of the pipeline whose things are looked at.
        bucket: Name of its bucket.
        endpoint: Name of the endpoint of its settings, as the settings have it; None: none.
        tensorboards: Resource names in its table of machines.
        whole: Look at everything in the project and region, whosever it is.
        days: Days without use after which a thing is idle.
        now: The time, with its zone.
        prices: Of machines and storage.
    """

    cloud: Cloud
    pipeline: str
    bucket: str
    endpoint: str | None
    tensorboards: frozenset[str]
    whole: bool
    days: int
    now: datetime.datetime
    prices: Prices

    @property
    def since(self) -> datetime.datetime:
        """Return when the days begin."""
        return self.now - datetime.timedelta(days=self.days)

    def age(self, moment: datetime.datetime) -> float:
        """Return the days since a time."""
        return (self.now - moment).total_seconds() / 86_400

    def named(self, name: str) -> str:
        """Return a resource name with the project's id; Vertex AI answers with its number."""
        return f"{self.cloud.parent}/{'/'.join(name.split('/')[4:])}"

    def gcloud(self, *words: str) -> str:
        """Return a command of gcloud for a resource of the project and region, quoted for a shell."""
        return shlex.join(["gcloud", *words, f"--region={self.cloud.region}", f"--project={self.cloud.project}"])

    def runner(self, *words: str) -> str:
        """Return a command of vertex_runner.py, quoted for a shell."""
        place = ["--project", self.cloud.project, "--region", self.cloud.region]
        return shlex.join(["python", "vertex_runner.py", *words, *place])


def total(prices: Iterable[Price]) -> Price:
    """Return the sum; unknown if one of them is."""
    listed = list(prices)
    unknown = next((price for price in listed if price.dollars is None), None)
    return unknown or Price(sum(price.dollars or 0.0 for price in listed))


def size_of(count: float) -> str:
    """Return bytes in words."""
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{1024 * count / GIB:,.1f} MiB"


def last_part(name: str) -> str:
    """Return the id in a resource name; projects come back by their number, so that whole names may differ."""
    return name.rpartition("/")[2]
