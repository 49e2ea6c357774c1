"""Names that several rooms share, and names of columns as TensorFlow, Keras, files and messages take them."""

import difflib
import keyword
import re
import shlex
from collections.abc import Iterable

# Environments of a schema: of the data, and of requests, which lack the label.
TRAINING, SERVING = "TRAINING", "SERVING"
# Longer names make file names that no filesystem takes.
LONGEST = 64


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Map each name to an identifier of ASCII letters, digits and "_": "Bill length (mm)" to "Bill_length__mm_".

    The results differ also when case is ignored, because they become names of files and TensorFlow operations. None is
    a Python keyword, which TensorFlow refuses as the name of an argument.
    """
    columns, renamed, used = sorted(names), dict[str, str](), set[str]()
    for name in filter(_is_plain, columns):
        if name.casefold() not in used:
            renamed[name] = name
            used.add(name.casefold())
    for name in columns:
        if name in renamed:
            continue
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)[:LONGEST]
        if not _is_plain(plain):
            plain = f"column_{plain}"
        number, renamed[name] = 2, plain
        while renamed[name].casefold() in used:
            renamed[name], number = f"{plain}_{number}", number + 1
        used.add(renamed[name].casefold())
    return renamed


def printable(text: str) -> str:
    """Return text from data for a terminal: what is not printable is escaped, an escape sequence above all."""
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


def shortened(names: Iterable[str], most: int = 30) -> str:
    """Return names for the end of a message: no more than ``most``, and the number of the others."""
    listed = list(names)
    return ", ".join(listed if len(listed) <= most else [*listed[:most], f"and {len(listed) - most} more"])


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of a message with the name that is most like one that does not exist, or ""."""
    names = list(names)
    same = [other for other in names if other.strip().casefold() == name.strip().casefold()]
    near = same or difflib.get_close_matches(name[:100], names, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def how_to_leave_out(*columns: str) -> str:
    """Return the remedy for columns that no step can use."""
    noun = "the column" if len(columns) == 1 else "these columns"
    flags = " ".join(f"--leave-out {shlex.quote(column)}" for column in columns)
    return f"leave {noun} out: Data(leave_out={columns!r}), or new {flags}"


def _is_plain(name: str) -> bool:
    return bool(re.fullmatch(rf"[A-Za-z][A-Za-z0-9_]{{0,{LONGEST - 1}}}", name)) and name not in _NOT_ARGUMENTS


_NOT_ARGUMENTS = {*keyword.kwlist, "self", "cls"}
