"""The model's inputs, as Transform made them."""

from dataclasses import dataclass, field

import keras
import tensorflow_transform as tft


@dataclass(frozen=True)
class Features:
    """Transformed features by kind.

    Attributes:
        numbers: Values per example by name of the float32 features, [batch, values] in a dataset.
        categories: Size of the vocabulary by name of the int64 features, [batch, places] in a dataset. They count from
            0; the last value stands for what the vocabulary lacks, if ``preprocessing_fn`` asked for such a bucket.
        places: Values per example of the categories that have other than one, by name.
    """

    numbers: dict[str, int]
    categories: dict[str, int]
    places: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, transform_output: tft.TFTransformOutput, label: str) -> "Features":
        """Return the kinds in the schema that Transform wrote: a category is an integer with a known range.

        Raises:
            ValueError: a feature is neither a float nor an integer with a range.
        """
        ranges = {
            feature.name: feature.int_domain
            for feature in transform_output.transformed_metadata.schema.feature
            if feature.int_domain.is_categorical
        }
        numbers, categories, places = {}, {}, {}
        for name, spec in sorted(transform_output.transformed_feature_spec().items()):
            if name == label:
                continue
            if name in ranges:
                categories[name] = ranges[name].max + 1
                if spec.shape[0] != 1:
                    places[name] = spec.shape[0]
            elif spec.dtype.is_floating:
                numbers[name] = spec.shape[0]
            else:
                raise ValueError(
                    f"preprocessing_fn returns {name!r} as {spec.dtype.name} without a range; expected float32, or an "
                    "integer from tft.compute_and_apply_vocabulary, tft.bucketize or tft.apply_buckets"
                )
        return cls(numbers=numbers, categories=categories, places=places)

    def inputs(self) -> dict[str, keras.KerasTensor]:
        """Return a ``keras.Input`` for each feature."""
        return {
            **{name: keras.Input((values,), name=name, dtype="float32") for name, values in self.numbers.items()},
            **{name: keras.Input((self.places.get(name, 1),), name=name, dtype="int64") for name in self.categories},
        }
