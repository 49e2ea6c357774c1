"""Numbers become their places among those of the train split."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam

from pipeline.training.preprocessing import quantile_transform

NAN = float("nan")


@pytest.fixture(scope="module")
def transform(tmp_path_factory):
    """Columns: even, skewed, mostly one value, all the same, nothing at all, and huge ones with infinities."""
    rng = np.random.default_rng(0)
    rows = 3000
    columns = [
        np.linspace(0, 100, rows),
        rng.lognormal(sigma=3, size=rows),
        np.where(rng.random(rows) < 0.7, 0.0, rng.integers(1, 6, rows)),
        np.full(rows, 5.0),
        np.full(rows, NAN),
        np.where(np.arange(rows) % 10 == 0, np.inf, rng.normal(size=rows) * 1e30),
    ]
    train = np.stack(columns, axis=1).astype(np.float32)
    train[::7, 0] = NAN
    spec = {"numbers": tf.io.FixedLenFeature([len(columns)], tf.float32)}
    metadata = tft.DatasetMetadata.from_feature_spec(spec)
    scratch = tmp_path_factory.mktemp("transform")
    with tft_beam.Context(temp_dir=str(scratch)):
        given = [{"numbers": row} for row in train], metadata
        (answers, _), function = given | tft_beam.AnalyzeAndTransformDataset(
            lambda inputs: {"places": quantile_transform(inputs["numbers"])}
        )
        function | tft_beam.WriteTransformFn(str(scratch / "graph"))
    layer = tft.TFTransformOutput(str(scratch / "graph")).transform_features_layer()
    return train, np.stack([row["places"] for row in answers]), lambda rows: layer({"numbers": rows})["places"].numpy()


@pytest.mark.slow
def test_places_are_even_over_0_to_1(transform):
    _, places, _ = transform
    for column in (0, 1):
        known = np.sort(places[:, column][~np.isnan(places[:, column])])
        inner = known[len(known) // 50 : -len(known) // 50]
        np.testing.assert_allclose(
            inner, np.linspace(0, 1, len(known))[len(known) // 50 : -len(known) // 50], atol=0.02
        )


def test_order_is_kept(transform):
    train, places, _ = transform
    for column in (0, 1, 2):
        order = np.argsort(train[:, column])
        assert (np.diff(places[order, column][~np.isnan(train[order, column])]) >= -1e-6).all()


def test_a_frequent_value_is_one_step(transform):
    train, places, _ = transform
    steps = np.array([places[train[:, 2] == value, 2].mean() for value in range(6)])
    np.testing.assert_allclose(steps, np.arange(6) / 5, atol=1e-6)


def test_what_is_missing_or_infinite_stays_missing(transform):
    train, places, answer = transform
    np.testing.assert_array_equal(np.isnan(places), ~np.isfinite(train))
    assert np.isnan(answer(tf.constant([[NAN, np.inf, -np.inf, NAN, NAN, NAN]]))[0]).all()


def test_what_lies_outside_stays_near_and_in_order(transform):
    _, _, answer = transform
    rows = tf.constant([[value, value, value, value, value, value] for value in (-3e38, -500, 500, 3e38)])
    places = answer(rows)
    assert np.isfinite(places[:, :4]).all()
    assert ((places[:, :4] >= -0.5) & (places[:, :4] <= 1.5)).all()
    assert (np.diff(places[:, 0]) > 0).all()
    assert places[0, 3] < places[1, 3] < 0.5 < places[2, 3] < places[3, 3]  # beside the only value there was
