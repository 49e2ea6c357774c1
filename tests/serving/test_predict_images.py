"""Answers for folders and tables of images; a bad image is a refused row, and not the end."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from pipeline.cli import predict
from pipeline.data.examples import feature
from pipeline.errors import UserError
from pipeline.model.signatures import Model, load
from tests.serving.test_image_inputs import b64, grey_image, save

GREYS = {"dark/1.png": 10, "dark/2.jpg": 20, "light.bmp": 200}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    return load(str(save(tmp_path_factory.mktemp("model") / "greys")))


@pytest.fixture
def folder(tmp_path) -> Path:
    for path, grey in GREYS.items():
        file = tmp_path / "images" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(grey_image(grey, format={".png": "PNG", ".jpg": "JPEG", ".bmp": "BMP"}[file.suffix]))
    return tmp_path / "images"


def run(model: Model, data: Path, to: Path, *columns: str) -> pd.DataFrame:
    predict.predict(model, predict.find_files(str(data)), to, columns, str(data))
    return pd.read_csv(to) if to.suffix == ".csv" else pq.read_table(to).to_pandas()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_folder_is_answered_with_the_paths_of_its_images(model, folder, tmp_path, ending):
    answers = run(model, folder, tmp_path / f"answers.{ending}")
    assert list(answers.columns) == ["image_path", "age", "prediction", "refused"]
    assert dict(zip(answers.image_path, answers.prediction.round(), strict=True)) == GREYS
    assert answers.refused.isna().all()


def test_a_bad_image_is_refused_with_the_reason_and_the_others_are_answered(model, folder, tmp_path, capsys):
    (folder / "broken.png").write_bytes(grey_image(1)[:40])
    (folder / "large.png").write_bytes(grey_image(1, (2_000, 2_000)))
    answers = run(model, folder, tmp_path / "answers.csv").set_index("image_path")
    assert len(answers) == 5
    assert answers.loc["broken.png"].isna()["prediction"]
    assert "2,000 x 2,000 pixels" in answers.loc["large.png", "refused"]
    assert answers.prediction.count() == 3
    assert "note: 2 of 5 images are refused, see 'refused'; the first: broken.png: " in capsys.readouterr().err


def test_where_every_image_is_bad_there_is_one_message_and_no_file(model, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"none of 1 images can be read; the first: a.png: it is not an image"):
        run(model, tmp_path / "images", tmp_path / "answers.csv")
    assert not (tmp_path / "answers.csv").exists()


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_table_of_paths_is_answered_row_by_row(model, folder, tmp_path, format):
    paths = ["light.bmp", "dark/1.png", "missing.png", "../secret.png", "/etc/passwd", ""]
    table = pd.DataFrame({"image": paths, "age": [3.5, None, 1, 1, 1, 1], "name": list("abcdef")})
    (folder.parent / "secret.png").write_bytes(grey_image(1))
    file = folder / f"table.{format}"
    table.to_csv(file, index=False) if format == "csv" else table.to_parquet(file)
    answers = run(model, file, tmp_path / "answers.parquet", "name")
    assert list(answers.name) == list("abcdef")
    assert answers.prediction[:2].tolist() == [200, 10]
    assert answers.age[0] == 3.5
    assert answers.refused[2:].tolist() == [
        "there is no such file",
        "its path leads out of the table's folder; expected one relative to it",
        "its path leads out of the table's folder; expected one relative to it",
        "the row has no path",
    ]


def test_a_path_that_cannot_be_read_is_a_refused_row_and_not_the_end(model, folder, tmp_path):
    (folder / "table.csv").write_text("image\ndark\nlight.bmp\n")
    answers = run(model, folder / "table.csv", tmp_path / "answers.parquet")
    assert answers.refused.tolist() == ["it cannot be read: Is a directory; expected an image file", None]
    assert answers.prediction[1] == 200


@pytest.mark.parametrize("format", ["parquet", "tfrecord", "jsonl"])
def test_encoded_images_in_files_are_answered(model, tmp_path, format):
    images, file = [grey_image(70), b"broken"], tmp_path / f"rows.{format}"
    if format == "parquet":
        pq.write_table(pa.table({"image": pa.array(images, pa.binary())}), file)
    elif format == "jsonl":
        file.write_text("".join(json.dumps({"image": b64(image)}) + "\n" for image in images))
    else:
        with tf.io.TFRecordWriter(str(file)) as writer:
            for image in images:
                features = {"image": tf.train.Feature.FromString(feature(image))}
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    answers = run(model, file, tmp_path / "answers.parquet")
    assert answers.prediction[0] == 70
    assert answers.isna().prediction[1]
    assert "it is not an image" in answers.refused[1]
    if format != "jsonl":
        assert list(answers.image_path) == [f"rows.{format}:1", f"rows.{format}:2"]


def test_a_row_of_several_images_is_refused_as_in_training(model, tmp_path):
    images = [[grey_image(70)], [grey_image(1), grey_image(2)], [], None]
    pq.write_table(pa.table({"image": pa.array(images, pa.list_(pa.binary()))}), tmp_path / "rows.parquet")
    answers = run(model, tmp_path / "rows.parquet", tmp_path / "answers.parquet")
    assert answers.prediction[0] == 70
    assert answers.refused[1:].tolist() == ["no image, or several; expected one in every row"] * 3


def test_images_beside_a_table_and_images_for_another_model_are_refused(model, small_model, folder):
    with pytest.raises(UserError, match="is an image, and the model takes none"):
        run(load(str(small_model)), folder, folder / "answers.csv")
    (folder / "table.csv").write_text("image\nlight.bmp\n")
    with pytest.raises(UserError, match=r"table.csv next to them; name the table"):
        predict.find_files(str(folder))
