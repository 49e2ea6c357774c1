"""Findings about images, from files to the page that a browser shows."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from sklearn.datasets import load_digits

from tests.e2e.run import call, copy_repository

pytestmark = pytest.mark.slow
CONFIG = """\
from dataclasses import replace
from pathlib import Path
import runpy

root = Path(__file__).parent.parent
CONFIG = runpy.run_path(str(root / "configs/digits.py"))["CONFIG"]
SPLITS = {split: f"{split}/**/*" for split in ("train", "eval", "test")}
CONFIG = replace(CONFIG, data=replace(CONFIG.data, path="data/spoilt", splits=SPLITS, prepare=None))
"""


def write_spoilt(folder: Path) -> None:
    """Writes digits: in eval a tenth are images of train and all are bright, and in test one is no PNG file."""
    data = load_digits()
    images = [Image.fromarray((pixels * 15).astype(np.uint8)) for pixels in data.images[:900]]
    for number, (image, digit) in enumerate(zip(images, data.target, strict=False)):
        split = ("train", "eval", "test")[number % 3]
        if split == "eval":
            image = ImageOps.invert(image)
        if split == "eval" and number % 30 == 1:
            image = images[number - 1]
        path = folder / split / str(digit if number % 30 != 1 else data.target[number - 1]) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, "BMP" if number == 2 else "PNG")


def test_equal_images_in_two_splits_other_brightness_and_other_formats_are_seen_in_the_report(tmp_path, browser):
    clone = copy_repository(tmp_path / "clone")
    write_spoilt(clone / "data/spoilt")
    (clone / "configs/spoilt.py").write_text(CONFIG)
    done = call(clone, "local_runner.py", "--pipeline", "spoilt")
    assert done.code == 1, done.text
    (report,) = re.findall(r"^report (.+)$", done.text, re.MULTILINE)
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto((clone / report).as_uri())
    text = page.inner_text("body")
    context.close()
    assert re.search(r"train/\d/\d+\.png", text), text
    for expected in ("image_brightness", "image_format", "BMP", "are in train too"):
        assert expected in text, text
