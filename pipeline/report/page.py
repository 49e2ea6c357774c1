"""Writes the page: what each part needs, in the order in which a person wants to know it."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2

from pipeline.packaging.fingerprints import fingerprint_of
from pipeline.report import data, evaluation, overview, scoring, training
from pipeline.report.blocks import Block, Section, Text
from pipeline.report.run import Ended

logger = logging.getLogger("pipeline.report")

FILE = "report.html"


def write(ended: Ended) -> Path:
    """Writes ``report.html`` into the run's folder, whole or not at all; returns it.

    A part that cannot be made, because an artifact is gone say, stands there with the reason.
    """
    scores = _scores(ended)
    parts: dict[str, tuple[str, Callable[[], list[Block]]]] = {
        "verdict": ("Verdict", lambda: overview.verdict(ended)),
        "graph": ("Graph", lambda: overview.graph(ended)),
        "evaluation": ("Evaluation", lambda: evaluation.evaluation(ended, scores)),
        "importance": ("Which features matter", lambda: evaluation.importance(ended, scores)),
        "wrong": ("Most wrongly predicted", lambda: evaluation.wrong(ended, scores)),
        "training": ("Training", lambda: training.training(ended)),
        "tuning": ("Tuning", lambda: training.tuning(ended)),
        "data": ("Data", lambda: data.section(ended, scores.get("importance", {}))),
        "reproducibility": ("Reproducibility", lambda: overview.reproducibility(ended)),
    }
    sections = [Section(name, title, _made(title, make)) for name, (title, make) in parts.items()]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    title = f"{ended.config.name}, run {ended.record.run}: {ended.record.verdict}"
    html = environment.get_template("page.html.j2").render(title=title, sections=sections)
    ended.folder.mkdir(parents=True, exist_ok=True)
    partial = ended.folder / f"{FILE}.partial"
    partial.write_text(html, encoding="utf-8", errors="replace")
    return partial.replace(ended.folder / FILE)


def _made(title: str, make: Callable[[], list[Block]]) -> list[Block]:
    try:
        return make()
    except Exception as error:  # whatever lies on the disk may have been changed or deleted by hand
        logger.warning("%s is missing in the report.", title, exc_info=error)
        first = (str(error).strip().splitlines() or [""])[0][:300]
        return [Text(f"This part could not be made: {type(error).__name__}: {first}. The log has more.", "bad")]


def _scores(ended: Ended) -> dict[str, Any]:
    """What ``scoring.score`` says, of an earlier run if nothing has changed since; empty where there is no model."""
    examples, model = ended.artifact("ExampleGen", "examples"), ended.artifact("Trainer", "model")
    if ended.results is None or examples is None or model is None:
        return {}
    baseline = next((one for step in ("LatestBlessedModel", "BaselineModel") if (one := _model_of(ended, step))), None)
    config = ended.config
    decides = [examples.uri, model.uri, baseline, config.label.name, config.label.classes, config.evaluation.threshold]
    decides.append(config.evaluation.logits)
    decides.append(fingerprint_of(Path(scoring.__file__)))
    name = f"scores-{hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]}.json"
    file = ended.folder / name
    try:
        ended.folder.mkdir(parents=True, exist_ok=True)
        earlier = next(ended.folder.parent.glob(f"*/{name}"), None)
        if earlier is None:
            total = int(ended.results.metrics["overall"]["example_count"])
            scores = scoring.score(
                examples.uri,
                f"{model.uri}/Format-Serving",
                baseline and f"{baseline}/Format-Serving",
                config.label.name,
                len(config.label.classes),
                config.evaluation.threshold,
                total,
                config.evaluation.logits,
            )
            file.write_text(json.dumps(scores), encoding="utf-8")
        elif earlier != file:
            shutil.copy(earlier, file)
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except Exception as error:  # a model of another kind, or deleted by hand: the page says so and has the rest
        logger.warning("The model could not be asked.", exc_info=error)
        return {}


def _model_of(ended: Ended, step: str) -> str | None:
    return ended.folder_of(step, "model") or ended.folder_of(step, "result")
