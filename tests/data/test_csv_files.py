"""CSV files as people have them: every row arrives as it stands, or is refused with its file, row and column."""

import bz2
import csv
import gzip
import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data import csv_files, csv_rows
from pipeline.data.table import BadRow
from pipeline.errors import UserError


def read(file: Path, known: dict | None = None) -> tuple[dict, dict, list[BadRow]]:
    """Types, columns and bad rows, read part by part."""
    types, units = csv_files.scan(str(file), known or {})
    columns: dict = {name: [] for name in types}
    bad = []
    for unit in units:
        for rows in csv_files.read(unit, types):
            bad += rows.bad
            for name, values in rows.table.to_pydict().items():
                columns[name] += values
    return types, columns, bad


@pytest.fixture
def written(tmp_path: Path):
    def write(content: bytes | str) -> Path:
        (tmp_path / "some.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / "some.csv"

    return write


def test_types_are_the_narrowest_that_every_value_has_and_an_empty_field_is_missing(written):
    types, columns, bad = read(
        written("whole,gaps,real,mixed,text,nothing,huge,hex\n1,5,1.5,1,a,,1,1\n-2,,2,x,,,9223372036854775808,0x1F\n")
    )
    assert types == {
        "whole": "integers",
        "gaps": "integers",
        "real": "floats",
        "mixed": "text",
        "text": "text",
        "nothing": "nothing",
        "huge": "text",
        "hex": "text",
    }
    assert columns["gaps"] == [5, None]
    assert columns["real"] == [1.5, 2.0]
    assert columns["mixed"] == ["1", "x"]
    assert columns["huge"] == ["1", "9223372036854775808"]
    assert bad == []


def test_spaces_signs_and_the_words_for_infinity_are_read_as_python_does(written):
    types, columns, _ = read(written("i,f\n 7,+inf\n+8 ,-1e3\n-9223372036854775808,nan\n9223372036854775807,.5\n"))
    assert types == {"i": "integers", "f": "floats"}
    assert columns["i"] == [7, 8, -(2**63), 2**63 - 1]
    assert columns["f"] == [float("inf"), -1000.0, None, 0.5]


WORDS_FOR_MISSING = ["NA", "N/A", "n/a", "null", "NULL", "None", "nan", "NaN", "-", "?", " NA ", "#N/A", ""]


@pytest.mark.parametrize(("numbers", "kind"), [(["1", "2"], "integers"), (["1.5", "-2e3"], "floats")])
def test_words_for_a_missing_value_are_missing_in_numbers_and_words_in_text(written, numbers, kind):
    cells = [*numbers, *WORDS_FOR_MISSING]
    file = written("n,t\n" + "".join(f"{cell},{cell if row else 'word'}\n" for row, cell in enumerate(cells)))
    types, columns, bad = read(file)
    assert types == {"n": kind, "t": "text"}
    assert columns["n"] == [float(one) for one in numbers] + [None] * len(WORDS_FOR_MISSING)
    assert columns["t"][2:] == [word or None for word in WORDS_FOR_MISSING]
    assert bad == []


def test_words_for_missing_alone_say_nothing_of_the_type(written, monkeypatch):
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 8)
    types, columns, _ = read(written("n,w,a\nNA,NA,NA\n?,?,?\n1,word,-\n2,?,NA\n"))
    assert types == {"n": "integers", "w": "text", "a": "nothing"}
    assert columns["n"] == [None, None, 1, 2]
    assert columns["w"] == ["NA", "?", "word", "?"]


def test_integers_with_gaps_as_pandas_writes_them_keep_every_digit_where_the_schema_says_integers(written):
    file = written("tract,x\n17031081403.0,1\n,2\n17031081404.0,3\n17031081404.5,4\n")
    assert read(file)[0]["tract"] == "floats"
    _, columns, bad = read(file, {"tract": "integers"})
    assert columns["tract"] == [17031081403, None, 17031081404]
    assert [row.row for row in bad] == [4]


def test_a_number_too_large_for_a_float_of_32_bits_is_a_bad_row_and_never_infinite(written):
    types, columns, bad = read(written("f,x\n1.5,1\n1e300,2\n3.4e38,3\n"))
    assert types["f"] == "floats"
    assert columns["f"] == [1.5, 3.4e38]
    assert "column 'f': found '1e300', expected a number up to 3.4e+38" in str(bad[0])


def test_the_types_of_a_reviewed_schema_are_kept_and_what_does_not_parse_is_named(written):
    file = written("zip,n,x\n02139,1,a\n10001,two,b\n10002,3,c\n")
    types, columns, bad = read(file, {"zip": "text", "n": "integers"})
    assert types == {"zip": "text", "n": "integers", "x": "text"}
    assert columns == {"zip": ["02139", "10002"], "n": [1, 3], "x": ["a", "c"]}
    assert [str(row) for row in bad] == [f"{file}, row 2: column 'n': found 'two', expected an integer"]
    assert bad[0].text == "10001,two,b"


def test_too_many_and_too_few_fields_are_named_and_no_row_is_shifted(written):
    file = written("a,b\n1,2\n3\n4,5,6\n\n7,8\n")
    _, columns, bad = read(file)
    assert columns == {"a": [1, 7], "b": [2, 8]}
    assert [str(row) for row in bad] == [
        f"{file}, row 2: found 1 fields, expected 2",
        f"{file}, row 3: found 3 fields, expected 2",
    ]
    assert [row.text for row in bad] == ["3", "4,5,6"]


def test_a_quote_inside_a_field_spoils_its_line_only(written):
    _, columns, bad = read(written('a,b\n1,x\n2,5" pipe\n3,"y, z"\n'))
    assert columns == {"a": [1, 3], "b": ["x", "y, z"]}
    assert bad[0].row == 2
    assert "found a quote inside a field that does not start with one" in bad[0].reason


@pytest.mark.parametrize("rest", ['3,z\n4,"q"\n', "3,z\n4,q\n"])
def test_a_quote_that_is_never_closed_spoils_its_line_only(written, rest):
    _, columns, bad = read(written('a,b\n1,x\n2,"open\n' + rest))
    assert columns == {"a": [1, 3, 4], "b": ["x", "z", "q"]}
    assert [row.row for row in bad] == [2]
    assert "quote that is" in bad[0].reason
    assert bad[0].text == '2,"open'


def test_a_quote_that_is_never_closed_is_given_up_after_a_row_of_megabytes(written, monkeypatch):
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 64)
    monkeypatch.setattr(csv_rows, "MOST_ROW_BYTES", 256)
    _, columns, bad = read(written('a,b\n0,"open\n' + "".join(f"{i},x\n" for i in range(1, 1001))))
    assert columns["a"] == list(range(1, 1001))
    assert [row.row for row in bad] == [1]


@pytest.mark.parametrize(
    "again",
    ["mass,kind", '"mass","kind"', " mass , kind", "\ufeffmass,kind", "\n\nmass,kind", 'mass, "kind"', "mass,kind\r"],
)
def test_a_header_that_is_repeated_is_a_bad_row(written, again):
    types, columns, bad = read(written(f"mass,kind\n1,x\n{again}\n2,y\n{again}"))
    assert types == {"mass": "integers", "kind": "text"}
    assert columns == {"mass": [1, 2], "kind": ["x", "y"]}
    assert [(row.row, row.reason) for row in bad] == [(2, csv_rows.REPEATED_HEADER), (4, csv_rows.REPEATED_HEADER)]


@pytest.mark.parametrize("header", ['"a ""b""",c', '"a, b",c', '"a\nb",c', "Größe,c"])
def test_a_repeated_header_with_signs_that_need_quotes_is_a_bad_row(written, header):
    _, columns, bad = read(written(f"{header}\n1,x\n{header}\n2,y\n"))
    assert columns["c"] == ["x", "y"]
    assert [row.row for row in bad] == [2]


def test_a_row_with_some_names_of_columns_is_a_value(written):
    _, columns, bad = read(written("a,b\na,x\nb,b\nab,\n"))
    assert columns == {"a": ["a", "b", "ab"], "b": ["x", "b", None]}
    assert bad == []


def test_the_name_of_the_only_column_is_a_value_in_it(written):
    assert read(written("word\none\nword\n"))[1:] == ({"word": ["one", "word"]}, [])


def test_a_header_with_the_columns_in_another_order_is_refused(written):
    file = written("mass,kind\n1,x\n\nkind,mass\ny,2\n")
    with pytest.raises(UserError, match="row 2: the header again, with the columns in another order"):
        read(file)


def test_latin_1_bytes_are_named_with_row_and_field(written):
    file = written(b"a,b\n1,caf\xc3\xa9\n2,caf\xe9\n3,x\n")
    _, columns, bad = read(file)
    assert columns == {"a": [1, 3], "b": ["café", "x"]}
    assert "row 2: field 2: found the byte 0xe9, which is not UTF-8 ('2,café' if it is Latin-1)" in str(bad[0])


def test_a_byte_order_mark_that_begins_a_row_is_a_part_of_its_value(written):
    assert read(written(b"a\r\n\xef\xbb\xbf"))[1] == {"a": ["\ufeff"]}
    assert read(written(b"a,b\n\xef\xbb\xbfx,1\n"))[1] == {"a": ["\ufeffx"], "b": [1]}


def test_a_byte_order_mark_is_no_part_of_the_first_name(written):
    assert read(written(b"\xef\xbb\xbfa,b\n1,2\n"))[1] == {"a": [1], "b": [2]}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_break_ends_a_row_and_the_last_one_may_lack(written, end):
    text = end.join(["a,b", "1,x", "", '2,"y' + end + 'z"', "3,w"])
    _, columns, bad = read(written(text))
    assert bad == []
    assert columns["a"] == [1, 2, 3]
    assert columns["b"] == ["x", f"y{end}z", "w"]


@pytest.mark.parametrize(("name", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_a_compressed_file_is_read_and_one_damaged_or_cut_short_is_refused(tmp_path, name, compress):
    file = tmp_path / f"some.csv{name}"
    content = compress(("a,b\n" + "".join(f"{i},{i * i % 97}\n" for i in range(5000))).encode())
    file.write_bytes(content)
    assert read(file)[1]["a"] == list(range(5000))
    half = len(content) // 2
    for damaged in (content[:half], content[:half] + b"\xff" * 50 + content[half + 50 :]):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=f"some.csv{name} is damaged or cut short"):
            read(file)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("a,b,a\n", r"the column name 'a' occurs twice in the header, in columns 1 and 3"),
        (",a\n", r"column 1 has no name; expected one in the header \(pandas writes its index so"),
        (b"caf\xe9,b\n", r"not a CSV file with a header, whatever its name says: its first line is b'caf\\xe9,b\\n'"),
        ("\ufeffa,b\n1,2\n".encode("utf-16-le"), r"is in UTF-16; expected UTF-8: save it as CSV UTF-8$"),
        (b"PAR1\x15\x04\x15\xff\n", r"not a CSV file with a header, whatever its name says"),
    ],
)
def test_a_header_that_is_none_is_refused(written, header, message):
    with pytest.raises(UserError, match=message):
        read(written(header))


def test_an_empty_file_has_no_columns_and_no_rows(written):
    assert read(written("")) == ({}, {}, [])
    assert read(written("a,b\n"))[1] == {"a": [], "b": []}


def test_a_part_is_read_without_what_stands_before_it(written, monkeypatch):
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 1000)
    rows = [(str(i), 'say "no", ' * (i % 3) + "\n" * (i % 2)) for i in range(500)]
    file = written("")
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([("a", "b"), *rows])
    types, units = csv_files.scan(str(file), {})
    assert len(units) > 5
    (last,) = csv_files.read(units[-1], types)
    assert last.numbers[-1] == 500
    assert last.table.to_pydict()["a"] == [int(row[0]) for row in rows[last.numbers[0] - 1 :]]


FIELDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8) | st.sampled_from(
    ['"', '""', ",", "\n", "\r\n", "\r", ' "', "a,b", '"a"\n']
)
# With "\n" as its line terminator Python writes a lone "\r" without quotes, and nobody can read that back.
STYLES = [{"lineterminator": "\r\n"}, {"lineterminator": "\n", "quoting": csv.QUOTE_ALL}]


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(FIELDS, FIELDS, FIELDS), max_size=40), st.sampled_from(STYLES), st.integers(1, 60))
def test_whatever_python_writes_as_csv_is_read_back_field_by_field(tmp_path_factory, rows, style, block):
    file = tmp_path_factory.mktemp("csv") / "some.csv"
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, **style).writerows([("a", "b", "c"), *rows])
    usual = csv_rows.BLOCK_BYTES
    try:
        csv_rows.BLOCK_BYTES = block
        _, columns, bad = read(file, {"a": "text", "b": "text", "c": "text"})
    finally:
        csv_rows.BLOCK_BYTES = usual
    assert bad == []
    assert list(zip(*columns.values(), strict=True)) == [tuple(field or None for field in row) for row in rows]
