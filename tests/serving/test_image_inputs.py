"""The server of a model of images: what it takes, what it refuses and why, and what it logs."""

import asyncio
import base64
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from starlette.testclient import TestClient

from pipeline.model.export_format import INPUTS
from pipeline.model.signatures import load
from pipeline.serving.answering import Answering
from pipeline.serving.app import create_app
from pipeline.serving.batching import MAX_ROWS, Batcher
from pipeline.serving.bodies import Limits
from pipeline.serving.current import Current
from pipeline.serving.image_inputs import logged
from pipeline.serving.metrics import Metrics
from pipeline.serving.request_log import RequestLog
from pipeline.settings.image_data import Images
from tests.encoded import encoded

MAX_PIXELS, MAX_BYTES = 1_000_000, 20_000
LIMITS = Limits(body_bytes=200_000, instances=20)
PREDICT = "/v1/models/greys:predict"


def grey_image(grey: int, size: tuple[int, int] = (8, 6), format: str = "PNG") -> bytes:
    return encoded(Image.new("L", size, grey), format)


def b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


def save(folder: Path) -> Path:
    """Write a model that answers the mean grey of an image, and the number beside it."""
    server = tf.Module()

    def grey(image):
        pixels = tf.io.decode_image(image, channels=3, expand_animations=False)
        return tf.reduce_mean(tf.cast(pixels, tf.float32))

    @tf.function(
        input_signature=[
            {"image": tf.TensorSpec([None], tf.string, name="image"), "age": tf.TensorSpec([None], name="age")}
        ]
    )
    def rows(given):
        return {"prediction": tf.map_fn(grey, given["image"], tf.float32), "age": given["age"]}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def examples(serialized):
        features = {"image": tf.io.FixedLenFeature([], tf.string), "age": tf.io.FixedLenFeature([], tf.float32, 0.0)}
        return rows(tf.io.parse_example(serialized, features))

    tf.saved_model.save(server, str(folder), signatures={"serving_default": rows, "predict": examples})
    described = {
        "image": {"type": "image", "required": True, "max_pixels": MAX_PIXELS, "max_bytes": MAX_BYTES},
        "age": {"type": "floats", "required": False},
    }
    (folder / INPUTS).parent.mkdir(exist_ok=True)
    (folder / INPUTS).write_text(json.dumps(described))
    return folder


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("images") / "greys")


@pytest.fixture(scope="module")
def client(model, log):
    metrics = Metrics()
    current = Current(str(model), "greys", metrics, LIMITS.rows_waiting)
    current.start()  # asks the example, which the model can decode
    with TestClient(create_app(Answering(current, metrics, LIMITS, RequestLog(log, 1.0)))) as client:
        yield client


def refused(client: TestClient, *images: Any) -> str:
    answer = client.post(PREDICT, json={"instances": [{"image": image} for image in images]})
    assert answer.status_code == 400
    return answer.json()["error"]


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_an_image_in_base64_is_answered(client, format):
    answer = client.post(PREDICT, json={"instances": [{"image": b64(grey_image(100, format=format))}]})
    assert answer.json()["predictions"][0]["prediction"] == pytest.approx(100, abs=2)


def test_columns_of_images_are_answered_too(client):
    images = [b64(grey_image(grey)) for grey in (0, 255)]
    answer = client.post(PREDICT, json={"inputs": {"image": images}})
    assert answer.json()["outputs"]["prediction"] == [0, 255]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"no image", "it is not an image, or a broken one"),
        (grey_image(7, (400, 400), "JPEG")[:-300], "cut short"),
        (grey_image(7, (1_001, 1_000)), "it has 1,001 x 1,000 pixels; expected at most 1,000,000"),
        (grey_image(7, (200, 200), "BMP"), "of 41,078 bytes, more than 20,000"),
    ],
)
def test_a_bad_image_is_refused_with_its_place_and_the_reason(client, data, reason):
    message = refused(client, b64(grey_image(1)), b64(data))
    assert message.startswith("instances[1]: feature 'image': ")
    assert reason in message


def example_of(*images: bytes) -> bytes:
    """A serialized tf.Example."""
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=images))
    return tf.train.Example(features=tf.train.Features(feature={"image": feature})).SerializeToString()


BOMB = grey_image(7, (1_001, 1_000))


def ask_examples(client: TestClient, *examples: bytes) -> Any:
    return client.post(PREDICT, json={"signature_name": "predict", "instances": [b64(data) for data in examples]})


def test_images_in_examples_are_answered_or_refused_as_those_in_rows(client):
    answer = ask_examples(client, example_of(grey_image(1)), example_of(grey_image(200)))
    assert [row["prediction"] for row in answer.json()["predictions"]] == [1, 200]
    refused = ask_examples(client, example_of(grey_image(1)), example_of(BOMB))
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("instances[1]: feature 'image' of the tf.Example: it has 1,001 x 1,000")
    assert "no serialized tf.Example" in ask_examples(client, b"nonsense").json()["error"]


def test_what_parsers_of_examples_read_differently_hides_no_image(client):
    """A field that is there twice: protobuf takes the last or joins them, TensorFlow's own parser may not."""

    def field(number: int, content: bytes) -> bytes:
        size, varint = len(content), b""
        while size > 127:
            varint, size = varint + bytes([size % 128 + 128]), size // 128
        return bytes([number << 3 | 2]) + varint + bytes([size]) + content

    def of(feature: bytes) -> bytes:
        return field(1, field(1, field(1, b"image") + field(2, feature)))

    assert of(field(1, field(1, BOMB))) == example_of(BOMB)
    good, bomb, number = (field(1, field(1, grey_image(1))), field(1, field(1, BOMB)), field(3, b""))
    for example in (of(bomb + number), of(number + bomb), of(good + bomb), of(bomb) + of(good), of(good) + of(bomb)):
        answer = ask_examples(client, example)
        assert answer.status_code == 400 or [row["prediction"] for row in answer.json()["predictions"]] == [1]


@pytest.mark.parametrize("value", ["a text", 7, None, {"b64": 7}, {"b64": "*"}, [1, 2]])
def test_what_is_no_base64_is_refused(client, value):
    assert 'expected an image file as {"b64": "..."}' in refused(client, value)


def test_a_large_image_is_refused_before_its_base64_is_read(client):
    assert "more than 20,000 (data.images.max_bytes)" in refused(client, {"b64": "*" * 50_000})


def test_the_description_says_what_an_image_is_and_the_example_is_answered(client):
    schema = client.get("/openapi.json").json()["paths"][PREDICT]["post"]["requestBody"]["content"]
    image = schema["application/json"]["schema"]["properties"]["instances"]["items"]["properties"]["image"]
    assert image["properties"]["b64"]["contentMediaType"] == "image/*"
    assert image["properties"]["b64"]["maxLength"] == 26_668
    assert "1,000,000 pixels" in image["description"]
    example = client.get(PREDICT).json()["example"]
    assert client.post(PREDICT, json=example).status_code == 200


def test_the_log_has_facts_and_no_images(client, log):
    for file in log.iterdir():
        file.unlink()
    image = {"image": b64(grey_image(90, (8, 6)))}
    client.post(PREDICT, json={"instances": [{**image, "age": 3.0}, image]})
    (file,) = log.iterdir()
    facts = {"image_format": "PNG", "image_width": 8, "image_height": 6, "image_brightness": pytest.approx(90, abs=1)}
    assert [json.loads(line)["instance"] for line in file.read_text().splitlines()] == [{"age": 3.0, **facts}, facts]


def test_a_log_of_whole_images_is_read_as_ours(client):
    found = logged({"image": b64(grey_image(90)), "age": 3}, Images())
    # Its last digit depends on where in memory the sums lie.
    facts = {"image_format": "PNG", "image_width": 8, "image_height": 6, "image_brightness": pytest.approx(90)}
    assert found == {"age": 3, **facts}
    assert logged(b64(grey_image(90)), Images()) == facts
    assert logged({"image": {"b64": "*"}, "age": 3}, Images()) == {"age": 3}


def test_images_that_wait_count_by_their_size(model):
    calls: list[int] = []
    columns = {"image": np.array([grey_image(1) + bytes(MAX_ROWS << 9)], object), "age": np.zeros(1, np.float32)}

    async def ask() -> list[dict[str, np.ndarray]]:
        with ThreadPoolExecutor(1) as pool:
            batcher = Batcher(load(str(model)).rows, pool, 50_000, calls.append)
            return await asyncio.gather(*(batcher.predict(columns) for _ in range(5)))

    assert [answer["prediction"].tolist() for answer in asyncio.run(ask())] == [[1.0]] * 5
    assert calls == [1, 1, 1, 1, 1]
