"""Labels of every kind."""

import numpy as np

from tests.gauntlet.tables.table import Content, labelled, people, split_in_two, table


@table("wanted", "two")
def label_words() -> Content:
    """Two classes in words."""
    return labelled(["lost", "won"])


@table("wanted", "two")
def label_zero_one() -> Content:
    """0 and 1."""
    return labelled([0, 1])


@table("wanted", "two")
def label_true_false() -> Content:
    """True and False, as pandas writes them."""
    return labelled([False, True])


@table("wanted", "two")
def label_one_two() -> Content:
    """1 and 2."""
    return labelled([1, 2])


@table("wanted", "two")
def label_floats() -> Content:
    """0.0 and 1.0."""
    return labelled([0.0, 1.0])


@table("wanted", "several", reach=0.6)
def label_numbers() -> Content:
    """Three classes named 3, 5 and 7."""
    return labelled([3, 5, 7])


@table("wanted", "several", reach=0.6)
def label_called_na() -> Content:
    """Classes called NA (North America), None and EU."""
    return labelled(["NA", "None", "EU"])


@table("wanted", "two", reach=0.85)
def label_rare() -> Content:
    """3 % of 6,000 rows are of the second class."""
    frame, score, _ = people(6000, 31)
    return frame.assign(wanted=split_in_two(score, ["fine", "fraud"], 0.03))


@table("wanted", "number", reach=0.6)
def label_negative() -> Content:
    """A number below and above zero, with fractions."""
    frame, score, _ = people()
    return frame.assign(wanted=(score * 3 - 5).round(3))


@table("wanted", "number", reach=0.6)
def label_huge() -> Content:
    """A whole number of 10 to the 12th."""
    frame, score, _ = people()
    return frame.assign(wanted=(5e12 + score * 1e12).astype(np.int64))


@table("wanted", "number", reach=0.2)
def label_skewed() -> Content:
    """A number from 0.01 to 100,000, as prices are."""
    frame, score, _ = people(2000)
    return frame.assign(wanted=np.exp(score * 1.5 + 3).round(2))


@table("wanted", "number", reach=0.6)
def label_counts() -> Content:
    """A whole number from 0 to about 60."""
    frame, score, rng = people(1500)
    return frame.assign(wanted=rng.poisson(np.exp(score * 0.3 + 2.5)))


@table("wanted", expected="refused: wanted.*(missing|no value|without|empty)|(missing|no value|without|empty).*wanted")
def label_with_gaps() -> Content:
    """A label that is missing in some rows."""
    frame = labelled(["lost", "won"])
    return frame.assign(wanted=[None if place % 50 == 0 else value for place, value in enumerate(frame["wanted"])])


@table("wanted", expected="refused: wanted")
def label_constant() -> Content:
    """A label that is the same in every row."""
    return labelled(["won"])
