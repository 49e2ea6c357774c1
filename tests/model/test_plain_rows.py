"""Rows converted as a batch: the result equals the conversion value by value, or the batch is left to it."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.model.features import Refused, from_instances, plain_rows
from pipeline.model.inputs import ANY, Input
from tests.hostile.mutations import CASES

INPUTS = {
    "price": Input("price", "floats", True, np.dtype(np.float32)),
    "weight": Input("weight", "floats", False, np.dtype(np.float32)),
    "width": Input("width", "floats", False, np.dtype(np.float64)),
    "rooms": Input("rooms", "integers", True, np.dtype(np.int64)),
    "year": Input("year", "integers", False, np.dtype(np.float64)),
    "town": Input("town", "text", True, np.dtype(object)),
    "note": Input("note", "text", False, np.dtype(object)),
}
PLAIN = {"price": 9.5, "weight": 3, "width": None, "rooms": 4, "year": 1990, "town": "Bern", "note": None}
AT_LIMITS = [0, -0.0, 1e39, -3.5e38, 3.4028235677973366e38, 5e-324, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=True),
    st.sampled_from(AT_LIMITS),
    st.text(max_size=3),
    st.sampled_from(["\0", "a\0", "\ud800"]),
    st.just([1.0]),
    st.just({"b64": "QQ=="}),
)


@st.composite
def rows(draw: st.DrawFn, inputs: dict[str, Input]) -> list[object]:
    """Draw valid rows of the given columns, with a few changes."""
    found: list[object] = []
    for _ in range(draw(st.integers(1, 3))):
        row = {name: PLAIN[name] for name in inputs}
        row |= draw(st.dictionaries(st.sampled_from([*inputs, "other"]), VALUES, max_size=2))
        gone = draw(st.sets(st.sampled_from([*inputs]), max_size=1))
        found.append(draw(st.just({name: value for name, value in row.items() if name not in gone}) | VALUES))
    return found


def told(values: np.ndarray) -> tuple[object, str, bytes]:
    """Return the type, shape and values of a tensor in comparable form; NaN equals NaN."""
    return values.dtype, str(values.shape), repr(values.tolist()).encode(errors="surrogatepass")


@pytest.mark.slow
@CASES
@given(st.data(), st.sets(st.sampled_from([*INPUTS]), min_size=1))
def test_what_is_converted_at_once_is_as_what_is_looked_at(data, names):
    inputs = {name: INPUTS[name] for name in names}
    asked = data.draw(rows(inputs))
    at_once = plain_rows(inputs)(asked)
    try:
        looked_at = from_instances(asked, inputs)
    except Refused:
        assert at_once is None
        return
    if at_once is not None:
        assert {name: told(values) for name, values in at_once.items()} == {
            name: told(values) for name, values in looked_at.items()
        }


def test_usual_rows_are_converted_at_once():
    convert = plain_rows(INPUTS)
    for row in (PLAIN, {**PLAIN, "weight": None, "year": None, "note": "é"}, json.loads(json.dumps(PLAIN))):
        assert convert([row]) is not None
        assert convert([row] * 5) is not None
    left_out = {name: value for name, value in PLAIN.items() if value is not None}
    assert convert([left_out, PLAIN]) is not None


@pytest.mark.parametrize("column", [{"kind": "image"}, {"kind": "examples"}, {"values": 2}, {"values": ANY}])
def test_lists_and_images_are_left(column):
    one = Input(**{"name": "x", "kind": "floats", "required": True, "dtype": np.dtype(np.float32), **column})
    assert plain_rows({"x": one})([{"x": [1.0, 2.0]}]) is None


@pytest.mark.parametrize(("notation", "half"), [("amount: .", b"0.5"), ("amount: , kg", b"0,5")])
def test_a_number_is_the_text_of_an_amount(notation, half):
    amount = Input("paid", "text", False, np.dtype(object), notation=notation)
    found = from_instances([{"paid": value} for value in (0.5, -7, "<1", None)], {"paid": amount})["paid"]
    assert found.tolist() == [half, b"-7", b"<1", b""]
    with pytest.raises(Refused, match="'paid': expected text, or null where it is missing, got true"):
        from_instances([{"paid": True}], {"paid": amount})
    with pytest.raises(Refused, match="expected text"):
        from_instances([{"day": 20240101}], {"day": Input("day", "text", True, np.dtype(object), notation="%Y%m%d")})
