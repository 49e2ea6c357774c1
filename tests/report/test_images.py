"""Images in the report: thumbnails of every class and of the worst mistakes, and text that stays text."""

import base64
import datetime
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tfx.types import artifact_utils, standard_artifacts

from pipeline import filesystem
from pipeline.data.examples import serialize
from pipeline.quality.serving_skew import statistics_of
from pipeline.report import evaluation, page, scoring, thumbnails
from pipeline.report.blocks import Section, Table, Text, Thumbnails, write_page
from pipeline.report.finished_run import FinishedRun
from pipeline.runs import record
from pipeline.runs.step import Step
from pipeline.settings.config import Data, Label, load_config
from pipeline.settings.image_data import Images
from tests.encoded import encoded
from tests.quality.test_images import table

ROOT = Path(__file__).resolve().parent.parent.parent
CLASSES = ("zero", "<i>one</i>", "two")


def picture(size: tuple[int, int], mode: str = "RGB", format: str = "PNG", **options: object) -> bytes:
    return encoded(Image.new(mode, size), format, **options)


def opened(png_in_base64: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(png_in_base64)))


@pytest.fixture
def run(tmp_path) -> FinishedRun:
    """A run on ninety grey images that ended in DataGate."""
    examples, statistics = standard_artifacts.Examples(), standard_artifacts.ExampleStatistics()
    for artifact in (examples, statistics):
        artifact.uri = str(tmp_path / artifact.type_name)
        artifact.split_names = artifact_utils.encode_split_names(["train", "eval", "test"])
    for start, split in enumerate(("train", "eval", "test")):
        rows = table(range(30 * start, 30 * start + 30), split)
        folder = Path(examples.uri, f"Split-{split}")
        folder.mkdir(parents=True)
        with tf.io.TFRecordWriter(str(folder / "rows.tfrecord.gz"), "GZIP") as writer:
            for example in serialize(rows):
                writer.write(example)
        described = statistics_of(rows, "image").SerializeToString()
        filesystem.write(f"{statistics.uri}/Split-{split}/FeatureStats.pb", described)
    config = load_config(ROOT / "configs/flights.py")
    config = replace(config, data=Data("images", images=Images()), label=Label("label", CLASSES), evaluation=EVALUATION)
    steps = [
        Step("ExampleGen", "ran", 1.0, {"examples": [examples]}, None),
        Step("StatisticsGen", "ran", 1.0, {"statistics": [statistics]}, None),
    ]
    now, outcome = datetime.datetime.now(), {"failed": ["DataGate failed"]}
    kept = record.make("a-run", ["python"], config, now, 1, outcome, steps, ("DataGate", 0.5))
    return FinishedRun(config, steps, tmp_path / "runs/a-run", kept, ("DataGate", 0.5), None)


EVALUATION = replace(load_config(ROOT / "configs/digits.py").evaluation, slices=())


def model(folder: Path) -> str:
    """Write a model that takes every image for a "zero", and is sure of the dark ones."""
    spec = {"image": tf.io.FixedLenFeature([1], tf.string)}
    server = tf.Module()

    def answer(image):
        pixels = tf.io.decode_image(image[0], channels=3, expand_animations=False)
        sure = 1 - tf.reduce_mean(tf.cast(pixels, tf.float32)) / 255
        return tf.stack([sure, (1 - sure) / 2, (1 - sure) / 2])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def predict(examples):
        parsed = tf.io.parse_example(examples, spec)["image"]
        return {"probabilities": tf.map_fn(answer, parsed, tf.TensorSpec([3], tf.float32))}

    tf.saved_model.save(server, str(folder), signatures={"predict": predict})
    return str(folder)


@pytest.mark.slow
def test_the_page_has_thumbnails_of_every_class_and_no_text_becomes_html(run):
    html = page.write(run).read_text()
    (sheet,) = thumbnails.contact_sheet(run)
    assert isinstance(sheet, Thumbnails)
    assert [(title, len(thumbnails)) for title, thumbnails in sheet.rows] == [(name, 8) for name in CLASSES]
    assert opened(sheet.rows[0][1][0].png).size == (8, 8)
    assert sheet.rows[0][1][0].alt.startswith("train/0/")
    assert html.count('src="data:image/png;base64,') == 24
    assert "&lt;i&gt;one&lt;/i&gt;" in html
    assert "<i>one" not in html
    assert "encoded images, bytes" in html
    assert "IHDR" not in html


def test_a_table_s_page_has_no_section_of_images(run):
    run = replace(run, config=replace(run.config, data=replace(run.config.data, images=None)))
    assert 'id="images"' not in page.write(run).read_text()


def test_a_thumbnail_shows_what_people_see():
    rotated = Image.Exif()
    rotated[0x0112] = 6
    assert opened(thumbnails.thumbnail(picture((40, 20), format="JPEG", exif=rotated))).size == (20, 40)
    assert opened(thumbnails.thumbnail(picture((4_000, 2_000), "CMYK", "JPEG"))).size == (64, 32)
    deep = encoded(Image.fromarray(np.full((4, 4), 40_000, np.uint16)))
    assert opened(thumbnails.thumbnail(deep)).getpixel((0, 0)) == (156, 156, 156)
    assert thumbnails.thumbnail(b"no image") == ""


@pytest.mark.slow
def test_the_worst_mistakes_are_shown_with_their_paths_and_answers(run, tmp_path):
    scores = scoring.score(
        run.artifact("ExampleGen", "examples").uri,
        model(tmp_path / "model"),
        None,
        run.config.label,
        run.config.evaluation,
        30,
        "image",
    )
    assert scores["confusion"] == [[10, 0, 0], [10, 0, 0], [10, 0, 0]]
    worst = scores["wrong"][0]
    assert (worst["label"], worst["path"]) == (2.0, "test/2/62.png")
    assert opened(worst["image"]).getpixel((0, 0)) == (62, 62, 62)
    assert "PNG" in worst["features"]["image_format"]
    assert "image" not in worst["features"]
    (text,) = evaluation.importance(run, scores)
    assert isinstance(text, Text)
    assert "sees images alone" in text.text
    (block,) = evaluation.wrong(run, scores)
    assert isinstance(block, Thumbnails)
    assert [title for title, _ in block.rows] == ["two", "<i>one</i>", "zero"]
    assert block.rows[0][1][0].text == "zero (0.7569)"


def test_of_many_classes_the_most_confused_pairs_are_listed():
    names = [f"class {number}" for number in range(40)]
    counts = np.diag(np.full(40, 9))
    counts[3, 5], counts[5, 3] = 4, 2
    block = evaluation._most_confused(names, counts.tolist())
    assert isinstance(block, Table)
    assert block.rows == [("class 3", "class 5", "4", "13"), ("class 5", "class 3", "2", "11")]


def test_a_page_of_many_classes_stays_small(run, tmp_path):
    run = replace(run, config=replace(run.config, label=Label("label", tuple(f"c{number}" for number in range(500)))))
    file = write_page(tmp_path / "page.html", "many", [Section("images", "Images", thumbnails.contact_sheet(run))])
    assert file.stat().st_size < 1 << 20
    assert "The first 40 of 500 classes." in file.read_text()


PHONE = 390
BREEDS = ("Cavalier King Charles spaniel, tricolour", "Donaudampfschifffahrtsgesellschaft", "<i>cat</i>")


@pytest.mark.slow
def test_on_a_phone_nothing_sticks_out_and_thumbnails_and_confusion_are_seen(run, tmp_path, browser):
    run = replace(run, config=replace(run.config, label=Label("label", BREEDS)))
    examples = run.artifact("ExampleGen", "examples").uri
    scores = scoring.score(
        examples, model(tmp_path / "model"), None, run.config.label, run.config.evaluation, 30, "image"
    )
    sections = [
        Section("evaluation", "Evaluation", evaluation._curves(run, scores)),
        Section("wrong", "Most wrongly predicted", evaluation.wrong(run, scores)),
        Section("images", "Images", thumbnails.contact_sheet(run)),
    ]
    context = browser.new_context(offline=True, viewport={"width": PHONE, "height": 844})
    shown = context.new_page()
    shown.goto(write_page(tmp_path / "page.html", "phone", sections).as_uri())
    shown.screenshot(path=tmp_path / "phone.png", full_page=True)
    assert shown.evaluate("document.documentElement.scrollWidth") <= PHONE
    boxes = [image.bounding_box() for image in shown.locator(".thumbnails img").all()]
    assert len(boxes) == 15 + 24
    for box in boxes:
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE
        assert box["width"] >= 48
    confusion = shown.locator("#evaluation .table")
    assert confusion.is_visible()
    counts = confusion.locator("tbody td.numeric").all()
    assert [count.inner_text() for count in counts] == ["10", "0", "0"] * 3
    for row in range(3):
        box = counts[3 * row].bounding_box()
        assert box["x"] + box["width"] <= PHONE, "the first of the counts is seen before scrolling"
    context.close()
