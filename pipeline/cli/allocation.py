"""Start a program with large pages, and with memory that goes back to the system: only its environment can say so.

Pages of 2 MB in place of 4 kB: a step that changes rows at random in a large table finds them sooner. Linux gives such
pages where a program asks for them, and glibc's allocator asks if a variable says so when the process starts
(https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html).

Memory from glibc alone: on processors for which TensorFlow uses oneDNN, it otherwise takes memory through a pool that
gives nothing back (docs/decisions/0027).

The Dockerfile sets both too.
"""

import os
import sys
from collections.abc import Mapping

TUNABLES = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb"
NO_POOL = "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"


def with_allocation(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables of a process that takes memory so, unless they say already how."""
    present = environment.get(TUNABLES, "")
    if HUGE_PAGES not in present:
        present = ":".join(filter(None, (present, f"{HUGE_PAGES}=1")))
    return {NO_POOL: "1", **environment, TUNABLES: present}


def restart_with_allocation() -> None:
    """Start this program again, in this process, if it does not take memory so: nothing may have begun yet."""
    environment = with_allocation(os.environ)
    if sys.platform == "linux" and environment != os.environ and not _is_debugged():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _is_debugged() -> bool:
    """Return whether a debugger follows this process, which would lose it."""
    if sys.gettrace() is not None:
        return True
    # From Python 3.12 on debuggers have another way (PEP 669).
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
