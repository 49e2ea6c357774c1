"""Compare a rehearsal with a local run: metrics, and which artifacts are the same byte for byte."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.filesystem import digests
from pipeline.quality.tfma_config import read_metrics
from pipeline.runs.step import Step


def differences(steps: Mapping[str, Step], artifacts: Path) -> Iterator[str]:
    """Yield sentences about the differences from the last local run; none if there was none."""
    evaluation = _newest(artifacts / "Evaluator/evaluation")
    if evaluation is None or not steps["Evaluator"].outputs.get("evaluation"):
        return
    local = read_metrics(str(evaluation))["overall"]
    rehearsed = read_metrics(steps["Evaluator"].outputs["evaluation"][0].uri)["overall"]
    same = []
    for name in sorted(rehearsed.keys() | local.keys()):
        a, b = local.get(name, math.nan), rehearsed.get(name, math.nan)
        if f"{a:.4f}" == f"{b:.4f}":
            same.append(f"{name} {b:.4f}")
        else:
            yield f"{name}: {a:.4f} there, {b:.4f} here, {b - a:+.4f}"
    if same:
        yield f"the same: {', '.join(same)}"
    equal: list[str] = []
    other: list[str] = []
    for step in steps.values():
        if step.state not in ("ran", "cached"):
            continue
        for key, (artifact, *_) in step.outputs.items():
            known = _newest(artifacts / step.name / key)
            if known is None:
                yield f"{step.name} made {key} here only"
            else:
                is_equal = digests(known) == digests(artifact.uri)
                (equal if is_equal else other).append(f"{step.name}.{key}")
    for step_folder in sorted(artifacts.iterdir()):
        if step_folder.name not in steps and not step_folder.name.startswith("_"):
            yield f"{step_folder.name} ran there only"
    if equal:
        yield f"the same byte for byte: {', '.join(equal)}"
    if other:
        yield f"not the same byte for byte: {', '.join(other)}"


def _newest(folder: Path) -> Path | None:
    """Return the artifact of the latest execution; TFX names them by numbers."""
    numbered = [path for path in folder.glob("*") if path.name.isdecimal()]
    return max(numbered, key=lambda path: int(path.name), default=None)
