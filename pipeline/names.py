"""Columns' names as TensorFlow, Keras and files take them; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable


def plain_names(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """A name of letters, digits and "_" for each name, all different; one that is so already stays.

    Args:
        names: Such as the headers of a CSV file: "Bill length (mm)" becomes "Bill_length__mm_".
        taken: What none of them may become.
    """
    columns, used = sorted(names), set(taken)
    found = {name: name for name in columns if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and name not in used}
    used |= set(found)
    for name in columns:
        if name in found:
            continue
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
        plain = plain if re.match("[A-Za-z]", plain) else f"column_{plain}"
        number, found[name] = 2, plain
        while found[name] in used:
            found[name], number = f"{plain}_{number}", number + 1
        used.add(found[name])
    return found
