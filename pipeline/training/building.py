"""Create all variables of a model before its first step, as ``Model.fit`` does."""

import keras

from pipeline.training.errors import TrainingError
from pipeline.training.rows import Rows
from pipeline.training.strategy import Distribution


def build(model: keras.Model, rows: Rows, batch_size: int, distribution: Distribution) -> None:
    """Create all variables of a compiled model, its metrics and its optimizer.

    Args:
        model: As build_model returns it.
        rows: Of the train split.
        batch_size: Examples of a replica's step.
        distribution: The devices of the training.

    Raises:
        TrainingError: it is no model or not compiled, or has metrics that ignore weights of rows.
    """
    if not isinstance(model, keras.Model):
        raise TrainingError(f"build_model returns {type(model).__name__}, expected a compiled keras.Model; return it")
    if not model.compiled:
        raise TrainingError(
            "build_model returns a model that is not compiled; call model.compile(optimizer, loss, ...)"
        )
    # Metrics that ignore weights are refused, for the training would be judged by them.
    if rows.weight and model.get_compile_config().get("metrics"):
        raise TrainingError(
            "label.weight names a column, and Keras does not weigh what build_model compiles as metrics=[...]; compile "
            "them as weighted_metrics=[...]"
        )
    with distribution.strategy.scope():
        model._symbolic_build(data_batch=rows.batch_spec(batch_size))
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
