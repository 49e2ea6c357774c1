"""The system's Chromium, and runs to make pages of."""

import datetime
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pandas as pd
import pytest

from tests.programs import require

ROOT = Path(__file__).resolve().parent.parent.parent


# Of a session it would leave Playwright's event loop running under the tests of other files, whose asyncio.run fails.
@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Chromium without a window: the system's, or the one that the variable CHROMIUM names."""
    from playwright.sync_api import sync_playwright

    program = os.environ.get("CHROMIUM") or require("chromium", "chromium", "chromium-browser", "google-chrome")
    with sync_playwright() as playwright:
        # Its sandbox needs rights that containers rarely give; the page is ours.
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def described(tmp_path) -> Callable:
    """A run that ended in DataGate, of a data frame a split."""

    def make(frames: Mapping[str, pd.DataFrame], name: str = "a-run"):
        import tensorflow_data_validation as tfdv
        from tfx.types import artifact_utils, standard_artifacts

        from pipeline.report.finished_run import FinishedRun
        from pipeline.runs import record
        from pipeline.runs.step import Step
        from pipeline.settings.config import load_config

        artifact = standard_artifacts.ExampleStatistics()
        artifact.uri = str(tmp_path / name / "statistics")
        artifact.split_names = artifact_utils.encode_split_names(list(frames))
        for split, frame in frames.items():
            file = tmp_path / name / "statistics" / f"Split-{split}" / "FeatureStats.pb"
            file.parent.mkdir(parents=True)
            file.write_bytes(tfdv.generate_statistics_from_dataframe(frame).SerializeToString())
        config = load_config(ROOT / "configs/flights.py")
        step = Step("StatisticsGen", "ran", 1.0, {"statistics": [artifact]}, None)
        outcome = {"failed": ["DataGate failed: 1 finding stops the run: <b>bold</b> in train"]}
        failed = ("DataGate", 0.5)
        now = datetime.datetime.now()
        kept = record.make(name, ["python", "x.py"], config, now, 1, outcome, [step], failed)
        return FinishedRun(config, [step], tmp_path / "runs" / name, kept, failed, None)

    return make
