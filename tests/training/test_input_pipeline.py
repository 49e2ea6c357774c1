"""Batches from real TFRecord shards: complete, shuffled by the seed, the same however many take part."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from pipeline.training import input_pipeline
from pipeline.training.decoding import Decoder
from pipeline.training.errors import TrainingError
from pipeline.training.input_pipeline import Split, as_training_error, evaluation_steps, read, steps_per_epoch
from pipeline.training.rows import Rows
from pipeline.training.strategy import Part
from tests.training.records import DECODER, SPEC, write

ROWS = 1000
CACHES = pytest.mark.parametrize("cache", ["memory", "memory beside the steps", "disk", "none"])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("examples"), ROWS, files=3)


def numbers(rows: Rows, packed: tf.Tensor) -> list[int]:
    """Return the row numbers of a batch."""
    return rows.unpack(rows.pick(packed))[0]["x"][:, 1].numpy().astype(int).tolist()


def judged(split: Split, batch_size: int, part: Part, count: int, same_size: bool = False) -> list[list[int]]:
    """Return the row numbers in each of the first batches of an evaluation."""
    return [numbers(split.rows, packed) for packed in split.evaluation(batch_size, part, same_size).take(count)]


def steps(
    split: Split, batch_size: int, count: int, part: Part | None = None, seed: int = 1, first_step: int = 0
) -> list[list[int]]:
    """Return the row numbers that all replicas of one process get, by step."""
    part = part or Part()
    found: list[list[int]] = []
    for chunks in split.training(batch_size, part, seed, first_step).batch(part.local):
        of_replicas = [[numbers(split.rows, packed) for packed in chunk] for chunk in chunks]
        found += map(flat, zip(*of_replicas, strict=True))
        if len(found) >= count:
            break
    return found[:count]


def flat(batches: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def open_split(pattern: str, cache: str, **arguments) -> Split:
    kind, _, beside = cache.partition(" ")
    return read([pattern], DECODER, cache=kind, on_cpu=bool(beside), **arguments)


@pytest.mark.slow
@CACHES
def test_an_epoch_has_every_row_that_fills_a_batch_once_with_its_label(shards, cache):
    split = open_split(shards, cache)
    assert split.examples == ROWS
    assert steps_per_epoch(ROWS, 300, 1) == 3
    six = steps(split, 300, 6)
    for epoch in (six[:3], six[3:]):
        assert len(flat(epoch)) == len(set(flat(epoch))) == 900
    for packed in next(iter(split.training(300, Part(), seed=1)))[:3]:
        features, label = split.rows.unpack(split.rows.pick(packed))
        assert set(features) == {"x"}
        assert label.shape == (300, 1)
        np.testing.assert_array_equal(label[:, 0], features["x"][:, 0].numpy() > 0)


@pytest.mark.parametrize("cache", ["memory", "memory beside the steps"])
def test_nothing_waits_for_a_thread_of_tensorflow_when_a_training_ends(shards, cache):
    """That thread misses its end by chance and then sleeps for up to a minute, so its absence is what can be tested."""
    split = open_split(shards, cache)
    for batches in (split.training(64, Part(), seed=1), split.evaluation(64, Part())):
        assert batches.options().autotune.enabled is False


@pytest.mark.slow
@CACHES
def test_the_seed_decides_the_order_and_every_epoch_has_its_own(shards, cache):
    one = flat(steps(open_split(shards, cache), 100, 20))
    again = flat(steps(open_split(shards, cache), 100, 20))
    other = flat(steps(open_split(shards, cache), 100, 20, seed=2))
    assert one == again
    assert one[:ROWS] != one[ROWS:]
    assert one[:ROWS] != sorted(one[:ROWS])
    assert cache == "disk" or one != other  # the order on disk is made once; blocks of it are shuffled


def test_a_split_beside_the_steps_lies_in_memory_once(shards):
    split = open_split(shards, "memory beside the steps")
    steps(split, 100, 1)
    pick = tf.function(split.rows.pick)
    pick(tf.constant([1, 2]))
    # A variable that was copied to be gathered from is copied for every reader after that.
    reads = [split.rows.matrix.read_value() for _ in range(2)]
    assert len({np.asarray(memoryview(read)).ctypes.data for read in reads}) == 1


@pytest.mark.slow
def test_a_streamed_split_shuffles_no_more_rows_than_fit_into_memory(tmp_path, monkeypatch):
    split = read([write(tmp_path, ROWS)], DECODER, cache="none")
    monkeypatch.setattr(input_pipeline, "BYTES_SHUFFLED", 100 * split.rows.bytes)
    first, *_ = steps(split, 50, 1)
    assert first != sorted(first)
    assert max(first) < 150 <= max(flat(steps(split, 50, 20)))


@pytest.mark.slow
@CACHES
def test_a_training_that_starts_in_the_middle_gets_what_it_would_have_got(shards, cache):
    split = open_split(shards, cache)
    assert steps(split, 64, 18, first_step=22) == steps(split, 64, 40)[22:]


@pytest.mark.slow
@CACHES
def test_replicas_and_workers_share_the_batches_of_one_device(shards, cache):
    alone = steps(open_split(shards, cache), 80, 12)
    first, second = (
        steps(open_split(shards, cache), 20, 12, Part(replicas=4, worker=worker, workers=2)) for worker in range(2)
    )
    assert [[*one, *other] for one, other in zip(first, second, strict=True)] == alone


@pytest.mark.slow
@CACHES
def test_an_evaluation_has_every_row_once_and_no_empty_batch(shards, cache):
    parts = [Part(replicas=6, worker=worker, workers=3) for worker in range(3)]
    count = evaluation_steps(ROWS, 48, 6) * 2
    seen = []
    for part in parts:
        batches = judged(open_split(shards, cache), 48, part, count)
        assert len(batches) == count
        assert {len(batch) for batch in batches} <= {41, 42}
        seen += flat(batches)
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.slow
@CACHES
def test_devices_that_want_static_shapes_get_them(shards, cache):
    split = open_split(shards, cache)
    assert split.training(64, Part(), seed=1).element_spec == split.rows.chunk(64)
    assert split.evaluation(48, Part(), same_size=True).element_spec.shape[0] == 47
    assert {len(batch) for batch in judged(split, 48, Part(), 20, same_size=True)} == {47}


@pytest.mark.slow
def test_workers_that_stream_take_files_of_their_own_dealt_out_by_their_examples(tmp_path):
    pattern = write(tmp_path, ROWS, files=[480, 130, 130, 130, 130])
    parts = [Part(replicas=2, worker=worker, workers=2) for worker in range(2)]
    splits = [open_split(pattern, "none", part=part) for part in parts]
    seen = [set(flat(steps(split, 50, 40, part))) for split, part in zip(splits, parts, strict=True)]
    assert sorted(map(len, seen)) == [480, 520]
    assert not seen[0] & seen[1]
    evaluated = [
        flat(judged(split, 50, part, evaluation_steps(ROWS, 50, 2))) for split, part in zip(splits, parts, strict=True)
    ]
    assert sorted(evaluated[0] + evaluated[1]) == list(range(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("files", [[200], [200, 0], [150, 50]], ids=str)
def test_files_that_cannot_be_dealt_out_evenly_are_shared_row_by_row(tmp_path, files):
    pattern = write(tmp_path / "few", 200, files=files)
    parts = [Part(replicas=2, worker=worker, workers=2) for worker in range(2)]
    epochs = [flat(steps(open_split(pattern, "none", part=part), 50, 2, part)) for part in parts]
    assert sorted(epochs[0] + epochs[1]) == list(range(200))


def test_the_cache_is_the_first_that_there_is_room_for(tmp_path, monkeypatch, caplog):
    pattern = write(tmp_path / "rows", ROWS)
    with caplog.at_level("INFO", logger="pipeline.training"):
        for memory, disk in ((10**9, 10**9), (10**3, 10**9), (10**3, 10**3)):
            monkeypatch.setattr(input_pipeline, "free_memory", lambda free=memory: free)
            monkeypatch.setattr(input_pipeline.shutil, "disk_usage", lambda _, free=disk: SimpleNamespace(free=free))
            open_split(pattern, "auto")
    kinds = [record.getMessage().split("cache: ")[1].split(" ")[0] for record in caplog.records]
    assert kinds == ["memory", "disk", "none"]
    assert "About 1000 examples of 16 bytes from 1 files" in caplog.text


@CACHES
def test_no_files_and_no_examples_are_refused(tmp_path: Path, cache):
    with pytest.raises(TrainingError, match="no examples: nothing matches .*/nothing"):
        open_split(f"{tmp_path}/nothing*", cache)
    tf.io.TFRecordWriter(str(tmp_path / "empty.gz"), tf.io.TFRecordOptions(compression_type="GZIP")).close()
    with pytest.raises(TrainingError, match=r"no examples in .*/empty.gz"):
        assert open_split(f"{tmp_path}/empty.gz", cache).examples


def test_fewer_examples_than_replicas_are_refused(tmp_path):
    split = open_split(write(tmp_path, 3), "memory")
    with pytest.raises(TrainingError, match="3 examples for 4 replicas: each needs at least one"):
        split.evaluation(8, Part(replicas=4))


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["memory", "none"])
def test_a_label_that_is_no_class_is_refused(shards, cache):
    spec = {**SPEC, "x": tf.io.FixedLenFeature([2], tf.float32)}
    split = read([shards], Decoder(spec, "y"), classes=1, cache=cache)
    with pytest.raises((TrainingError, tf.errors.InvalidArgumentError)) as error:
        list(split.evaluation(100, Part()).take(10))
    assert "a label that is not one of the classes, in column y: expected 0 to 0" in str(as_training_error(error.value))
    assert len(list(read([shards], Decoder(spec, "y"), classes=2, cache=cache).evaluation(100, Part()).take(10))) == 10
