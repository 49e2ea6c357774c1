"""Explanations of answers: a contribution for each column."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.model.export_format import AVERAGE, COLUMNS, CONTRIBUTIONS, ERRORS, EXPLAIN_SIGNATURE, EXPLAINING
from pipeline.model.signatures import Model, Signature

# Rows in a request: each asks the model some thousand times.
MOST_ROWS = 100
# Of all requests that wait.
MOST_WAITING = 500
# Of the columns of a file.
PREFIXES = {"contribution": CONTRIBUTIONS, "error": ERRORS}


def why_none(model: Model) -> str:
    """Return why a model does not explain its answers; empty if it does."""
    if model.explains:
        return ""
    if EXPLAIN_SIGNATURE in model.signatures:
        lacking = sorted({*EXPLAINING} - model.signatures[EXPLAIN_SIGNATURE].outputs.keys())
        return (
            f"the signature {EXPLAIN_SIGNATURE!r} of this model explains in another way: it does not answer "
            f"{', '.join(lacking)}; ask for it by signature_name"
        )
    return (
        f"this model has no signature {EXPLAIN_SIGNATURE!r}: it was exported by an earlier release or by a module file "
        "that does not call training.run, it takes images or decodes its features, training.explain_rows is 0, or its "
        "transform graph has no background rows, being of an earlier release or of large rows only (docs/serving.md)"
    )


def split(outputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the answers among the outputs of the signature, and the explanations."""
    answers = {name: values for name, values in outputs.items() if name not in EXPLAINING}
    return answers, {name: outputs[name] for name in EXPLAINING}


def by_row(outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return an object for each row of the outputs of the signature.

    ``{"answer": as without explanation, "average": 0.2, "contributions": {"distance": 0.1, ...}, "errors": {...}}``
    """
    answers, explaining = split(outputs)
    only = next(iter(answers.values())) if len(answers) == 1 else None
    found = []
    for row, columns in enumerate(explaining[COLUMNS]):
        names = [name.decode() for name in columns]
        found.append(
            {
                "answer": {name: values[row] for name, values in answers.items()} if only is None else only[row],
                AVERAGE: explaining[AVERAGE][row],
                CONTRIBUTIONS: dict(zip(names, explaining[CONTRIBUTIONS][row], strict=True)),
                ERRORS: dict(zip(names, explaining[ERRORS][row], strict=True)),
            }
        )
    return found


def written(signature: Signature) -> list[str]:
    """Return the names that ``by_column`` returns."""
    answers = sorted(signature.outputs.keys() - {*EXPLAINING})
    return [*answers, AVERAGE, *(f"{prefix}_{name}" for prefix in PREFIXES for name in signature.inputs)]


def by_column(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of the signature as columns of a file, such as ``contribution_distance``."""
    answers, explaining = split(outputs)
    columns = dict(sorted(answers.items())) | {AVERAGE: explaining[AVERAGE]}
    names = [name.decode() for name in explaining[COLUMNS][0]] if len(explaining[COLUMNS]) else []
    for prefix, output in PREFIXES.items():
        columns |= {f"{prefix}_{name}": explaining[output][:, place] for place, name in enumerate(names)}
    return columns
