"""A model of columns that hold any number of values in a row."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from pipeline.cli import predict
from pipeline.model.export_format import INPUTS
from pipeline.model.features import Refused, from_columns, from_instances, joined
from pipeline.model.signatures import Model, load
from pipeline.serving.app import describe
from pipeline.serving.batching import Batcher

ROWS = [{"ids": [1, 2, 3], "words": ["a", "bcd"]}, {"ids": None, "words": []}, {"ids": [2**40], "words": ["é"]}]
SUMS = [6 + 4, 0, 2**40 + 2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model that answers the sum of the numbers and of the words' bytes."""
    folder: Path = tmp_path_factory.mktemp("lists") / "model"
    server = tf.Module()
    several = {
        "ids": tf.TensorSpec([None, None], tf.float64, name="ids"),
        "words": tf.TensorSpec([None, None], tf.string, name="words"),
    }

    @tf.function(input_signature=[several])
    def rows(given):
        ids = tf.where(tf.math.is_nan(given["ids"]), tf.zeros_like(given["ids"]), given["ids"])
        lengths = tf.cast(tf.strings.length(given["words"]), tf.float64)
        return {"prediction": tf.reduce_sum(ids, axis=1) + tf.reduce_sum(lengths, axis=1)}

    tf.saved_model.save(server, str(folder), signatures={"serving_default": rows})
    described = {"ids": {"type": "integers", "required": False}, "words": {"type": "text", "required": False}}
    (folder / INPUTS).parent.mkdir(exist_ok=True)
    (folder / INPUTS).write_text(json.dumps(described))
    return load(str(folder))


def test_rows_have_any_number_of_values_and_requests_of_different_lengths_are_joined(model):
    inputs = model.rows.inputs
    assert model.rows.predict(from_instances(ROWS, inputs))["prediction"].tolist() == SUMS
    apart = [from_instances([row], inputs) for row in ROWS]
    together = {name: joined([columns[name] for columns in apart], inputs[name]) for name in inputs}
    assert model.rows.predict(together)["prediction"].tolist() == SUMS


def test_a_value_that_is_no_list_or_has_a_wrong_one_inside_is_refused_and_the_list_described(model):
    with pytest.raises(Refused, match="'ids': expected a list of values, each a whole number, or null .*, got 3"):
        from_instances([{"ids": 3}], model.rows.inputs)
    with pytest.raises(Refused, match=r"instances\[1\]: feature 'ids': .*got 'x'"):
        from_instances([{"ids": [3]}, {"ids": [3, "x"]}], model.rows.inputs)
    text = json.dumps(describe("lists", model, 10))
    assert '"type": "array", "items": {"type": "string"}}' in text


def test_predict_answers_the_lists_of_a_file(model, tmp_path):
    pd.DataFrame(ROWS).to_parquet(tmp_path / "rows.parquet")
    predict.predict(model, predict.find_files(str(tmp_path / "rows.parquet")), tmp_path / "answers.parquet")
    assert pd.read_parquet(tmp_path / "answers.parquet")["prediction"].to_numpy() == pytest.approx(np.array(SUMS))


def test_one_long_list_does_not_multiply_by_the_rows_of_its_request(model):
    message = (
        r"^2,001 rows of 100,001 values, each list filled up to the longest, are 200,102,001 values; expected at most "
        r"5,000,000: send fewer rows, or those with long lists apart$"
    )
    inputs = model.rows.inputs
    with pytest.raises(Refused, match=message):
        from_instances([{"ids": [0] * 100_000}] + [{"ids": []}] * 2_000, inputs, most_cells=5_000_000)
    with pytest.raises(Refused, match=message):
        from_columns({"ids": [[0] * 100_000] + [[]] * 2_000}, inputs, most_cells=5_000_000)
    alone = from_instances([{"ids": [0] * 100_000}], inputs, most_cells=5_000_000)
    assert alone["ids"].shape == (1, 100_000)


def test_a_stranger_s_long_list_does_not_multiply_by_the_rows_of_others(model):
    """A call has 4,096 KiB of lists at most, as long as the longest, but for a request that has more by itself."""
    calls: list[int] = []
    requests = [[{"ids": [1] * 100_000}], *([{"ids": [1], "words": ["a"]}] * 100 for _ in range(5))]

    async def ask() -> list[float]:
        with ThreadPoolExecutor(1) as pool:
            batcher = Batcher(model.rows, pool, 50_000, calls.append)
            columns = [from_instances(rows, model.rows.inputs) for rows in requests]
            answers = await asyncio.gather(*map(batcher.predict, columns))
            return [float(answer["prediction"].sum()) for answer in answers]

    assert asyncio.run(ask()) == [100_000, 200, 200, 200, 200, 200]
    assert calls == [1, 500]
