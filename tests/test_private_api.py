"""Only pipeline/fast patches TFX, Beam, TFMA, TFDV and tf.Transform or calls their private API."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = (
    *("apache_beam", "tensorflow_data_validation", "tensorflow_model_analysis", "tensorflow_transform"),
    *("tfx", "tfx_bsl"),
)
# Protected members of TFX's executors, which executors outside the package use, with the reason.
PROTECTED = {
    "_make_beam_pipeline": "how every Beam executor of TFX makes a pipeline with the options of the target",
    "_beam_pipeline_args": "the options of the target; the wheel with the user's code is added for other machines",
    "_context": "the id of the run, for the manifest of a pushed version",
    "_extra_flags": "the values of a trial, which Vertex AI appends to the command",
    "_GetFnArgs": "TFX's Trainer leaves train_steps empty, and stock modules then train for ever",
    "_MarkPushed": "a task that starts again marks its output as TFX's Pusher does",
}
# A run that reuses changed files is wrong, with either engine, and TFX's cache has no way to check them.
ALLOWED = {"pipeline/runs/reuse.py": ["patch of artifact_utils"]}


def private_uses(source: str) -> set[str]:
    """Return the private names of the libraries that a module imports, reads or replaces."""
    tree = ast.parse(source)
    bound: dict[str, str] = {}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in LIBRARIES:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found |= {f"{node.module}.{alias.name}"} if alias.name.startswith("_") else set()
        elif isinstance(node, ast.Import):
            bound |= {
                alias.asname or alias.name.split(".")[0]: alias.name
                for alias in node.names
                if alias.name.split(".")[0] in LIBRARIES
            }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            name = ast.unparse(node)
            if name.split(".")[0] in bound or (name.startswith("self.") and node.attr in TFX_MEMBERS):
                found.add(name)
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {
                f"{ast.unparse(target)} = ..."
                for target in targets
                if isinstance(target, ast.Attribute) and ast.unparse(target).split(".")[0] in bound
            }
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("patch.object"):
            patched = ast.unparse(node.args[0])
            found |= {f"patch of {patched}"} if patched.split(".")[0] in bound else set()
    return found


def tfx_members() -> set[str]:
    """Return the names of private members of TFX's executors, which subclasses reach by self."""
    from tfx.components.evaluator.executor import Executor as Evaluator
    from tfx.components.pusher.executor import Executor as Pusher
    from tfx.components.trainer.executor import GenericExecutor
    from tfx.components.transform.executor import Executor as Transform

    made = {name for kind in (Evaluator, Pusher, GenericExecutor, Transform) for name in dir(kind)}
    made |= {"_beam_pipeline_args", "_context", "_extra_flags", "_make_beam_pipeline_fn", "_pip_dependencies"}
    return {name for name in made if name.startswith("_") and not name.startswith("__")}


TFX_MEMBERS = tfx_members()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from tfx.utils import io_utils\nio_utils.read()", set()),
        ("import tfx.utils\ntfx.utils._read()", {"tfx.utils._read"}),
        ("from apache_beam import _x", {"apache_beam._x"}),
        ("import apache_beam as beam\nbeam.x.y = 1", {"beam.x.y = ..."}),
        ("from tfx.types import a\nmock.patch.object(a, 'b')", {"patch of a"}),
        ("class A:\n    def f(self):\n        self._context", {"self._context"}),
        ("class A:\n    def f(self):\n        self._mine", set()),
    ],
)
def test_private_uses_are_found(source, expected):
    assert private_uses(source) == expected


def test_only_the_fast_engine_uses_private_api():
    found = {}
    for file in sorted((ROOT / "pipeline").rglob("*.py")):
        uses = private_uses(file.read_text(encoding="utf-8"))
        uses = {use for use in uses if use.removeprefix("self.") not in PROTECTED}
        if uses and "fast" not in file.relative_to(ROOT).parts:
            found[str(file.relative_to(ROOT))] = sorted(uses)
    assert found == ALLOWED
