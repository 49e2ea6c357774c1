"""Rows that explanations begin from: from the whole split, and by the number of rows of its files."""

from pathlib import Path

import pytest

from pipeline.model.background import KEPT, MOST_BYTES, Picked, read


def write(graph: Path, file: int, rows: list[bytes], block: int = 1_000) -> None:
    """Rows of a file, as Transform passes them on."""
    picked = Picked()
    blocks = [rows[start : start + block] for start in range(0, len(rows), block)]
    assert list(picked.passing(blocks)) == blocks
    picked.write(str(graph), file)


def numbers(start: int, stop: int) -> list[bytes]:
    return [str(number).encode() for number in range(start, stop)]


@pytest.mark.parametrize("block", [7, 1_000, 4_096])
def test_they_are_spread_over_the_split_whatever_the_sizes_of_its_files(tmp_path, block):
    write(tmp_path, 0, numbers(0, 9_000), block)
    write(tmp_path, 1, numbers(9_000, 10_000), block)
    found = [int(row) for row in read(str(tmp_path), 50)]
    assert len(found) == 50
    assert found == sorted(found)
    assert max(b - a for a, b in zip([0, *found], [*found, 10_000], strict=True)) < 400
    assert sum(number >= 9_000 for number in found) in (4, 5, 6)


def test_of_a_small_split_all_rows_are_taken_and_of_none_none(tmp_path):
    write(tmp_path, 0, numbers(0, 30))
    assert read(str(tmp_path), 64) == numbers(0, 30)
    assert read(str(tmp_path), 0) == []
    assert read(str(tmp_path / "of an earlier release"), 64) == []


def test_rows_that_are_too_large_and_empty_files_are_passed_over(tmp_path):
    write(tmp_path, 0, [b"x" * (MOST_BYTES + 1), b"small"])
    write(tmp_path, 1, [])
    assert read(str(tmp_path), 64) == [b"small"]


def test_no_more_than_twice_the_rows_to_keep_are_kept_of_a_file_and_the_log_says_so(tmp_path, caplog):
    write(tmp_path, 0, numbers(0, 100_000))
    with caplog.at_level("INFO", "pipeline.training"):
        assert len(read(str(tmp_path), KEPT)) == KEPT
        assert caplog.messages == []
        kept = len(read(str(tmp_path), 10_000))
    assert KEPT <= kept < 2 * KEPT
    assert caplog.messages == [
        f"Explanations begin from {kept} rows, not training.explain_rows=10000: no more are kept."
    ]
