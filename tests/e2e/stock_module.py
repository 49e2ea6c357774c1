"""A module file as TFX's documentation writes them: it knows nothing of this project."""

import keras_tuner
import tensorflow as tf
import tensorflow_transform as tft
from tfx import v1 as tfx
from tfx_bsl.public import tfxio

LABEL_KEY = "late"
NUMBERS = ["distance", "sched_dep_minute"]
BATCH_SIZE = 64


def preprocessing_fn(inputs):
    outputs = {name: tft.scale_to_z_score(tf.cast(inputs[name], tf.float32)) for name in NUMBERS}
    outputs["carrier"] = tft.compute_and_apply_vocabulary(
        inputs["carrier"], num_oov_buckets=1, vocab_filename="carrier"
    )
    outputs[LABEL_KEY] = inputs[LABEL_KEY]
    return outputs


def _input_fn(file_pattern, data_accessor, tf_transform_output):
    return data_accessor.tf_dataset_factory(
        file_pattern,
        tfxio.TensorFlowDatasetOptions(batch_size=BATCH_SIZE, label_key=LABEL_KEY),
        tf_transform_output.transformed_metadata.schema,
    ).repeat()


def _get_serve_tf_examples_fn(model, tf_transform_output):
    model.tft_layer = tf_transform_output.transform_features_layer()

    @tf.function(input_signature=[tf.TensorSpec(shape=[None], dtype=tf.string, name="examples")])
    def serve_tf_examples_fn(serialized_tf_examples):
        feature_spec = tf_transform_output.raw_feature_spec()
        feature_spec.pop(LABEL_KEY)
        parsed_features = tf.io.parse_example(serialized_tf_examples, feature_spec)
        transformed_features = model.tft_layer(parsed_features)
        return model({name: transformed_features[name] for name in [*NUMBERS, "carrier"]})

    return serve_tf_examples_fn


def _get_hyperparameters():
    hp = keras_tuner.HyperParameters()
    hp.Choice("learning_rate", [3e-2, 1e-2], default=1e-2)
    return hp


def _build_model(hparams, carriers):
    inputs = {name: tf.keras.Input((1,), name=name) for name in NUMBERS}
    inputs["carrier"] = tf.keras.Input((1,), name="carrier", dtype="int64")
    embedded = tf.keras.layers.Flatten()(tf.keras.layers.Embedding(carriers, 4)(inputs["carrier"]))
    deep = tf.keras.layers.Concatenate()([*(inputs[name] for name in NUMBERS), embedded])
    deep = tf.keras.layers.Dense(16, activation="relu")(deep)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(deep))
    model.compile(
        optimizer=tf.keras.optimizers.Adam(hparams.get("learning_rate")),
        loss="binary_crossentropy",
        metrics=[tf.keras.metrics.AUC(name="auc")],
    )
    return model


def tuner_fn(fn_args):
    transform_graph = tft.TFTransformOutput(fn_args.transform_graph_path)
    carriers = transform_graph.vocabulary_size_by_name("carrier") + 1
    tuner = keras_tuner.RandomSearch(
        lambda hparams: _build_model(hparams, carriers),
        max_trials=2,
        hyperparameters=_get_hyperparameters(),
        allow_new_entries=False,
        objective=keras_tuner.Objective("val_auc", "max"),
        directory=fn_args.working_dir,
        project_name="stock_tuning",
    )
    return tfx.components.TunerFnResult(
        tuner=tuner,
        fit_kwargs={
            "x": _input_fn(fn_args.train_files, fn_args.data_accessor, transform_graph),
            "validation_data": _input_fn(fn_args.eval_files, fn_args.data_accessor, transform_graph),
            "steps_per_epoch": fn_args.train_steps,
            "validation_steps": fn_args.eval_steps,
        },
    )


def run_fn(fn_args):
    tf_transform_output = tft.TFTransformOutput(fn_args.transform_output)
    train_dataset = _input_fn(fn_args.train_files, fn_args.data_accessor, tf_transform_output)
    eval_dataset = _input_fn(fn_args.eval_files, fn_args.data_accessor, tf_transform_output)

    hparams = _get_hyperparameters()
    if fn_args.hyperparameters:
        hparams = keras_tuner.HyperParameters.from_config(fn_args.hyperparameters)
    model = _build_model(hparams, tf_transform_output.vocabulary_size_by_name("carrier") + 1)
    model.fit(
        train_dataset,
        steps_per_epoch=fn_args.train_steps,
        validation_data=eval_dataset,
        validation_steps=fn_args.eval_steps,
    )

    signatures = {"serving_default": _get_serve_tf_examples_fn(model, tf_transform_output)}
    tf.saved_model.save(model, fn_args.serving_model_dir, signatures=signatures)
