"""Images of a folder, a table of paths, TFRecords and Parquet become the same kind of examples, by our ExampleGen."""

import io
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.data import image_dataset, shards
from pipeline.data.image_dataset import classes_of
from pipeline.data.location import check_data, find_files
from pipeline.data.table import Rows
from pipeline.errors import UserError
from pipeline.quality.schema_text import parse
from pipeline.settings.config import Data, HashSplit, Label, PipelineConfig, load_config
from pipeline.settings.gates import Evaluation, Gate
from pipeline.settings.image_data import Images
from tests.components.example_gen import records, run, values

ROOT = Path(__file__).resolve().parents[2]
ANIMALS = Label("animal", classes=("cat", "dog"))
COLUMNS = {
    *("animal", "image", "image_brightness", "image_folder"),
    *("image_format", "image_height", "image_path", "image_width"),
}


def picture(seed: int, format: str = "PNG", size: tuple[int, int] = (6, 4)) -> bytes:
    pixels = np.random.RandomState(seed).randint(0, 256, (size[1], size[0], 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format)
    return content.getvalue()


def write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """60 images of cats and dogs, some of them a folder deeper."""
    for number in range(60):
        deeper = "monday" if number % 3 else "tuesday/late"
        write(tmp_path / "data" / ("cat", "dog")[number % 2] / deeper / f"{number:02}.png", picture(number))
    return tmp_path / "data"


def images(path: Path, **settings) -> Data:
    return Data(str(path), images=Images(), **settings)


def config_of(data: Data, label: Label = ANIMALS) -> PipelineConfig:
    metric = {0: "rmse", 2: "auc"}.get(len(label.classes), "accuracy")
    gate = Gate(metric, floor=0.5) if label.classes else Gate(metric, ceiling=1.0)
    return PipelineConfig("animals", data, label, "models/animals.py", Evaluation(gates=(gate,)))


def problem(data: Data, to: Path, label: Label = ANIMALS) -> str:
    """Return the message with which our ExampleGen refuses the data."""
    with pytest.raises(UserError) as refused:
        run(data, to, label=label)
    return str(refused.value)


def by_path(examples: Path, split: str = "*") -> dict[bytes, dict]:
    found = map(values, records(examples, split))
    return {example["image_path"][0]: example for example in found}


def test_a_folder_becomes_examples_with_the_facts_and_the_class(folder, tmp_path):
    run(images(folder), tmp_path / "examples", label=ANIMALS)
    found = by_path(tmp_path / "examples")
    assert len(found) == 60
    assert all(set(example) == COLUMNS for example in found.values())
    file = folder / "dog/tuesday/late/03.png"
    example = found[b"dog/tuesday/late/03.png"]
    assert example["image"] == [file.read_bytes()]
    assert example["animal"] == [1]
    assert example["image_folder"] == [b"dog/tuesday/late"]
    assert (example["image_format"], example["image_width"], example["image_height"]) == ([b"PNG"], [6], [4])
    assert example["image_brightness"] == pytest.approx([np.asarray(Image.open(file).convert("L")).mean()], abs=0.6)


@pytest.mark.slow
def test_the_same_folder_gives_the_same_bytes_wherever_it_lies(folder, tmp_path):
    run(images(folder), tmp_path / "examples", label=ANIMALS)
    moved = shutil.copytree(folder, tmp_path / "elsewhere/moved")
    run(images(moved), tmp_path / "again", label=ANIMALS)
    first, again = (sorted((tmp_path / name).glob("Split-*/*")) for name in ("examples", "again"))
    assert [file.name for file in first] == [file.name for file in again]
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in again]


def test_the_same_picture_under_two_names_comes_into_one_split(folder, tmp_path):
    for file in list(folder.rglob("*.png")):
        write(file.with_name(f"copy-of-{file.name}"), file.read_bytes())
    run(images(folder), tmp_path / "examples", label=ANIMALS)
    splits = {
        split: {e["image"][0] for e in by_path(tmp_path / "examples", split).values()} for split in ("train", "test")
    }
    assert splits["train"]
    assert splits["test"]
    assert not splits["train"] & splits["test"]


def test_a_folder_such_as_a_patients_comes_into_one_split(tmp_path):
    for number in range(80):
        write(tmp_path / f"data/{('cat', 'dog')[number % 2]}/patient{number // 4}/{number}.png", picture(number))
    run(images(tmp_path / "data", split_by=HashSplit("image_folder")), tmp_path / "examples", label=ANIMALS)
    folders = [
        {example["image_folder"][0] for example in by_path(tmp_path / "examples", split).values()}
        for split in ("train", "eval", "test")
    ]
    assert sum(map(len, folders)) == len(set.union(*folders)) == 40


def test_splits_by_folder_have_their_classes_below_it(folder, tmp_path):
    for split in ("train", "eval", "test"):
        shutil.copytree(folder, tmp_path / "split" / split)
    data = images(tmp_path / "split", splits={"train": "train/**", "eval": "eval/**", "test": "test/**/*.png"})
    check_data(config_of(data))
    run(data, tmp_path / "examples", label=ANIMALS)
    for split in ("train", "eval", "test"):
        found = by_path(tmp_path / "examples", split)
        assert len(found) == 60
        assert {path.split(b"/")[0] for path in found} == {split.encode()}
        assert found[f"{split}/dog/monday/01.png".encode()]["animal"] == [1]


def table_of(folder: Path) -> pa.Table:
    paths = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.png"))
    return pa.table(
        {
            "image": paths,
            "animal": [path.split("/")[0] for path in paths],
            "weight": [float(number) for number in range(len(paths))],
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_table_of_paths_brings_its_other_columns_along(folder, tmp_path, format):
    table = table_of(folder)
    if format == "csv":
        table.to_pandas().to_csv(folder / "table.csv", index=False)
    else:
        pq.write_table(table, folder / "table.parquet")
    data = images(folder / f"table.{format}")
    check_data(config_of(data))
    run(data, tmp_path / "examples", label=ANIMALS)
    found = by_path(tmp_path / "examples")
    assert len(found) == 60
    for row in table.to_pylist():
        example = found[row["image"].encode()]
        assert set(example) == COLUMNS | {"weight"}
        assert example["weight"] == [row["weight"]]
        assert example["image"] == [(folder / row["image"]).read_bytes()]
        assert example["animal"] == [int(row["animal"] == "dog")]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["tfrecord", "parquet"])
def test_encoded_images_in_a_column_get_their_facts(folder, tmp_path, format):
    contents = [file.read_bytes() for file in sorted(folder.rglob("*.png"))]
    to = tmp_path / "encoded"
    to.mkdir()
    if format == "parquet":
        pq.write_table(pa.table({"image": contents, "animal": [0, 1] * 30}), to / "x.parquet")
    else:
        with tf.io.TFRecordWriter(str(to / "x.tfrecord")) as writer:
            for number, content in enumerate(contents):
                example = tf.train.Example()
                example.features.feature["image"].bytes_list.value.append(content)
                example.features.feature["animal"].int64_list.value.append(number % 2)
                writer.write(example.SerializeToString())
    run(images(to), tmp_path / "examples", label=ANIMALS)
    found = by_path(tmp_path / "examples")
    assert len(found) == 60
    example = found[f"x.{format}:7".encode()]
    assert set(example) == COLUMNS
    assert example["image"] == [contents[6]]
    assert (example["image_width"], example["image_folder"]) == ([6], [b""])


@pytest.mark.slow
def test_bad_images_stop_the_run_with_path_and_reason_or_are_left_out(folder, tmp_path):
    write(folder / "cat/empty.png", b"")
    write(folder / "dog/text.jpg", b"not an image")
    write(folder / "dog/cut.jpg", picture(1, "JPEG", (64, 64))[:-100])
    said = problem(images(folder), tmp_path / "refused")
    assert f"{folder}/cat/empty.png: it is empty" in said
    assert f"{folder}/dog/text.jpg: it is not an image" in said
    assert f"{folder}/dog/cut.jpg: it is broken or cut short" in said
    assert "3 of 63 rows are bad" in said

    run(images(folder, max_bad_rows=0.05), tmp_path / "examples", label=ANIMALS)
    assert len(by_path(tmp_path / "examples")) == 60
    assert json.loads((tmp_path / "examples/summary.json").read_text())["bad_rows"] == 3
    listed = "".join(file.read_text() for file in (tmp_path / "examples/bad_rows").iterdir())
    assert f"{folder}/dog/cut.jpg,0," in listed


def test_a_row_without_its_image_is_a_bad_row(folder, tmp_path):
    (tmp_path / "outside.png").write_bytes(picture(1))
    paths = ["cat/none.png", "../outside.png", str(tmp_path / "outside.png"), "", "cat/../cat/monday/02.png"]
    rows = "".join(f"{path},cat\n" for path in paths)
    (folder / "table.csv").write_text(f"image,animal\n{rows}")
    said = problem(images(folder / "table.csv"), tmp_path / "refused")
    assert "table.csv, row 1: cat/none.png: it cannot be read: No such file" in said
    assert f"row 2: ../outside.png: expected a path below {folder}" in said
    assert f"row 3: {tmp_path}/outside.png: expected a path below {folder}" in said
    assert "4 of 5 rows are bad" in said


def test_a_wrong_name_does_not_matter_and_what_is_beside_images_does(folder, tmp_path):
    write(folder / "cat/png.jpg", picture(61))
    for name in ("cat/.DS_Store", "cat/_notes.txt", "cat/Thumbs.db", "__MACOSX/cat/1.png", ".cache/1.png"):
        write(folder / name, b"x")
    assert len(find_files(images(folder)).all) == 61
    write(folder / "cat/notes.txt", b"x")
    with pytest.raises(UserError, match=r"found cat/monday/02.png and cat/notes.txt; expected images only"):
        find_files(images(folder))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"nothing matches .*; expected images \(.jpg"):
        find_files(images(tmp_path / "empty"))


def test_folders_that_are_no_classes_are_named_before_anything_heavy(folder, tmp_path):
    check_data(config_of(images(folder)))
    with pytest.raises(UserError, match="has no images of the class 'horse'"):
        check_data(config_of(images(folder), Label("animal", classes=("cat", "dog", "horse"))))
    with pytest.raises(UserError, match="the label is a number; give a table of paths and labels"):
        check_data(config_of(images(folder), Label("age", classes=())))
    write(folder / "cow/1.png", picture(1))
    with pytest.raises(UserError, match="cow/1.png lies in the folder 'cow', which is no class; .* cat, dog, 0 or 1"):
        check_data(config_of(images(folder)))
    assert "'cow', which is no class" in problem(images(folder), tmp_path / "refused")
    shutil.rmtree(folder / "cow")
    write(folder / "1.png", picture(1))
    with pytest.raises(UserError, match="1.png lies in no folder of a class"):
        check_data(config_of(images(folder)))


def test_a_table_without_the_column_or_with_a_fact_is_refused(folder):
    (folder / "table.csv").write_text("file,animal\ncat/monday/02.png,cat\n")
    with pytest.raises(UserError, match="has no column 'image', the images; it has file, animal; name another"):
        check_data(config_of(images(folder / "table.csv")))
    check_data(config_of(Data(str(folder / "table.csv"), images=Images(column="file"))))
    (folder / "table.csv").write_text("image,animal,image_width\ncat/monday/02.png,cat,1\n")
    with pytest.raises(UserError, match="the column 'image_width' has the name of a fact"):
        check_data(config_of(images(folder / "table.csv")))


@pytest.mark.slow
def test_the_digits_become_the_columns_of_their_schema_the_same_bytes_twice(tmp_path):
    data = load_config(ROOT / "configs/digits.py").data
    subprocess.run([sys.executable, ROOT / data.prepare, "--output", tmp_path / "digits"], check=True)
    label = Label("digit", classes=tuple("0123456789"))
    data = replace(data, path=str(tmp_path / "digits"))
    for name in ("examples", "again"):
        run(data, tmp_path / name, label=label)
    files_of = [sorted((tmp_path / name).glob("Split-*/*")) for name in ("examples", "again")]
    assert [file.read_bytes() for file in files_of[0]] == [file.read_bytes() for file in files_of[1]]
    schema = {feature.name for feature in parse(ROOT / "schema/digits/schema.pbtxt").feature}
    found = by_path(tmp_path / "examples")
    assert len(found) == 1797
    for path, example in found.items():
        assert set(example) == schema
        assert example["digit"] == [int(path.split(b"/")[0])]
        assert example["image"] == [(tmp_path / "digits" / path.decode()).read_bytes()]
        assert (example["image_width"], example["image_height"], example["image_format"]) == ([8], [8], [b"PNG"])


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("cat/1.png", "**"),
        ("train/cat/deep/1.png", "train/**"),
        ("span-3/train/cat/1.png", "span-{SPAN}/train/**/*.png"),
    ],
)
def test_the_class_is_the_first_folder_below_the_fixed_part_of_the_pattern(path, pattern):
    assert classes_of([f"/data/{path}"], "/data", pattern, {"cat": 0}) == ["cat"]


def test_images_are_dealt_to_shards_of_about_the_same_size_each_once(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "IMAGE_SHARD_BYTES", 1_000)
    run(images(folder), tmp_path / "examples", label=ANIMALS)
    assert len(by_path(tmp_path / "examples")) == len(records(tmp_path / "examples")) == 60
    assert len(list((tmp_path / "examples/Split-train").iterdir())) > 5


def test_rows_of_many_small_tables_are_spread_over_all_shards():
    listings = [
        image_dataset.Listing(
            f"{place}.csv", "csv", rows=Rows(pa.table({"image": [f"{place}/{row}" for row in range(3)]}), np.arange(3))
        )
        for place in range(20)
    ]
    dealt = [
        [path for part in shard for path in part.rows.table["image"].to_pylist()]
        for shard in image_dataset.deal(listings, 10)
    ]
    assert [len(paths) for paths in dealt] == [6] * 10
    assert len({path for paths in dealt for path in paths}) == 60
