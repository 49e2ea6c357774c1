"""Cells and names that try to run as code, as HTML or on a terminal."""

from tests.gauntlet.tables.table import MARKER, TABLES, Content, named, table


def _code(start: str, end: str) -> str:
    return f'{start}__import__("os").system("touch {MARKER}"){end}'


@table("kind of mail", "several", reach=0.6)
def hostile_names() -> Content:
    """Code in names of columns, classes and categories."""
    names = [_code("'); ", " #"), _code('"""\n', '\n"""'), _code("{", "}"), _code('"+', '+"'), f"$(touch {MARKER})"]
    names += [f"`touch {MARKER}`", "../../etc/passwd", _code("', 0)] + [", "] #"), _code("\\", "\\")]
    classes = [_code("spam\n  x=", ",\n  #"), _code('ham"""', "#"), _code("'); ", " #")]
    frame = named(names, "kind of mail", classes, rows=1500)
    category = frame.columns[2]
    return frame.assign(**{category: frame[category].replace({"low": _code("'''\n", "\n#"), "mid": _code("\\'", "")})})


@table('"""; __import__("os").system("touch ' + str(MARKER) + '") #', "two")
def hostile_label() -> Content:
    """Code in the name of the label."""
    return named(["one", "two", "three"], TABLES["hostile_label"].label)


SCRIPT, ESCAPE = "<script>alert(1)</script>", "\x1b]0;owned\x07\x1b[31m"


@table("<img src=x onerror=alert(1)>", "two", not_in_report=(SCRIPT, "<img src=x"), not_on_terminal=(ESCAPE,))
def hostile_pages() -> Content:
    """HTML and escapes of terminals in names, classes and values."""
    names = [SCRIPT, f"{ESCAPE}red", "a&amp;b", "</script></style>"]
    frame = named(names, "<img src=x onerror=alert(1)>", [f"no{ESCAPE}", f"yes{SCRIPT}"])
    return frame.assign(**{"a&amp;b": frame["a&amp;b"].replace({"low": SCRIPT, "mid": ESCAPE})})
