"""The questions of the model check themselves, asked of a model that is right for every kind of column."""

import base64
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pipeline.components import model_check, model_probe
from pipeline.training.explanations import Explainer

pytestmark = pytest.mark.slow

TRACT = 17031081403  # more digits than float32 has
SPEC = {
    "tract": tf.io.VarLenFeature(tf.int64),
    "rooms": tf.io.FixedLenFeature([1], tf.int64),
    "price": tf.io.VarLenFeature(tf.float32),
    "area": tf.io.FixedLenFeature([1], tf.float32),
    "kind": tf.io.VarLenFeature(tf.string),
    "zone": tf.io.FixedLenFeature([1], tf.string),
    "ways": tf.io.FixedLenFeature([2], tf.string),
}
ROW_TYPES = {
    "tract": tf.float64,
    "rooms": tf.int64,
    "price": tf.float32,
    "area": tf.float32,
    "kind": tf.string,
    "zone": tf.string,
    "ways": tf.string,
}


def export(folder: Path) -> Path:
    """Write a model whose answer depends on the last digit of every column."""
    server = tf.Module()

    def answer(raw):
        dense = {name: tf.reshape(raw[name], [-1]) for name in ("rooms", "area", "zone")}
        for name, missing in (("tract", 0), ("price", 0.0), ("kind", "")):
            dense[name] = tf.reshape(tf.sparse.to_dense(raw[name], missing), [-1])
        ways = tf.strings.reduce_join(raw["ways"], axis=1, separator="/")
        words = tf.strings.to_hash_bucket_fast(tf.strings.join([dense["kind"], dense["zone"], ways], "/"), 7)
        whole = tf.math.floormod(dense["tract"], 1000) + dense["rooms"] + words
        return {"prediction": tf.cast(whole, tf.float32) + dense["price"] + dense["area"]}

    shapes = {name: [None, 2] if name == "ways" else [None] for name in SPEC}

    @tf.function(
        input_signature=[{name: tf.TensorSpec(shapes[name], kind, name=name) for name, kind in ROW_TYPES.items()}]
    )
    def rows(given):
        parsed = {}
        for name, spec in SPEC.items():
            value = given[name]
            if isinstance(spec, tf.io.FixedLenFeature):
                parsed[name] = tf.reshape(value, [-1, *spec.shape])
                continue
            present = value != "" if value.dtype == tf.string else ~tf.math.is_nan(value)
            # One value in the first row at least, so that the dense form has its column.
            filled = tf.where(present, value, tf.zeros_like(value))
            parsed[name] = tf.sparse.from_dense(tf.reshape(tf.cast(filled, spec.dtype), [-1, 1]))
        return answer(parsed)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def predict(examples):
        parsed = tf.io.parse_example(examples, SPEC)
        shaped = {
            name: tf.SparseTensor(one.indices, one.values, [tf.size(examples, tf.int64), 1])
            if isinstance(one, tf.SparseTensor)
            else one
            for name, one in parsed.items()
        }
        return answer(shaped)

    tf.saved_model.save(server, str(folder), signatures={"serving_default": rows, "predict": predict})
    return folder


def example(row: int) -> bytes:
    """Return a row whose integers, floats and texts may be missing."""
    values = {
        "tract": tf.train.Feature(int64_list=tf.train.Int64List(value=[TRACT + row] if row % 3 else [])),
        "rooms": tf.train.Feature(int64_list=tf.train.Int64List(value=[row])),
        "price": tf.train.Feature(float_list=tf.train.FloatList(value=[row / 7] if row % 4 else [])),
        "area": tf.train.Feature(float_list=tf.train.FloatList(value=[row / 3])),
        "kind": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"\xff\x00"] if row % 5 else [])),
        "zone": tf.train.Feature(bytes_list=tf.train.BytesList(value=["größe".encode()])),
        "ways": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"there", b"%d" % (row % 2)])),
    }
    empty = {name for name, one in values.items() if not one.ListFields()[0][1].value}
    return tf.train.Example(
        features=tf.train.Features(feature={name: one for name, one in values.items() if name not in empty})
    ).SerializeToString()


def request(model: Path, rows: Sequence[bytes], **more: Any) -> dict[str, Any]:
    """Return a request to probe a model of numbers; ``more`` of it, or other than here."""
    return {
        "label": "label",
        "classes": [],
        "threshold": 0.5,
        "tolerance": 1e-6,
        "timeout": 300,
        "answer": "prediction",
        "model": str(model),
        "examples": [base64.b64encode(row).decode() for row in rows],
        "training": None,
        "optional": [],
        "text": [],
        "columns": {"x": "x"},
        **more,
    }


def test_a_model_that_is_right_for_every_dtype_has_no_problem(tmp_path):
    records = [example(row) for row in range(1, 41)]
    loaded = tf.saved_model.load(str(export(tmp_path / "model")))
    answers = loaded.signatures["predict"](examples=tf.constant(records))["prediction"].numpy()
    assert len(np.unique(answers)) > 30

    report = model_check.run_probe(
        request(
            tmp_path / "model",
            records,
            training=[float(one) for one in answers],
            optional=["kind", "price", "tract"],
            text=["kind", "ways", "zone"],
            columns={name: name for name in SPEC},
        )
    )

    assert report["problems"] == []
    assert {row["instance"].get("tract", TRACT) - TRACT for row in report["rows"]} > {1, 2, 4, 5}


def stock(folder: Path, answer: Callable[[Any], Any]) -> Path:
    """Write a model with the signatures of TFX's examples; one of them needs the label."""
    server = tf.Module()
    spec = {"x": tf.io.FixedLenFeature([1], tf.float32)}
    of_text = tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])

    @of_text
    def serve(examples):
        found = answer(tf.io.parse_example(examples, spec)["x"])
        return found if isinstance(found, dict) else {"outputs": found}

    @of_text
    def transform_features(examples):
        parsed = tf.io.parse_example(examples, {**spec, "label": tf.io.FixedLenFeature([1], tf.int64)})
        return {"x_xf": parsed["x"], "label_xf": parsed["label"]}

    signatures = {"serving_default": serve, "transform_features": transform_features}
    tf.saved_model.save(server, str(folder), signatures=signatures)
    return folder


def ask_stock(folder: Path, classes: list[str], logits: bool = False) -> dict[str, Any]:
    """Ask it about rows with x from -5 to 4."""
    rows = [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=[x])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[x > 0])),
                }
            )
        ).SerializeToString()
        for x in range(-5, 5)
    ]
    answer = {0: "prediction", 2: "probability"}.get(len(classes), "probabilities")
    return model_check.run_probe(request(folder, rows, classes=classes, logits=logits, tolerance=1e-3, answer=answer))


LARGE = 1e7


def explaining(folder: Path, wrong: float = 0.0) -> Path:
    """Write a model of large labels with explanations; its answer to x = 0 is far below the average."""
    spec = {name: tf.TensorSpec([None], tf.float32, name=name) for name in ("x", "unread")}
    answer = tf.function(lambda given: {"prediction": LARGE * given["x"]}, input_signature=[spec])
    rows = tf.random.Generator.from_seed(0)
    explainer = Explainer(
        answer, "prediction", {name: 3 + rows.normal([64]) for name in spec}, {n: n for n in spec}, spec
    )

    @tf.function(input_signature=[spec], autograph=False)
    def explain(given):
        outputs = explainer(given)
        return {**outputs, "contributions": outputs["contributions"] * (1 + wrong)}

    server = tf.Module()
    server.explainer = explainer
    tf.saved_model.save(server, str(folder), signatures={"serving_default": answer, "explain": explain})
    return folder


def request_to_explain(model: Path) -> dict:
    rows = []
    for place in range(120):
        values = {"x": place % 2 * 1e-3, "unread": 1.0}
        feature = {name: tf.train.Feature(float_list=tf.train.FloatList(value=[one])) for name, one in values.items()}
        rows.append(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    return request(model, rows, columns={"x": "x", "unread": "unread"})


@pytest.mark.parametrize("wrong", [0.0, 0.01])
def test_contributions_to_large_answers_are_added_as_exactly_as_their_size_allows(tmp_path, wrong, monkeypatch):
    monkeypatch.setattr(model_probe, "EXPLAINED_SECONDS", 3600.0)  # all rows, on a busy machine too
    report = model_probe.ModelProbe(request_to_explain(explaining(tmp_path / "model", wrong))).run()
    if wrong:
        (problem,) = report["problems"]
        assert re.fullmatch(r"signature explain answers contributions that sum up to \S+, not to 0", problem)
        assert report["explained"] == {}
        return
    assert report["problems"] == []
    assert report["explained"]["rows"] == 40  # every third of 120
    assert report["explained"]["columns"]["unread"] == [0, 0]
    mean, error = report["explained"]["columns"]["x"]
    assert mean == pytest.approx(3 * LARGE, rel=0.1)
    assert 0 < error < 0.01 * LARGE
    assert report["facts"]["explain_ms_batch_1"] > 0


# The first call prepares the graph, for longer than all others may take.
@pytest.mark.parametrize(("least", "rows"), [(5, 5), (1, 2)], ids=["at least so many", "the first call does not count"])
def test_of_a_slow_model_few_rows_are_explained_but_not_one(tmp_path, monkeypatch, least, rows):
    monkeypatch.setattr(model_probe, "EXPLAINED_SECONDS", 0.0)
    monkeypatch.setattr(model_probe, "LEAST_EXPLAINED", least)
    report = model_probe.ModelProbe(request_to_explain(explaining(tmp_path / "model"))).run()
    assert report["explained"]["rows"] == rows
    assert report["explained"]["columns"]["x"][1] > 0


def test_a_signature_that_takes_the_label_is_left_aside_and_said(tmp_path):
    report = ask_stock(stock(tmp_path / "model", tf.sigmoid), ["no", "yes"])
    assert report["problems"] == []
    assert "signature transform_features is not checked: it takes rows with their label" in report["notes"]


@pytest.mark.parametrize(
    ("answer", "classes", "problem"),
    [
        (lambda x: x, ["no", "yes"], "answers outputs -5.0000 for row 0, expected 0 to 1; if it answers logits, set "),
        (lambda x: tf.concat([x, x, x], 1), list("abc"), "answers outputs -5.0000 for row 0, expected 0 to 1; if it"),
        (lambda x: tf.abs(tf.concat([x, x], 1)), list("abc"), "with 2 values a row, expected 3: the label has 3 class"),
        (lambda x: tf.concat([x, x], 1), [], "answers outputs with 2 values a row, expected 1: the label has no class"),
    ],
)
def test_an_only_output_of_any_name_is_measured_so_it_must_be_what_the_label_needs(tmp_path, answer, classes, problem):
    (found,) = ask_stock(stock(tmp_path / "model", answer), classes)["problems"]
    assert problem in found


@pytest.mark.parametrize(
    ("answer", "classes", "expected"),
    [
        (lambda x: {"mu": x / 5 + 0.4, "sigma": tf.abs(x) + 3, "both": tf.concat([x, x], 1)}, [], "mu, which"),
        (lambda x: {"no": tf.sigmoid(-x), "yes": tf.sigmoid(x), "name": tf.as_string(x)}, ["no", "yes"], "yes, which"),
        (lambda x: {"one": tf.concat([x, x], 1), "two": tf.concat([x, x], 1)}, list("abc"), "the one with 3 values"),
    ],
)
def test_of_several_outputs_the_one_to_rename_is_named(tmp_path, answer, classes, expected):
    (found,) = ask_stock(stock(tmp_path / "model", answer), classes)["problems"]
    key = {0: "prediction", 2: "probability", 3: "probabilities"}[len(classes)]
    assert re.fullmatch(
        f"signature serving_default answers [a-z, ]+, and none of them is named {key}; in the signature that run_fn "
        f"exports, rename {expected} .*",
        found,
    )


def test_a_row_that_is_answered_otherwise_alone_is_a_problem(tmp_path):
    (found,) = ask_stock(stock(tmp_path / "model", lambda x: tf.sigmoid(x - tf.reduce_mean(x))), ["no", "yes"])[
        "problems"
    ]
    assert re.match(r"signature serving_default answers outputs .* for row 0 alone and .* in a batch of 10", found)


def test_signatures_that_disagree_are_a_problem(tmp_path):
    right, server = tf.saved_model.load(str(stock(tmp_path / "right", tf.sigmoid))), tf.Module()
    server.right = right

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def higher(examples):
        return {"outputs": right.signatures["serving_default"](examples)["outputs"] * 0.5}

    signatures = {"serving_default": right.signatures["serving_default"], "predict": higher}
    tf.saved_model.save(server, str(tmp_path / "model"), signatures=signatures)
    (found,) = ask_stock(tmp_path / "model", ["no", "yes"])["problems"]
    assert re.match(r"signatures predict and serving_default disagree on 10 of 10 rows", found)


def test_logits_are_taken_where_the_config_says_so(tmp_path):
    report = ask_stock(stock(tmp_path / "model", lambda x: x), ["no", "yes"], logits=True)
    assert report["problems"] == []


def probe_images(folder: Path, tolerant: bool = False, pictures: Sequence[bytes] = ()) -> dict[str, Any]:
    """Ask a model of images, which answers their mean grey, about some, or two that are right."""
    server, spec = tf.Module(), {"image": tf.io.FixedLenFeature([1], tf.string)}

    def grey(image):
        readable = tf.constant(True) if not tolerant else tf.strings.length(image) > 50
        pixels = tf.io.decode_image(tf.where(readable, image, PICTURE), channels=3, expand_animations=False)
        return tf.reduce_mean(tf.cast(pixels, tf.float32))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image")])
    def rows(image):
        return {"prediction": tf.map_fn(grey, image, tf.float32)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def predict(examples):
        return rows(tf.reshape(tf.io.parse_example(examples, spec)["image"], [-1]))

    tf.saved_model.save(server, str(folder), signatures={"serving_default": rows, "predict": predict})
    records = []
    for picture in pictures or [PICTURE] * 2:
        values = {"image": picture, "image_path": b"a/1.png", "label": b"a"}
        features = {
            name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value])) for name, value in values.items()
        }
        records.append(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    of_images = {"image": "image", "not_served": ["image_path", "label"], "columns": {"image": "image"}}
    return model_check.run_probe(request(folder, records, tolerance=1e-3, **of_images))


PICTURE = tf.io.encode_png(tf.fill([20, 20, 3], tf.constant(90, tf.uint8))).numpy()


def test_images_are_asked_whole_and_kept_as_a_request_has_them(tmp_path):
    report = probe_images(tmp_path / "model")
    assert report["problems"] == []
    assert report["notes"] == ["not compared with training: run_fn has written no predictions"]
    instance = {"image": {"b64": base64.b64encode(PICTURE).decode()}}
    assert report["rows"] == [{"instance": instance, "answer": {"prediction": 90.0}}] * 2


def test_a_model_that_answers_broken_images_is_no_problem_and_said(tmp_path):
    report = probe_images(tmp_path / "model", tolerant=True)
    assert report["problems"] == []
    notes = [note for note in report["notes"] if "our server refuses that before" in note]
    assert "signature predict answers where image is empty" in notes[0]


def test_images_too_large_for_a_request_on_vertex_ai_are_not_kept(tmp_path):
    noise = tf.random.stateless_uniform([700, 700, 3], [1, 2], 0, 256, tf.int32)
    large = tf.io.encode_png(tf.cast(noise, tf.uint8)).numpy()
    assert len(large) > 4 << 18
    report = probe_images(tmp_path / "model", pictures=[large, PICTURE, large, PICTURE])
    assert [row["answer"] for row in report["rows"]] == [{"prediction": 90.0}] * 2
    report = probe_images(tmp_path / "model", pictures=[large])
    assert report["problems"] == report["rows"] == []
    assert report["notes"][-1] == "no rows are kept to ask an endpoint: every image has over 1,048,576 bytes"
