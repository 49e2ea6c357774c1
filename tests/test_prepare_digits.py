"""The digits: each image with its pixels in the folder of its digit, the same bytes each time, whole or not at all."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.scripts import load_script

prepare_digits = load_script("data/prepare_digits.py")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "digits"
    prepare_digits.prepare(folder)
    return folder


@pytest.mark.slow
def test_every_image_lies_in_the_folder_of_its_digit_with_its_pixels(prepared):
    digits = load_digits()
    files = {str(file.relative_to(prepared)) for file in prepared.rglob("*") if file.is_file()}
    assert files == {f"{digit}/{number:04}.png" for number, digit in enumerate(digits.target)}
    for number in (0, 7, 1796):
        image = Image.open(prepared / str(digits.target[number]) / f"{number:04}.png")
        assert (image.mode, image.size) == ("L", (8, 8))
        assert (np.round(np.asarray(image) / 255 * 16) == digits.images[number]).all()


@pytest.mark.slow
def test_two_preparations_are_the_same_bytes(prepared, tmp_path):
    prepare_digits.prepare(tmp_path / "again")
    prepare_digits.prepare(tmp_path / "again")  # replaces the first
    for file in prepared.rglob("*.png"):
        assert file.read_bytes() == (tmp_path / "again" / file.relative_to(prepared)).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds other files, such as notes.txt"):
        prepare_digits.prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
