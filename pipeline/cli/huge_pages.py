"""Memory in pages of 2 MB in place of 4 kB: a step that changes rows at random in a large table finds them sooner.

Linux gives such pages where a program asks for them, and glibc's allocator asks if a variable says so when the process
starts (https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html). The Dockerfile sets it too.
"""

import os
import sys
from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables of a process that asks for large pages, unless they say already whether it does."""
    present = environment.get(VARIABLE, "")
    if TUNABLE in present:
        return dict(environment)
    return {**environment, VARIABLE: ":".join(filter(None, (present, f"{TUNABLE}=1")))}


def restart_with_huge_pages() -> None:
    """Start this program again, in this process, if it does not ask for large pages: nothing may have begun yet."""
    environment = with_huge_pages(os.environ)
    if sys.platform == "linux" and environment != os.environ and not _is_debugged():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _is_debugged() -> bool:
    """Return whether a debugger follows this process, which would lose it."""
    if sys.gettrace() is not None:
        return True
    # From Python 3.12 on debuggers have another way (PEP 669).
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
