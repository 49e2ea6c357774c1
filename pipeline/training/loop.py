"""Fit one model: the same loop on one device, on several and on several machines, resumable."""

import logging
import tempfile
import time
from collections.abc import Sequence

import keras
import tensorflow as tf

from pipeline.errors import first_line
from pipeline.progress import Progress
from pipeline.settings.tasks import objective_direction
from pipeline.training.checkpoint import Checkpoints, redirect_output, state_of, variables_of
from pipeline.training.decoding import Augment
from pipeline.training.decoding import check as check_augmentation
from pipeline.training.ensemble import class_weights_of
from pipeline.training.errors import NonFiniteLossError, OutOfMemoryError, TrainingError
from pipeline.training.history import (
    BETWEEN,
    CALLBACKS,
    COMPILING,
    EVALUATION,
    LOADING,
    SAVING,
    SAVING_WITHIN_EPOCHS,
    STEPS,
    SUMMING,
    Journal,
    Measured,
    Stopwatch,
    Trace,
    diagnose,
)
from pipeline.training.input_pipeline import (
    Split,
    as_training_error,
    evaluation_steps,
    steps_per_epoch,
)
from pipeline.training.settings import Settings
from pipeline.training.steps import Steps, check_model
from pipeline.training.strategy import Distribution, warn_of_slow_worker

logger = logging.getLogger("pipeline.training")

# An evaluation keeps no activations for gradients.
EVALUATION_BATCH = 4


class Fit:
    """One training and its progress.

    Args:
        model: Built and compiled in the distribution's scope, with a metric named like ``settings.objective``.
        train: The train split.
        evaluate: The eval split, which decides on early stopping.
        settings: Of the training.
        distribution: The devices, and this process's place among them.
        seed: Of the order of examples; the same in all processes.
        callbacks: The user's callbacks. ``settings.steps_per_call`` steps count as one batch for them, as with Keras'
            ``steps_per_execution``.
        augment: Changes training batches; see ``training.run``.
        logs: Folder for history.csv, steps.csv, diagnosis.json and the TensorBoard files; None writes nothing.
        tensorboard: Another folder for the TensorBoard files.
        checkpoints: Folder to save the state to and to resume from; the caller deletes it with ``Checkpoints.delete``
            when the results of the training are safe.

    Raises:
        TrainingError: the data cannot fill a batch.
    """

    def __init__(
        self,
        model: keras.Model,
        train: Split,
        evaluate: Split,
        settings: Settings,
        distribution: Distribution,
        *,
        seed: int,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        augment: Augment | None = None,
        logs: str | None = None,
        tensorboard: str | None = None,
        checkpoints: str | None = None,
    ):
        self.stopwatch = Stopwatch()
        self.model = model
        self.train = train
        self.evaluate = evaluate
        self.evaluating = False
        self.settings = settings
        self.distribution = distribution
        self.seed = seed
        self.part = distribution.part
        # A replica's batch with all its micro-batches; settings.batch_size is one of these.
        self.batch_size = settings.batch_size * settings.accumulate
        self.evaluation_batch_size = settings.batch_size * EVALUATION_BATCH

        with self.stopwatch.measure(COMPILING):
            self._compile(augment)
        # The data may still be loading: what takes a second or more is done before it is waited for.
        with self.stopwatch.measure(LOADING):
            self._fit_batch_to_the_data()
        self.seconds = self.seconds_waited = self.stopwatch.seconds()[LOADING]
        self.seconds_in_steps = 0.0  # of an epoch, in this process
        if self.steps.class_weights is not None:
            weights = class_weights_of(train, train.rows.classes)
            logger.info("Rows of each class count in the loss: %s.", ", ".join(f"{weight:.4g}" for weight in weights))
            self.steps.class_weights.assign(weights)
        self.steps_per_epoch = steps_per_epoch(train.examples, self.batch_size, self.part.replicas)
        self.steps.steps_per_epoch.assign(self.steps_per_epoch)

        self.progress = Progress("training")
        self.began: tuple[float, int] | None = None
        self.epoch = 0
        chief = distribution.is_chief
        tensorboard = tensorboard or logs
        self.logs = logs
        self.journal = Journal(logs if chief else None, tensorboard if chief else None)
        self.trace = Trace(settings.profile, tensorboard if chief else None)
        early_stopping = keras.callbacks.EarlyStopping(
            monitor=f"val_{settings.objective}",
            mode=objective_direction(settings.objective),
            patience=settings.patience,
            restore_best_weights=True,
            start_from_epoch=settings.head_epochs,
        )
        self.callbacks = [early_stopping, *callbacks]
        if tensorboard:
            self.callbacks.append(keras.callbacks.TensorBoard(tensorboard))
        if not chief:
            self._scratch = tempfile.TemporaryDirectory()
            redirect_output(self.callbacks, self._scratch.name)
        self.checkpoints = (
            Checkpoints(checkpoints, [*variables_of(model), self.steps.done], distribution) if checkpoints else None
        )

    def run(self) -> dict[str, list[float]]:
        """Train until the objective on the eval split stops improving; restore the best weights.

        Returns:
            Metrics of every epoch by name; eval split metrics have the prefix "val_".

        Raises:
            TrainingError: the loss is not finite, or one example does not fit into memory.
        """
        model, settings, measure = self.model, self.settings, self.stopwatch.measure
        callbacks = keras.callbacks.CallbackList(
            self.callbacks,
            add_history=True,
            model=model,
            verbose=0,
            epochs=settings.epochs,
            steps=self.steps_per_epoch,
        )
        model.stop_training = False
        with measure(CALLBACKS):
            callbacks.on_train_begin()
        self.callbacks_at_start = [state_of(callback) for callback in self.callbacks]
        self._restore()
        self._feed()
        metrics: dict[str, float] = {}
        while self.epoch < settings.epochs and not model.stop_training:
            if int(self.steps.done) == self.epoch * self.steps_per_epoch:
                model.reset_metrics()
                with measure(CALLBACKS):
                    callbacks.on_epoch_begin(self.epoch)
            self.steps.train_head_only(self.epoch < settings.head_epochs)
            with measure(BETWEEN):
                self._train_epoch(callbacks)
            metrics = self._end_of_epoch()
            with measure(CALLBACKS):
                callbacks.on_epoch_end(self.epoch, metrics)
            self.epoch += 1
            self._save()
        self.trace.end(int(self.steps.done))
        with measure(CALLBACKS):
            callbacks.on_train_end(metrics)
        if self.logs is not None and not settings.spin:
            diagnosis = diagnose(Measured.of(self))
            if self.distribution.is_chief:
                logger.log(logging.WARNING if diagnosis.stands_out else logging.INFO, diagnosis.sentence)
                diagnosis.write(self.logs)
        names = dict.fromkeys(name for epoch in self.journal.epochs for name in epoch)
        return {name: [epoch[name] for epoch in self.journal.epochs if name in epoch] for name in names}

    def _compile(self, augment: Augment | None) -> None:
        rows, batch = self.train.rows, self.train.rows.batch_spec(self.batch_size)
        check_model(self.model, weighted=rows.weight is not None)
        with self.distribution.strategy.scope():
            self.model._symbolic_build(data_batch=batch)
            if not self.model.optimizer.built:
                self.model.optimizer.build(self.model.trainable_variables)
        if augment:
            check_augmentation(augment, batch[:2])
        self.steps = Steps(self.model, rows, self.distribution, self.settings, seed=self.seed, augment=augment)
        self.steps.train_head_only(self.settings.head_epochs > 0)
        self.steps.compile_for(self.batch_size, self._trace_evaluation_of_loaded)

    def _trace_evaluation_of_loaded(self) -> None:
        """Trace the evaluation step unless its split is still loading.

        With several workers it is traced later, for all must trace in the same order.
        """
        if self.distribution.workers == 1 and self.evaluate.is_loaded:
            self._set_evaluation_data()
            self.steps.trace_evaluation()

    def _feed(self) -> None:
        with self.stopwatch.measure(LOADING):
            self.steps.feed(self.train.training(self.batch_size, self.part, self.seed, int(self.steps.done)))

    def _train_epoch(self, callbacks: keras.callbacks.CallbackList) -> None:
        end = (self.epoch + 1) * self.steps_per_epoch
        while (first := int(self.steps.done)) < end and not self.model.stop_training:
            self.trace.at(first)
            count = min(end, self._next_stop(first)) - first
            into_epoch = first - self.epoch * self.steps_per_epoch
            with self.stopwatch.measure(CALLBACKS):
                callbacks.on_train_batch_begin(into_epoch)
            started = time.perf_counter()
            with self.stopwatch.measure(STEPS):
                records = self._call(count)
            took = time.perf_counter() - started
            self.seconds, self.seconds_in_steps = self.seconds + took, self.seconds_in_steps + took
            self.journal.add_steps(first, self.epoch, records)
            if self.progress.due():
                self._report_progress(first + count, records[-1][0])
            with self.stopwatch.measure(CALLBACKS):
                callbacks.on_train_batch_end(into_epoch + count - 1, {"loss": records[-1][0]})
            every = self.settings.checkpoint_steps
            if every and int(self.steps.done) % every == 0 and int(self.steps.done) < end:
                self._save()

    def _report_progress(self, step: int, loss: float) -> None:
        now = time.monotonic()
        began, from_step = self.began = self.began or (now, step)
        of_epoch = f"{step - self.epoch * self.steps_per_epoch:,} of {self.steps_per_epoch:,}"
        text = f"epoch {self.epoch + 1} of {self.settings.epochs}, step {of_epoch}, loss {loss:.4f}"
        # Several workers exchange messages to read a metric, all at the same step; each has its own clock.
        if self.distribution.workers == 1:
            text += "".join(f", {name} {value:.4f}" for name, value in self.steps.metrics().items())
        if step > from_step:
            seconds = (now - began) / (step - from_step)
            examples = self.batch_size * self.part.replicas / seconds
            text += f", {examples:,.0f} examples/s, "
            text += f"{(self.settings.epochs * self.steps_per_epoch - step) * seconds:,.0f} s left"
        self.progress.tell(text)

    def _next_stop(self, step: int) -> int:
        """Return the step at which this call must end: it is full, or a checkpoint or profile is due."""
        stops = [step + self.settings.steps_per_call]
        if self.settings.checkpoint_steps:
            stops.append((step // self.settings.checkpoint_steps + 1) * self.settings.checkpoint_steps)
        stops += [stop for stop in self.trace.stops if stop > step]
        return min(stops)

    def _call(self, count: int) -> list[list[float]]:
        """Run steps, in smaller parts when they do not fit into memory; return the records of each."""
        records: list[list[float]] = []
        while len(records) < count:
            before = int(self.steps.done)
            finite = True
            with self.stopwatch.measure(COMPILING):
                self.steps.trace_training()
            try:
                finite = self.steps.train(count - len(records))
            except tf.errors.ResourceExhaustedError as error:
                self._make_parts_smaller(error)
            except tf.errors.InvalidArgumentError as error:
                raise as_training_error(error) from error
            completed = int(self.steps.done) - before
            if not finite:
                raise self._not_finite(before + completed, self.steps.records(completed + 1)[-1])
            records += self.steps.records(completed)
        return records

    def _make_parts_smaller(self, error: tf.errors.ResourceExhaustedError) -> None:
        per_part = self.batch_size // self.steps.micro_batches
        text = f"step {int(self.steps.done)} does not fit into memory with {per_part} examples per replica at a time"
        if self.distribution.workers > 1:
            raise OutOfMemoryError(
                f"{text}; several workers cannot change that while they train together: halve training.batch_size and "
                f"double training.accumulate. {first_line(error)}"
            ) from error
        smaller = next((size for size in range(per_part // 2, 0, -1) if self.batch_size % size == 0), None)
        if smaller is None:
            raise OutOfMemoryError(f"{text}: take a smaller model or a larger machine. {first_line(error)}") from error
        logger.warning(
            "%s: going on with %d at a time, %d times per step, which gives the same result.",
            text[0].upper() + text[1:],
            smaller,
            self.batch_size // smaller,
        )
        self.steps.split_further(self.batch_size // smaller)
        self._feed()

    def _not_finite(self, step: int, record: list[float]) -> NonFiniteLossError:
        loss, rate, *_ = record
        name, norm = self.steps.largest_gradient()
        return NonFiniteLossError(
            f"the loss is {loss:g} in step {step} (epoch {self.epoch}): learning rate {rate:g}, largest gradient "
            f"{norm:g}, of {name}. The weights are those before that step. Lower the learning rate, set "
            "training.clip_norm, or look for infinite values in the features"
        )

    def _end_of_epoch(self) -> dict[str, float]:
        steps = [row for row in self.journal.steps if row[1] == self.epoch]
        metrics = {"loss": sum(row[2] for row in steps) / len(steps), **self.steps.metrics()}
        evaluated = self._evaluate_split()
        metrics |= {f"val_{name}": value for name, value in evaluated.items()}
        if f"val_{self.settings.objective}" not in metrics:
            raise TrainingError(
                f"training.objective is {self.settings.objective!r}, and the model has the metrics "
                f"{', '.join(sorted(evaluated))}; compile it with a metric of that name"
            )
        examples = len(steps) * self.batch_size * self.part.replicas
        seconds = max(self.seconds, 1e-9)
        metrics |= {
            "learning_rate": steps[-1][3],
            "examples_per_second": examples / seconds,
            "share_waited_for_input": min(1.0, (self.seconds_waited + sum(row[5] for row in steps)) / seconds),
        }
        if self.distribution.workers > 1:
            waited = self.steps.waited_for_others()
            self.stopwatch.move(waited, STEPS, SUMMING)
            warn_of_slow_worker(self.distribution, self.epoch, self.seconds_in_steps - waited)
        self.seconds = self.seconds_waited = self.seconds_in_steps = 0.0
        self.journal.add_epoch(metrics)
        logger.info("Epoch %d: %s", self.epoch, ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
        return dict(metrics)

    def _evaluate_split(self) -> dict[str, float]:
        measure = self.stopwatch.measure
        with measure(LOADING):  # now and not earlier: this split is loaded after the train split
            self._set_evaluation_data()
        with measure(COMPILING):
            self.steps.trace_evaluation()
        with measure(EVALUATION):
            steps = evaluation_steps(self.evaluate.examples, self.evaluation_batch_size, self.part.replicas)
            return self.steps.evaluate(steps)

    def _set_evaluation_data(self) -> None:
        if not self.evaluating:
            batches = self.evaluate.evaluation(self.evaluation_batch_size, self.part, same_size=self.distribution.tpu)
            self.steps.set_evaluation_data(batches, self.evaluate.rows)
            self.evaluating = True

    def _save(self) -> None:
        if not self.checkpoints:
            return
        within = int(self.steps.done) != self.epoch * self.steps_per_epoch
        with self.stopwatch.measure(SAVING_WITHIN_EPOCHS if within else SAVING):
            self.checkpoints.save(
                {
                    "epoch": self.epoch,
                    "seconds": self.seconds,
                    "seconds_waited": self.seconds_waited,
                    "micro_batches": self.steps.micro_batches,
                    "stop_training": bool(self.model.stop_training),
                    "journal": self.journal.state(),
                    "stopwatch": self.stopwatch.state(),
                    "callbacks": list(map(state_of, self.callbacks, self.callbacks_at_start)),
                }
            )

    def _restore(self) -> None:
        state = self.checkpoints.restore() if self.checkpoints else None
        if self.checkpoints is None or state is None:
            return
        self.epoch = state["epoch"]
        self.seconds += state["seconds"]
        self.seconds_waited += state["seconds_waited"]
        self.model.stop_training = state["stop_training"]
        self.journal.set_state(state["journal"])
        self.stopwatch.add(state.get("stopwatch", {}))
        for callback, values in zip(self.callbacks, state["callbacks"], strict=True):
            vars(callback).update(values)
        if state["micro_batches"] != self.steps.micro_batches:
            self.steps.split_further(state["micro_batches"])
        # A warning, for the terminal to show it: the training did not start anew.
        where = int(self.steps.done), self.epoch, self.checkpoints.folder
        logger.warning("Going on at step %d of epoch %d, from the checkpoint in %s.", *where)

    def _fit_batch_to_the_data(self) -> None:
        examples, replicas = self.train.examples, self.part.replicas
        if examples < replicas:
            raise TrainingError(
                f"{examples} examples for {replicas} replicas: each needs at least one in a step. Give more data or "
                "fewer devices"
            )
        fitting = examples // replicas
        if self.batch_size > fitting:
            logger.warning(
                "A batch of %d examples per replica is more than the data has: taking %d.", self.batch_size, fitting
            )
            self.batch_size = fitting
            self.steps.split_further(1)
