"""Pipelines that ``new`` makes of images, and those that it refuses."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from google.protobuf import text_format
from PIL import Image
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.errors import UserError
from pipeline.packaging.user_code import read_module
from pipeline.scaffold import image_files
from pipeline.scaffold.image_inspection import look
from pipeline.settings.checks import read_settings
from pipeline.settings.config import PipelineConfig

ROOT = Path(__file__).resolve().parent.parent.parent
EACH = 30


def write_images(folder: Path, count: int = EACH, size=(12, 12), mode: str = "L", ending: str = ".png") -> Path:
    """Writes images of random pixels, which differ."""
    random = np.random.default_rng(list(folder.name.encode()))
    folder.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
    for number in range(count):
        Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8), mode).save(folder / f"{number:02}{ending}")
    return folder


@pytest.fixture
def letters(tmp_path) -> Path:
    """A folder of three classes of small grey images."""
    for name in ("a", "b", "c"):
        write_images(tmp_path / "letters" / name)
    return tmp_path / "letters"


def written(folder: Path, data: Path, label: str | None = None, backbone: str | None = None):
    """Returns the config and the text of the module file; both are as ruff wants them and can be read."""
    pictures = look(data, label, None)
    config, module = folder / "some_config.py", folder / "some.py"
    config.write_text(image_files.config_text("some", "data/some", pictures, backbone))
    module.write_text(image_files.module_text("some", pictures, backbone))
    for check in (["check"], ["format", "--check", "--diff"]):
        command = [sys.executable, "-m", "ruff", *check, config, module]
        checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    read_module(module)
    schema = text_format.Parse(image_files.schema_text(pictures), schema_pb2.Schema())
    return (
        read_settings(config, "CONFIG", PipelineConfig),
        module.read_text(),
        schema,
        dict(image_files.summary(pictures)),
    )


def test_a_folder_of_small_grey_images_gets_a_small_network_and_is_not_mirrored(letters, tmp_path):
    config, module, schema, summary = written(tmp_path, letters)
    assert config.label.classes == ("a", "b", "c")
    assert config.data.images.column == "image"
    assert "HEIGHT, WIDTH, CHANNELS = 16, 16, 1" in module
    assert "RandomTranslation" in module
    assert "RandomFlip" not in module
    assert summary == {
        "label": "label: 3 classes, a (33.3 %), b (33.3 %), c (33.3 %)",
        "sizes": "12 x 12 pixels, grey",
        "formats": "PNG (90)",
    }
    asked = [feature.name for feature in schema.feature if "SERVING" not in feature.not_in_environment]
    assert asked == ["image"]
    assert schema.feature[0].HasField("image_domain")


def test_photos_in_colour_may_be_mirrored_and_keep_their_shape(tmp_path):
    for name in ("cat", "dog"):
        write_images(tmp_path / "pets" / name, size=(80, 60), mode="RGB", ending=".jpg")
    config, module, _, summary = written(tmp_path, tmp_path / "pets", label="animal")
    assert (config.label.name, config.evaluation.gates[0].metric) == ("animal", "auc")
    assert "HEIGHT, WIDTH, CHANNELS = 64, 88, 3" in module
    assert "RandomFlip" in module
    assert "crop" not in module
    assert summary["sizes"] == "80 x 60 pixels, in colour"


def test_images_of_different_shapes_are_cut(tmp_path):
    write_images(tmp_path / "pets/cat", size=(80, 60))
    write_images(tmp_path / "pets/dog", size=(50, 90))
    assert "crop=True" in written(tmp_path, tmp_path / "pets")[1]


def test_a_backbone_brings_weights_and_two_phases(letters, tmp_path):
    config, module, _, _ = written(tmp_path, letters, backbone="DenseNet121")
    assert 'training.backbone("DenseNet121", features.weights, image_size=(HEIGHT, WIDTH)' in module
    assert "HEIGHT, WIDTH, CHANNELS = 96, 96, 3" in module
    assert config.training.backbone_weights == "imagenet"
    assert 0 < config.training.head_epochs < config.training.epochs


def test_folders_of_train_eval_and_test_are_the_splits(tmp_path):
    for split in ("train", "val", "test"):
        for name in ("a", "b"):
            write_images(tmp_path / "letters" / split / name)
    config, _, _, _ = written(tmp_path, tmp_path / "letters")
    assert config.data.splits == {"train": "train/**/*", "eval": "val/**/*", "test": "test/**/*"}
    assert config.label.classes == ("a", "b")


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_table_of_paths_names_its_own_column_and_leaves_the_others_out(tmp_path, format):
    write_images(tmp_path / "files/one", 60)
    paths = [f"files/one/{number:02}.png" for number in range(60)]
    frame = pd.DataFrame({"who": ["x", "y"] * 30, "the file": paths, "age": np.arange(60) / 7})
    file = tmp_path / f"some.{format}"
    frame.to_csv(file, index=False) if format == "csv" else frame.to_parquet(file)
    config, module, schema, summary = written(tmp_path, file, label="age")
    assert config.data.images.column == "the file"
    assert config.label.task == "regression"
    assert 'inputs["the file"]' in module
    assert summary["left out"] == "who (the model takes the image alone)"
    kinds = {feature.name: feature.lifecycle_stage for feature in schema.feature}
    assert kinds["who"] == schema_pb2.DISABLED
    assert kinds["the file_width"] == schema_pb2.UNKNOWN_STAGE


def test_hostile_names_of_folders_stand_in_literals(tmp_path):
    for name in ('"); import os; ("', "{{ 7 * 7 }}", "it's"):
        write_images(tmp_path / "letters" / name)
    config, _, _, _ = written(tmp_path, tmp_path / "letters", label='a "name", as it is')
    assert config.label.classes == ('"); import os; ("', "it's", "{{ 7 * 7 }}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: [file.unlink() for file in folder.rglob("*.png")], "no images in .*; expected .*/CLASS/"),
        (lambda folder: (folder / "a/00.png").rename(folder / "00.png"), "00.png is in no folder of a class"),
        (lambda folder: (folder / "a/notes.txt").write_text("x"), "notes.txt is not an image by its name"),
        (lambda folder: (folder / "a/00.png").write_text("some text"), "00.png: it is not an image, or a broken one"),
        (lambda folder: write_images(folder / "d", 3), r"too few rows of 'd' \(3\); each class needs at least 20"),
        (lambda folder: [file.unlink() for file in folder.rglob("[bc]/*.png")], "are in one class, 'a'"),
    ],
)
def test_images_that_cannot_make_a_model_are_refused_in_one_sentence(letters, change, message):
    change(letters)
    with pytest.raises(UserError, match=message):
        look(letters, None, None)


def test_a_table_without_paths_or_label_is_refused(tmp_path):
    frame = pd.DataFrame({"image": [f"{number}.png" for number in range(60)], "age": range(60)})
    frame.to_csv(tmp_path / "some.csv", index=False)
    with pytest.raises(UserError, match="say which of its columns is to be predicted with --label"):
        look(tmp_path / "some.csv", None, None)
    with pytest.raises(UserError, match="no column of paths of images that start at its folder: there is no .*0.png"):
        look(tmp_path / "some.csv", "age", None)
