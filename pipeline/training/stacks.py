"""Look at the Python stacks of a training now and then: which Python code runs where none should take long.

A profiler that samples costs nothing between its looks, and sees what no clock around a compiled step can: functions
that the step calls back in Python, and tf.functions that are traced again.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from types import CodeType, FrameType

# Kinds of Python code that a sample tells apart.
TRACING, HOST_FUNCTION, CALLBACK = "tracing", "host function", "callback"
# Where TensorFlow 2.21 traces a tf.function, and where it calls the function of a tf.py_function or tf.numpy_function;
# where Keras 3 calls callbacks. tests/training/test_diagnosis.py fails when these move.
TRACES = ("tensorflow/python/framework/func_graph.py", "func_graph_from_py_func")
CALLS_HOST = ("tensorflow/python/ops/script_ops.py", "__call__")
CALLS_CALLBACK = "keras/src/callbacks/callback_list.py"
STANDARD_LIBRARY = os.path.dirname(os.__file__)
# Names that AutoGraph gives to the functions that it has rewritten, and its files.
AUTOGRAPH_NAME, AUTOGRAPH_FILE = "tf__", "__autograph_generated_file"


class StackSamples:
    """Counts of what the Python stacks show, by part of the training.

    Attributes:
        of_part: Looks while each part ran.
        found: Looks by (part, kind, name of the code).
    """

    def __init__(self) -> None:
        self.of_part: Counter[str] = Counter()
        self.found: Counter[tuple[str, str, str]] = Counter()
        self._training = threading.get_ident()

    def look(self, part: str) -> None:
        """Count one look at the stacks of all threads while a part runs."""
        self.of_part[part] += 1
        kinds: dict[str, str] = {}
        for thread, frame in sys._current_frames().items():
            if thread == threading.get_ident():
                continue
            found = _kind_of(list(_codes(frame)), in_training=thread == self._training)
            if found:
                kinds.setdefault(*found)
        for kind, name in kinds.items():
            self.found[part, kind, name] += 1

    def share(self, part: str, kind: str) -> tuple[float, str]:
        """Return the share of a part's looks that showed a kind of code, and the name seen most; "": none is known."""
        names = self._names(part, kind)
        share = names.total() / self.of_part[part] if names else 0.0
        names.pop("", None)
        return share, names.most_common(1)[0][0] if names else ""

    def most_seen(self, part: str, kind: str) -> tuple[float, str]:
        """Return the name seen most in a part, and its share of all looks of that kind; (0, "") if there was none."""
        names = self._names(part, kind)
        if not names:
            return 0.0, ""
        name, count = names.most_common(1)[0]
        return count / names.total(), name

    def _names(self, part: str, kind: str) -> Counter[str]:
        names: Counter[str] = Counter()
        for (of, kind_of, name), count in self.found.items():
            if (of, kind_of) == (part, kind):
                names[name] += count
        return names

    def state(self) -> dict[str, list[list[str | int]]]:
        """Return the counts for a checkpoint."""
        return {
            "of_part": [[part, count] for part, count in self.of_part.items()],
            "found": [[*key, count] for key, count in self.found.items()],
        }

    def add(self, state: dict[str, list[list[str | int]]]) -> None:
        """Add the counts of the same training in a process before this one."""
        for part, count in state["of_part"]:
            self.of_part[str(part)] += int(count)
        for part, kind, name, count in state["found"]:
            self.found[str(part), str(kind), str(name)] += int(count)


def _codes(frame: FrameType | None) -> Iterator[CodeType]:
    """Yield the code of a stack, the innermost first."""
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _kind_of(codes: list[CodeType], in_training: bool) -> tuple[str, str] | None:
    """Return kind and name of what a stack shows, the innermost code first; None where it shows nothing of these.

    Args:
        codes: Of the stack.
        in_training: Whether it is the thread that trains.
    """
    for place, code in enumerate(codes):
        if _is(code, *CALLS_HOST):
            return HOST_FUNCTION, _name_of(codes[:place])
        if in_training and _is(code, *TRACES):
            return TRACING, _name_of(codes[:place])
        if in_training and code.co_filename.endswith(CALLS_CALLBACK) and place:
            return CALLBACK, codes[place - 1].co_qualname.rsplit("<locals>.", 1)[-1]
    return None


def _is(code: CodeType, file: str, name: str) -> bool:
    return code.co_name == name and code.co_filename.endswith(file)


def _name_of(codes: list[CodeType]) -> str:
    """Return the name of the outermost function that is of no installed package; "" where all are of such."""
    own = [code for code in codes if _is_own(code.co_filename)]
    if not own:
        return ""
    name = own[-1].co_qualname.rsplit(".", 1)[-1].removeprefix(AUTOGRAPH_NAME)
    file = os.path.basename(own[-1].co_filename)
    return name if file.startswith(AUTOGRAPH_FILE) else f"{name} ({file}, line {own[-1].co_firstlineno})"


def _is_own(file: str) -> bool:
    return not file.startswith(("<", STANDARD_LIBRARY)) and "site-packages" not in file
