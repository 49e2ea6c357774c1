"""A module file as users of TFX write them; the rows of tables/module_files.py replace parts of it."""

import keras_tuner
import tensorflow as tf
import tensorflow_transform as tft
from tfx import v1 as tfx
from tfx_bsl.public import tfxio

LABEL = "wanted"
NUMBERS = ["height", "age"]


def _dense(values, default):
    if isinstance(values, tf.SparseTensor):
        values = tf.sparse.to_dense(tf.SparseTensor(values.indices, values.values, [values.dense_shape[0], 1]), default)
    return tf.reshape(values, [-1, 1])


def preprocessing_fn(inputs):
    outputs = {}
    for name in NUMBERS:
        number = _dense(tf.cast(inputs[name], tf.float32), 0.0)
        outputs[name] = tft.scale_to_z_score(number)
    outputs["region"] = tft.compute_and_apply_vocabulary(_dense(inputs["region"], ""), num_oov_buckets=1)
    outputs[LABEL] = inputs[LABEL]
    return outputs


def _data(files, fn_args, transformed):
    options = tfxio.TensorFlowDatasetOptions(batch_size=64, label_key=LABEL)
    return fn_args.data_accessor.tf_dataset_factory(files, options, transformed.transformed_metadata.schema).repeat()


def _model(hp):
    inputs = {name: tf.keras.Input((1,), name=name) for name in NUMBERS}
    inputs["region"] = tf.keras.Input((1,), name="region", dtype="int64")
    region = tf.keras.layers.Flatten()(tf.keras.layers.Embedding(8, 4)(inputs["region"]))
    hidden = tf.keras.layers.Concatenate()([*(inputs[name] for name in NUMBERS), region])
    hidden = tf.keras.layers.Dense(hp.Int("units", 16, 32, 16), activation="relu")(hidden)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(tf.keras.optimizers.Adam(0.01), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def _tuner(fn_args):
    return keras_tuner.RandomSearch(_model, max_trials=2, objective="val_loss", directory=fn_args.working_dir)


def tuner_fn(fn_args):
    transformed = tft.TFTransformOutput(fn_args.transform_graph_path)
    fit = {
        "x": _data(fn_args.train_files, fn_args, transformed),
        "validation_data": _data(fn_args.eval_files, fn_args, transformed),
        "steps_per_epoch": fn_args.train_steps,
        "validation_steps": fn_args.eval_steps,
    }
    return tfx.components.TunerFnResult(tuner=_tuner(fn_args), fit_kwargs=fit)


def _signature(model, transformed):
    model.transform = transformed.transform_features_layer()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(examples):
        spec = transformed.raw_feature_spec()
        spec.pop(LABEL)
        features = model.transform(tf.io.parse_example(examples, spec))
        features = {name: features[name] for name in [*NUMBERS, "region"]}
        return model(features)

    return serve


def run_fn(fn_args):
    transformed = tft.TFTransformOutput(fn_args.transform_output)
    hp = keras_tuner.HyperParameters()
    if fn_args.hyperparameters:
        hp = keras_tuner.HyperParameters.from_config(fn_args.hyperparameters)
    model = _model(hp)
    model.fit(
        _data(fn_args.train_files, fn_args, transformed),
        steps_per_epoch=fn_args.train_steps,
        epochs=15,
    )
    tf.saved_model.save(
        model, fn_args.serving_model_dir, signatures={"serving_default": _signature(model, transformed)}
    )
