"""Describe the model's inputs, made by Transform and ``decode``."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf
import tensorflow_transform as tft

from pipeline.training.decoding import Decoder


@dataclass(frozen=True)
class Features:
    """Features by kind.

    Attributes:
        numbers: Values per example by name of the float32 features, [batch, values] in a dataset.
        categories: Size of the vocabulary by name of the int64 features, [batch, places] in a dataset. They count from
            0; the last value stands for what the vocabulary lacks, if ``preprocessing_fn`` asked for such a bucket.
            Those of varying number in an example count from 1: 0 fills them up to training.sequence_length.
        places: Values per example of the categories that have other than one, by name.
        tensors: Shape and type of one example by name of all others, such as images, uint8 [height, width, channels].
        weights: training.backbone_weights of the config, for ``training.backbone``.
        padded: Those of varying number in an example, filled up with 0.
    """

    numbers: dict[str, int]
    categories: dict[str, int]
    places: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, tf.TensorSpec] = field(default_factory=dict)
    weights: str | None = None
    padded: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        transform_output: tft.TFTransformOutput,
        label: str,
        decoder: Decoder | None = None,
        weights: str | None = None,
    ) -> "Features":
        """Return the kinds in the schema that Transform wrote: a category is an integer with a known range.

        Args:
            transform_output: Written by Transform.
            label: Not a feature.
            decoder: Of the transformed features; None only fills up those of varying length.
            weights: Of a backbone.

        Raises:
            ValueError: without ``decode``, a feature is neither a float nor an integer with a range.
        """
        decoder = decoder or Decoder(transform_output.transformed_feature_spec(), label)
        ranges = {
            feature.name: feature.int_domain
            for feature in transform_output.transformed_metadata.schema.feature
            if feature.int_domain.is_categorical
        }
        numbers, categories, places, tensors = {}, {}, {}, {}
        for name, spec in sorted(decoder.specs.items()):
            if name in ranges and spec.dtype.is_integer and len(spec.shape) == 1:
                categories[name] = ranges[name].max + (2 if name in decoder.padded else 1)
                if spec.shape[0] != 1:
                    places[name] = spec.shape[0]
            elif spec.dtype.is_floating and len(spec.shape) == 1:
                numbers[name] = spec.shape[0]
            elif decoder.decodes:
                tensors[name] = spec
            else:
                raise ValueError(
                    f"preprocessing_fn returns {name!r} as {spec.dtype.name} without a range; expected float32, or an "
                    "integer from tft.compute_and_apply_vocabulary, tft.bucketize or tft.apply_buckets"
                )
        return cls(numbers, categories, places, tensors, weights, decoder.padded)

    def without(self, names: Collection[str]) -> "Features":
        """Return the other features; ignore unknown names, for ``preprocessing_fn`` may leave out what it derives."""

        def others(kind: dict[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in kind.items() if name not in names}

        return replace(
            self, numbers=others(self.numbers), categories=others(self.categories), tensors=others(self.tensors)
        )

    def inputs(self) -> dict[str, keras.KerasTensor]:
        """Return a ``keras.Input`` for each feature."""
        return {
            **{name: keras.Input((values,), name=name, dtype="float32") for name, values in self.numbers.items()},
            **{name: keras.Input((self.places.get(name, 1),), name=name, dtype="int64") for name in self.categories},
            **{name: keras.Input(spec.shape, name=name, dtype=spec.dtype.name) for name, spec in self.tensors.items()},
        }
