"""A run with the stock engine writes what a run with the fast engine writes."""

import hashlib
import re
from pathlib import Path

import pytest
import tensorflow_data_validation as tfdv
import tensorflow_transform as tft

from tests.e2e.run import run

pytestmark = pytest.mark.slow


def artifact(output: Path, name: str) -> Path:
    """The only artifact of an output of a step."""
    (found,) = (path for path in (output / "artifacts" / name).iterdir() if path.name.isdigit())
    return found


def auc(text: str) -> float:
    return float(re.findall(r"auc (0\.\d+) \(floor", text)[-1])


def words_and_numbers(vocabulary: Path) -> tuple[str, list[float]]:
    """The text of a vocabulary without its numbers, and the numbers, such as the statistics of each word."""
    number = re.compile(r"-?\d+\.\d+(?:e[+-]\d+)?")
    text = vocabulary.read_text()
    return number.sub("", text), list(map(float, number.findall(text)))


def test_the_engines_write_equal_artifacts_and_push_a_model(clone, first, tmp_path):
    done = run(clone, "--engine", "stock", "--output", str(tmp_path / "stock"))
    assert done.code == 0, done.text
    assert done.states == first.states
    outputs = (clone / "output/flights", tmp_path / "stock")

    examples = [
        {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("Split-*/*")}
        for folder in (artifact(output, "ExampleGen/examples") for output in outputs)
    ]
    assert examples[0] == examples[1]

    for split in ("train", "eval", "test"):
        files = [artifact(output, "StatisticsGen/statistics") / f"Split-{split}/FeatureStats.pb" for output in outputs]
        ours, stock = (tfdv.load_stats_binary(str(file)).datasets[0] for file in files)
        assert ours.num_examples == stock.num_examples
        of_stock = {feature.path.step[0]: feature for feature in stock.features}
        assert {feature.path.step[0] for feature in ours.features} == of_stock.keys()
        for feature in ours.features:
            other = of_stock[feature.path.step[0]]
            assert feature.type == other.type
            if feature.HasField("num_stats"):
                assert feature.num_stats.mean == pytest.approx(other.num_stats.mean, rel=1e-6)
                assert feature.num_stats.std_dev == pytest.approx(other.num_stats.std_dev, rel=1e-6)
            else:
                assert feature.string_stats.unique == other.string_stats.unique

    schemas = [(artifact(output, "SchemaGen/schema") / "schema.pbtxt").read_text() for output in outputs]
    assert schemas[0] == schemas[1]

    graphs = [tft.TFTransformOutput(str(artifact(output, "Transform/transform_graph"))) for output in outputs]
    assert graphs[0].transformed_feature_spec() == graphs[1].transformed_feature_spec()
    files = [{path.name: path for path in Path(graph.transform_savedmodel_dir, "assets").iterdir()} for graph in graphs]
    assert files[0].keys() == files[1].keys() != set()
    for name, path in files[0].items():
        (words, numbers), (other_words, other_numbers) = map(words_and_numbers, (path, files[1][name]))
        assert words == other_words
        # tf.Transform computes the variance of each key as E[x²] - E[x]² in float32, for each batch: its error depends
        # on the sizes of the batches.
        assert numbers == pytest.approx(other_numbers, rel=1e-4, abs=5e-3)

    # The order of the transformed examples differs, and so do the weights of the network.
    assert auc(done.text) == pytest.approx(auc(first.text), abs=0.05)
