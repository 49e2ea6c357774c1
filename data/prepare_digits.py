"""Prepares the handwritten digits of the installed scikit-learn as PNG files; needs no network.

A folder for each digit, `0` to `9`, with the 1,797 images of 8 x 8 grey pixels, each named by its place in the set.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

BRIGHTEST = 16  # of the set's pixels, which count from 0; in the files 255


def prepare(output: Path) -> None:
    """Writes one PNG file an image into `output`/0 to `output`/9, replacing an earlier preparation.

    The folder appears whole or not at all: it is written under another name beside `output` and then renamed.

    Args:
        output: folder to write; a folder that holds anything else is refused, for it would be deleted.

    Raises:
        FileExistsError: `output` holds files that did not come from here.
    """
    digits = load_digits()
    files = [Path(str(digit), f"{number:04}.png") for number, digit in enumerate(digits.target)]
    if output.exists():
        foreign = {path.relative_to(output) for path in output.rglob("*") if path.is_file()} - set(files)
        if foreign:
            raise FileExistsError(f"{output} holds other files, such as {min(foreign)}; give a new or empty folder.")

    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as beside:
        new = Path(beside, "new")
        for digit in sorted(set(digits.target)):
            Path(new, str(digit)).mkdir(parents=True)
        pixels = np.round(digits.images * (255 / BRIGHTEST)).astype(np.uint8)
        for file, image in zip(files, pixels, strict=True):
            # Uncompressed, so that every release of zlib writes the same bytes, by which images are split.
            Image.fromarray(image).save(new / file, "PNG", compress_level=0)
        if output.exists():
            output.rename(Path(beside, "old"))
        new.rename(output)
    print(f"Wrote {len(files):,} images of {len(set(digits.target))} digits to {output}")


def main() -> None:
    """Reads the arguments and prepares the data."""
    parser = argparse.ArgumentParser(description="Prepare scikit-learn's handwritten digits as PNG files.")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).resolve().parent / "digits",
        metavar="FOLDER",
        help="folder for 0/ to 9/ (default: %(default)s)",
    )
    try:
        prepare(parser.parse_args().output)
    except FileExistsError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
