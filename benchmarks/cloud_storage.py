"""The default run on gs://, as the job is compiled for Vertex AI, against the local run: AUC, and requests by step.

    python benchmarks/cloud_storage.py

Runs every task of the default config against a local Cloud Storage server at Google's addresses. The clients of
TensorFlow, Beam and Google therefore behave as on Vertex AI. Requires Linux with user namespaces. Exits 1 when the AUC
differs from the last local run (make run), or when Transform sends more than 120 requests.
"""

import sys
import tempfile
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pipeline.quality.tfma_config import read_metrics  # noqa: E402
from tests.vertex.rehearsal.on_cloud_storage import rehearse, table  # noqa: E402

MOST_OF_TRANSFORM = 120
DIGITS = 4


def main() -> int:
    """Print the table; return the exit code."""
    evaluations = (ROOT / "output/flights/artifacts/Evaluator/evaluation").glob("[0-9]*")
    newest = max(evaluations, key=lambda path: int(path.name), default=None)
    if newest is None:
        sys.exit("no local run: make run first")
    local = read_metrics(str(newest))["overall"]["auc"]
    with tempfile.TemporaryDirectory() as out:
        try:
            rehearsal, text = rehearse(ROOT / "configs/flights.py", Path(out))
        except RuntimeError as error:
            sys.exit(str(error))
        if rehearsal.error:
            sys.exit(f"{text}\n{rehearsal.error}")
    console = Console(width=140)
    console.print(table(rehearsal))
    auc, requests = rehearsal.metrics["auc"], sum(rehearsal.requests["Transform"].values())
    passed = round(auc, DIGITS) == round(local, DIGITS) and requests <= MOST_OF_TRANSFORM
    console.print(
        f"must reach: the AUC of the local run ({local:.{DIGITS}f}; {auc:.{DIGITS}f} on gs://) and at most "
        f"{MOST_OF_TRANSFORM} requests of Transform ({requests}): {'reached' if passed else 'misses its target'}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
