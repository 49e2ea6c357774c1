"""Names that TensorFlow takes, made of names that people give columns."""

import keyword

from pipeline.settings.names import plain_names


def test_plain_names_stay_and_the_others_become_different_ones():
    columns = ["fare", "Bill length (mm)", "a b", "a-b", "a_b", "1st", "größe", "价格", "数量", "numbers"]
    plain = plain_names(columns)
    assert plain["fare"] == "fare"
    assert plain["a_b"] == "a_b"
    assert plain["Bill length (mm)"] == "Bill_length__mm_"
    assert plain["1st"] == "column_1st"
    assert len(set(plain.values())) == len(columns)
    assert all(name.isascii() and name.isidentifier() for name in plain.values())
    assert plain == plain_names(reversed(columns))


def test_plain_names_differ_without_case_and_are_no_keywords_and_not_long():
    columns = ["Age", "age", "class", "def", "None", "self", "x" * 300, "x" * 299, "CLASS"]
    plain = plain_names(columns)
    assert len({name.casefold() for name in plain.values()}) == len(columns)
    assert not [name for name in plain.values() if keyword.iskeyword(name) or name == "self" or len(name) > 80]
