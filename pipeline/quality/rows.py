"""Find what statistics do not show: repeated rows, and columns that contain a leaked label."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import filesystem
from pipeline.data import kept, tfrecord_files
from pipeline.data.blocks import read_blocks
from pipeline.data.table import Unit, one_array
from pipeline.quality.findings import SHOWN, Finding
from pipeline.quality.intervals import fisher, hanley_mcneil
from pipeline.settings.gates import DataChecks
from pipeline.settings.image_data import facts
from pipeline.settings.names import shortened

BLOCK = 16_384
KIND = "hashes"  # of what is kept
# Rows of a split by which columns are judged; far fewer tell an AUC of 0.98 from one of 0.97.
SAMPLE = 20_000
# Fewer rows may predict the label by chance. Each row is scored by the other parts of FOLDS.
MIN_ROWS, FOLDS = 50, 5
Z = NormalDist().inv_cdf(0.975)  # of a confidence of 95 %
# Most bins of a number's values, and rows per bin, so that a bin has some in every part.
BINS, ROWS_OF_A_BIN = 256, 10
# Hashes of all splits together, 8 bytes each; of more rows, every n-th hash.
MOST_HASHES = 20_000_000

Files = Mapping[str, Sequence[str]]


def repeated_rows(
    files: Files, rows: Mapping[str, int], checks: DataChecks, image: str | None = None, root: str = ""
) -> Iterator[Finding]:
    """Find rows that are in several splits, and rows that are in one split several times.

    ``files`` are TFRecords by split, in the order train, eval, test; ``rows`` is their number. With ``image``, a column
    of encoded images, rows with the same image are equal. ``root`` keeps hashes for windows of spans.
    """
    every = 1 + sum(rows.values()) // MOST_HASHES
    seen: dict[str, np.ndarray] = {}
    for split, of_split in files.items():
        # NumPy's unique and isin would put them into a table, which takes forty times as long.
        hashes = _hashes(of_split, every, image, root)
        distinct = hashes[np.diff(hashes, prepend=hashes[:1] - 1) != 0]
        repeated = 1 - len(distinct) / max(1, len(hashes))
        shares = [("repeated_rows", repeated, "repeat another row of it", checks.max_repeated_rows, "")]
        for earlier, others in seen.items():
            shared = float(_are_among(hashes, others).mean()) if len(hashes) else 0.0
            shares.append(("shared_rows", shared, f"are in {earlier} too", checks.max_shared_rows, earlier))
        for kind, share, text, limit, other in shares:
            few_images = 0 < share <= limit and bool(image and other)
            if share > limit or few_images:
                values = _same_images(files, split, other, image, hashes, seen) if image else ()
                found = f"{100 * share:.1f} % of {rows[split]:,} {text}"
                allowed = f"at most {100 * limit:g} % may"
                remedy = f"take the files apart; accept it: DataChecks(max_{kind}=...) in the config"
                if few_images:
                    kind, found = "shared_images", f"{round(share * rows[split]):,} of {rows[split]:,} {text}"
                    allowed = f"such images make a model look better than it is; above {100 * limit:g} % the run stops"
                    remedy = 'take the files apart; accept it: DataChecks(severity={"shared_images": "ignore"})'
                yield Finding(kind, split, "", found, allowed, remedy, values)
        seen[split] = distinct
    if root:
        kept.prune(root, KIND, [_folder(file, root) for of_split in files.values() for file in of_split])


def sampled(files: Sequence[str], image: str | None = None, most: int | None = None) -> pa.Table:
    """Read a ``sample`` as one table."""
    return pa.concat_tables(sample(files, image, most), promote_options="permissive")


def sample(files: Sequence[str], image: str | None = None, most: int | None = None) -> Iterator[pa.Table]:
    """Yield up to ``most`` rows (or ``SAMPLE``) from the beginnings of the files, without images and their paths."""
    each = -(-(most or SAMPLE) // max(1, len(files)))
    left_out = {image, *facts(image)[:2]} if image else set()
    for file in files:
        wanted = each
        # ``tables_of`` checks all lengths first, which takes longer than the first rows; only images may be too large.
        for table in tables_of([file], each) if image else map(pa.table, read_blocks(file, at_once=each)):
            usable = table.select([name for name in table.column_names if name not in left_out])
            yield usable.slice(0, wanted)
            wanted -= table.num_rows
            if wanted <= 0:
                break


def leaks(
    rows: pa.Table, label: str, checks: DataChecks, classes: int = 2, image: str | None = None
) -> Iterator[Finding]:
    """Find columns that alone predict the label, with a whole confidence interval above the limit.

    ``rows`` are columns of lists; ``classes`` is 0 where the label is a number. Of images in a column ``image``, the
    size or format may predict the label.
    """
    labels = labels_of(rows, label, classes)
    if labels is None or len(labels) < MIN_ROWS:
        return
    for name in rows.column_names:
        if name == label:
            continue
        codes = _coded(rows.column(name))
        if codes is None:
            continue
        if classes:
            numbers = range(1, 2) if classes == 2 else range(classes)
            areas = [column_auc(codes, (labels == number) * 1.0) for number in numbers]
            value, lowest = (float(np.mean(part)) for part in zip(*areas, strict=True))
            measure = "an AUC"
        else:
            (value, lowest), measure = column_correlation(codes, labels), "a squared correlation"
        if lowest > checks.max_column_auc:
            remedy = f"set lifecycle_stage: DISABLED for {name} in the schema: no model reads it, a split still can"
            if image and name in facts(image):
                remedy = "take the images of all classes in the same way, or a model learns this and not what they show"
            yield Finding(
                "leak",
                "train",
                name,
                f"this column alone predicts the label with {measure} of {value:.4f} ({lowest:.4f} or more)",
                f"at most {checks.max_column_auc:g}, or it knows what only the future knows",
                f'{remedy}; accept it: annotation {{ tag: "leak: ignore" }} of {name} in the schema',
            )


def missing_classes(files: Sequence[str], label: str, classes: Sequence[str]) -> Iterator[Finding]:
    """Find classes of several that no row of train has; only enough of it is read to meet all."""
    seen: set[int] = set()
    for rows in (rows for file in files for rows in tfrecord_files.read(Unit(file, "tfrecord"), [label], BLOCK)):
        values = scalars(rows.table.column(label)) if rows.table.num_columns else None
        seen.update([] if values is None else pc.unique(values.drop_null()).to_pylist())
        if seen.issuperset(range(len(classes))):
            return
    absent = [name for number, name in enumerate(classes) if number not in seen]
    limit = "the model never answers a class that it has not seen"
    remedy = "give train such rows, by data.split_by or more data; or take the class out of label.classes"
    yield Finding("missing_class", "train", label, f"no row of {shortened(absent, SHOWN)}", limit, remedy)


def column_auc(codes: np.ndarray, label: np.ndarray) -> tuple[float, float]:
    """Return the AUC of a column for label 1, and its lowest likely value (Hanley and McNeil).

    Args:
        codes: Values as codes from 0, int64 [rows].
        label: 0 or 1, [rows].
    """
    scores = _scores_by_others(codes, label)
    # Mann-Whitney, by value: of two rows with the same score, each wins half.
    place = np.unique(scores, return_inverse=True)[1]
    positives = np.bincount(place, weights=label)
    negatives = np.bincount(place, weights=1 - label)
    pairs = positives.sum() * negatives.sum()
    if not pairs:
        return 0.5, 0.0
    area = float((positives * (np.cumsum(negatives) - negatives / 2)).sum() / pairs)
    bounds = hanley_mcneil(area, float(positives.sum()), float(negatives.sum()), Z)
    return area, bounds[0] if bounds else 0.0


def column_correlation(codes: np.ndarray, label: np.ndarray) -> tuple[float, float]:
    """Return the squared correlation of a numeric label with its mean by value, and its lowest likely value."""
    scores = _scores_by_others(codes, label)
    if np.ptp(scores) == 0 or np.ptp(label) == 0:
        return 0.0, 0.0
    squared = float(np.corrcoef(scores, label)[0, 1] ** 2)
    return squared, fisher(squared, len(label), Z)[0]


def _scores_by_others(codes: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Return the mean label of each row's value among the rows of the other parts, [rows]."""
    size = int(codes.max(initial=0)) + 1
    fold = np.random.RandomState(0).permutation(len(codes)) % FOLDS
    scores = np.empty(len(codes))
    for part in range(FOLDS):
        mine, others = fold == part, fold != part
        counts = np.bincount(codes[others], minlength=size)
        sums = np.bincount(codes[others], weights=label[others], minlength=size)
        mean = label[others].mean()
        # One row of average outcome more: a value seen once proves little.
        scores[mine] = ((sums + mean) / (counts + 1))[codes[mine]]
    return scores


def tables_of(files: Sequence[str], at_once: int = BLOCK) -> Iterator[pa.Table]:
    """Yield the examples in TFRecords, block by block, as columns of lists."""
    return (rows.table for file in files for rows in tfrecord_files.read(Unit(file, "tfrecord"), at_once=at_once))


def _same_images(
    files: Files, split: str, other: str, image: str, hashes: np.ndarray, seen: Mapping[str, np.ndarray]
) -> tuple[tuple[str, int], ...]:
    """Return paths of equal images and how many there are of each, in a split alone or in another one too."""
    distinct, counts = np.unique(hashes, return_counts=True)
    chosen = distinct[np.isin(distinct, seen[other]) if other else counts > 1][:SHOWN].tolist()
    mine = _paths(files[split], image, chosen)
    theirs = _paths(files[other], image, chosen) if other else {}
    pairs = []
    for key in chosen:
        text = f"{mine[key][0]} is {theirs[key][0]} of {other}" if other else " is ".join(mine[key][:2])
        pairs.append((text, len(mine[key]) + len(theirs.get(key, ()))))
    return tuple(pairs)


def _paths(files: Sequence[str], image: str, hashes: Sequence[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {key: [] for key in hashes}
    path = facts(image)[0]
    for file in files:
        for rows in tfrecord_files.read(Unit(file, "tfrecord"), [image, path], BLOCK):
            encoded, paths = (scalars(rows.table.column(name)) for name in (image, path))
            for key, at in zip(map(hash, encoded.to_pylist()), paths.to_pylist(), strict=True):
                if key in found:
                    found[key].append(at.decode(errors="replace"))
    return found


def _hashes(files: Sequence[str], every: int, image: str | None, root: str = "") -> np.ndarray:
    """Return every n-th hash of the rows, int64, sorted."""
    parts = [_kept_hashes(file, root) if root else _hashes_of(file, image) for file in files]
    hashes = np.concatenate([np.zeros(0, np.int64), *parts])
    return np.sort(hashes[hashes % every == 0])


def _hashes_of(file: str, image: str | None) -> np.ndarray:
    """Return the hashes of the serialized examples, or of the images in them, for this process."""
    if image is None:
        blocks = tfrecord_files.read_records(file, BLOCK)
    else:
        tables = tfrecord_files.read(Unit(file, "tfrecord"), [image], BLOCK)
        blocks = (scalars(rows.table.column(image)).to_pylist() for rows in tables)
    return np.fromiter(map(hash, itertools.chain.from_iterable(blocks)), np.int64)


def _kept_hashes(file: str, root: str) -> np.ndarray:
    """Return hashes of the serialized examples that are the same in every process, which a run may have kept."""
    folder = _folder(file, root)
    if not kept.is_whole(folder):
        records = itertools.chain.from_iterable(tfrecord_files.read_records(file, BLOCK))
        found = b"".join(blake2b(record, digest_size=8).digest() for record in records)
        kept.write_value(folder, np.frombuffer(found, np.int64))
        kept.seal(folder)
    hashes: np.ndarray = kept.read_value(folder)
    return hashes


def _are_among(hashes: np.ndarray, distinct: np.ndarray) -> np.ndarray:
    """Return which hashes are among others, bool [hashes]; both are sorted."""
    if not len(distinct):
        return np.zeros(len(hashes), bool)
    return distinct[np.searchsorted(distinct, hashes).clip(max=len(distinct) - 1)] == hashes


def _folder(file: str, root: str) -> str:
    return kept.folder_of(root, KIND, "blake2b", filesystem.digest(file))


def labels_of(table: pa.Table, label: str, classes: int) -> np.ndarray | None:
    """Return labels, float64 [rows]; None where some row has no valid one."""
    if label not in table.column_names or pa.types.is_null(table.column(label).type):
        return None
    values = pc.list_flatten(table.column(label)).combine_chunks()
    if len(values) != table.num_rows or not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return None
    found = np.asarray(values, np.float64)
    return found if (np.isin(found, range(classes)) if classes else np.isfinite(found)).all() else None


def _coded(column: pa.ChunkedArray) -> np.ndarray | None:
    """Return values as codes from 0, int64 [rows], of numbers by bin; None where a row has several values."""
    values = scalars(column)
    if values is None:
        return None
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        codes = values.dictionary_encode().indices
        return np.asarray(pc.fill_null(codes, len(values)), np.int64)
    numbers = np.asarray(values.cast(pa.float64(), safe=False).fill_null(np.nan))
    finite = np.isfinite(numbers)
    edges = np.unique(numbers[finite])
    bins = min(BINS, max(8, finite.sum() // ROWS_OF_A_BIN))
    if len(edges) > bins:
        edges = np.unique(np.quantile(numbers[finite], np.linspace(0, 1, bins + 1)[1:-1]))
    return np.where(finite, np.searchsorted(edges, numbers, side="left"), len(edges) + 1)


def scalars(column: pa.ChunkedArray) -> Any:
    """Return one value or null per row; None where some row has several."""
    lists = one_array(column)
    if pa.types.is_null(lists.type):
        return None
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    if len(lengths) and lengths.max() > 1:
        return None
    ends = np.cumsum(lengths) - 1
    return lists.flatten().take(pa.array(np.where(lengths == 1, ends, 0), mask=lengths == 0))
