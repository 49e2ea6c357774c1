"""Write the page of a run: its parts, in the order in which a person wants to know them."""

import dataclasses
import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pipeline import filesystem
from pipeline.data.sample import count
from pipeline.errors import first_line
from pipeline.packaging.fingerprints import fingerprint_of
from pipeline.processes import Processes
from pipeline.progress import Progress
from pipeline.report import data, evaluation, overview, scoring, thumbnails, training
from pipeline.report.blocks import Block, Section, Text, write_page
from pipeline.report.finished_run import FinishedRun

logger = logging.getLogger("pipeline.report")

FILE = "report.html"
PROGRESS = Progress("report")


def write(run: FinishedRun, processes: Processes | None = None) -> Path:
    """Write ``report.html`` into the run's folder, whole or not at all; return its path.

    A part that cannot be made, because an artifact is gone say, gives the reason in its place.
    """
    scores: dict[str, Any] = {}
    if run.results:
        PROGRESS.tell("scoring the test split")
        try:
            scores = _scores(run)
        except Exception as error:  # a model of another kind, or deleted by hand: the page says so and has the rest
            logger.warning("The model could not be scored.", exc_info=error)
    importance = scores.get("importance", {})
    parts: dict[str, tuple[str, Callable[[], list[Block]]]] = {
        "headline": ("", lambda: overview.headline(run)),
        "verdict": ("Verdict", lambda: overview.verdict(run)),
        "graph": ("Graph", lambda: overview.graph(run)),
        "evaluation": ("Evaluation", lambda: evaluation.evaluation(run, scores)),
        "importance": ("Which features matter", lambda: evaluation.importance(run, scores)),
        "contributions": ("What the answers depend on", lambda: evaluation.contributions(run)),
        "wrong": ("Most wrongly predicted", lambda: evaluation.wrong(run, scores)),
        "training": ("Training", lambda: training.training(run)),
        "tuning": ("Tuning", lambda: training.tuning(run)),
        "data": ("Data", lambda: drawn.result() if drawn else data.section(run, importance)),
    }
    if run.record.cost:
        parts["costs"] = ("Costs", lambda: overview.costs(run))
    if run.config.data.images:
        parts["images"] = ("Images", lambda: thumbnails.contact_sheet(run))
    parts["reproducibility"] = ("Reproducibility", lambda: overview.reproducibility(run))
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(processes.run, data.section, run, importance, name="report") if processes else None
        try:
            sections = [Section(name, title, _made(title or name, make)) for name, (title, make) in parts.items()]
        except BaseException:  # Ctrl-C, which does not wait for the charts
            if processes:
                processes.kill_all(["report"])
            raise
    return write_page(run.folder / FILE, f"{run.config.name}, run {run.record.run}: {run.record.verdict}", sections)


def _made(title: str, make: Callable[[], list[Block]]) -> list[Block]:
    PROGRESS.tell(f"writing {title}")
    try:
        return make()
    except Exception as error:  # whatever lies on the disk may have been changed or deleted by hand
        logger.warning("%s is missing in the report.", title, exc_info=error)
        reason = f"{type(error).__name__}: {first_line(error)[:300]}"
        return [Text(f"This part could not be made: {reason}. The log has more.", "bad")]


def _scores(run: FinishedRun) -> dict[str, Any]:
    """Return the result of ``scoring.score``, an earlier one if nothing has changed since; empty without a model.

    It stays in the folder of the run, for the page and for later runs.
    """
    config, folder = run.config, run.folder
    examples, model = run.folder_of("ExampleGen", "examples"), run.folder_of("Trainer", "model")
    if examples is None or model is None:
        return {}
    baseline = run.folder_of("LatestBlessedModel", "model") or run.folder_of("BaselineModel", "result")
    image = config.data.images.column if config.data.images else None
    threshold = str(config.evaluation.threshold)
    decisive = [examples, model, baseline, *dataclasses.astuple(config.label), threshold, image]
    decisive += [config.evaluation.logits, fingerprint_of(Path(scoring.__file__))]
    name = f"scores-{hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:16]}.json"
    file = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    earlier = next(folder.parent.glob(f"*/{name}"), None)
    if earlier is None:
        models = f"{model}/Format-Serving", baseline and f"{baseline}/Format-Serving"
        total = count(examples)["test"]
        scores = scoring.score(examples, *models, config.label, config.evaluation, total, image)
        filesystem.write(file, json.dumps(scores))
    elif earlier != file:
        shutil.copy(earlier, file)
    return dict(json.loads(file.read_text(encoding="utf-8")))
