"""An image that has changed is other data, in a folder or behind a table, here, in a bucket and on Vertex AI."""

import os
from pathlib import Path

import pytest
from tfx.orchestration import metadata
from tfx.orchestration import pipeline as tfx_pipeline

from pipeline.components.arrow_example_gen import ArrowExampleGen, ExampleGenDriver
from pipeline.components.example_gen import create_example_gen
from pipeline.runs.run_graph import run_graph
from pipeline.settings.config import Data
from pipeline.settings.image_data import Images
from pipeline.settings.target import Target
from tests.data.test_image_dataset import config_of, picture, write
from tests.example_gen_driver import written_on_vertex
from tests.fakes.buckets import fake_buckets

FORMS = ("folder", "table")


@pytest.fixture(params=["here", "gs://"])
def folder(request, tmp_path: Path, monkeypatch) -> str:
    """A folder with images and a table that names all of them but one."""
    rows = "image,animal\n"
    for number in range(12):
        path = f"{('cat', 'dog')[number % 2]}/{number}.png"
        write(tmp_path / "bucket/data" / path, picture(number))
        rows += f"{path},{('cat', 'dog')[number % 2]}\n" if number else ""
    (tmp_path / "bucket/data.csv").write_text(rows.replace("cat/", "data/cat/").replace("dog/", "data/dog/"))
    fake_buckets(monkeypatch, tmp_path)
    return str(tmp_path / "bucket") if request.param == "here" else "gs://bucket"


def data_of(folder: str, form: str) -> Data:
    return Data(f"{folder}/data" if form == "folder" else f"{folder}/data.csv", images=Images())


def example_gen(data: Data) -> ArrowExampleGen:
    component = create_example_gen(config_of(data), Target.local(Path("unused"), "animals"))
    assert isinstance(component, ArrowExampleGen)
    return component


def fingerprint(folder: str, form: str) -> str:
    """What TFX's launcher learns of the data."""
    properties = dict(example_gen(data_of(folder, form)).exec_properties)
    return ExampleGenDriver(None).resolve_exec_properties(properties, None, None)["input_fingerprint"]


def on_vertex(folder: str, form: str, output: Path) -> str:
    """Return the fingerprint that Vertex AI's cache compares."""
    written = written_on_vertex(example_gen(data_of(folder, form)), output, "--runner=FnApiRunner")
    return str(written["parameterValues"]["input_fingerprint"])


@pytest.mark.parametrize("form", FORMS)
def test_other_data_is_seen_in_the_images_wherever_they_are(folder, form, tmp_path):
    image = tmp_path / "bucket/data/dog/3.png"
    before = fingerprint(folder, form)
    assert fingerprint(folder, form) == before
    assert on_vertex(folder, form, tmp_path / "first/output.json") == before
    status = image.stat()
    image.write_bytes(bytes(status.st_size))
    os.utime(image, (status.st_atime, status.st_mtime + 1))  # of the same size
    changed = fingerprint(folder, form)
    assert changed != before
    assert on_vertex(folder, form, tmp_path / "second/output.json") == changed


def test_an_image_that_the_table_does_not_name_is_not_its_data(folder, tmp_path):
    before = fingerprint(folder, "table")
    write(tmp_path / "bucket/data/cat/0.png", picture(99))
    assert fingerprint(folder, "table") == before
    (tmp_path / "bucket/data/cat/2.png").unlink()
    assert fingerprint(folder, "table") != before


def test_a_table_without_images_has_tfxs_fingerprint(tmp_path):
    write(tmp_path / "rows.csv", b"x,animal\n1,cat\n2,dog\n")
    component = example_gen(Data(str(tmp_path / "rows.csv")))
    resolved = ExampleGenDriver(None).resolve_exec_properties(dict(component.exec_properties), None, None)
    assert "images" not in resolved["input_fingerprint"]


# TFX calls what protobuf deprecates, in a way that names our line.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_only_a_replaced_image_makes_it_run_again(form, tmp_path):
    for number in range(60):
        write(tmp_path / f"data/{('cat', 'dog')[number % 2]}/{number}.png", picture(number))
    paths = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.png"))
    (tmp_path / "data.csv").write_text("image,animal\n" + "".join(f"{path},{path.parent.name}\n" for path in paths))

    def state(run: str) -> str:
        pipeline = tfx_pipeline.Pipeline(
            "animals",
            str(tmp_path / "artifacts"),
            metadata_connection_config=metadata.sqlite_metadata_connection_config(str(tmp_path / "metadata.db")),
            components=[example_gen(data_of(str(tmp_path), form))],
            enable_cache=True,
            beam_pipeline_args=list(Target.local(tmp_path, "").beam_args),
        )
        return run_graph(pipeline, run, lambda name: None, lambda step: None)["ExampleGen"].state

    assert [state("first"), state("second")] == ["ran", "cached"]
    write(tmp_path / "data/cat/0.png", picture(99))
    assert [state("third"), state("fourth")] == ["ran", "cached"]
