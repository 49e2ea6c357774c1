"""One training step and one evaluation step, compiled, several in one call, under every strategy.

Keras' own ``fit`` fails under MultiWorkerMirroredStrategy, and its gradient accumulation under MirroredStrategy.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import tensorflow as tf

from pipeline.settings.training import Training
from pipeline.training.backbone import backbone_of
from pipeline.training.decoding import Augment, augmented
from pipeline.training.errors import TrainingError
from pipeline.training.gradients import Gradient, SparseUpdates, accumulated, norm_of, summed, summed_over_replicas
from pipeline.training.input_pipeline import without_autotune
from pipeline.training.rows import WORD, Rows
from pipeline.training.strategy import Distribution

# The record of a step, in this order.
RECORDED = ("loss", "learning_rate", "gradient_norm", "seconds_waited")
# Where a cosine schedule ends, as a share of its peak.
LAST_SHARE = 0.05


def rate_multiple(settings: Training, replicas: int, step: tf.Tensor, steps_per_epoch: tf.Tensor) -> tf.Tensor:
    """Return the factor of the model's learning rate in a step, counted from 0; float32 [].

    With ``scale_learning_rate`` the peak grows with the replicas, as the global batch does (Goyal et al. 2017,
    "Accurate, Large Minibatch SGD", linear scaling with gradual warm-up).
    """
    peak = replicas if settings.scale_learning_rate else 1
    step, steps_per_epoch = tf.cast(step, tf.float32), tf.cast(steps_per_epoch, tf.float32)
    warmup, last = settings.warmup_epochs * steps_per_epoch, settings.epochs * steps_per_epoch
    if settings.head_epochs:
        in_head = step < settings.head_epochs * steps_per_epoch
        peak = peak * tf.where(in_head, 1.0, settings.fine_tuning_rate)
    risen = tf.minimum(1.0, (step + 1.0) / tf.maximum(warmup, 1.0))
    if settings.schedule == "constant":
        return 1.0 + (peak - 1.0) * risen
    progress = tf.clip_by_value((step - warmup) / tf.maximum(1.0, last - warmup), 0.0, 1.0)
    fallen = LAST_SHARE + (1.0 - LAST_SHARE) * (1.0 + tf.cos(math.pi * progress)) / 2.0
    return peak * tf.where(step < warmup, risen, fallen)


def check_model(model: keras.Model, weighted: bool) -> None:
    """Raise a TrainingError unless ``build_model`` returned a compiled model, without metrics that ignore weights."""
    if not isinstance(model, keras.Model):
        raise TrainingError(f"build_model returns {type(model).__name__}, expected a compiled keras.Model; return it")
    if not model.compiled:
        raise TrainingError(
            "build_model returns a model that is not compiled; call model.compile(optimizer, loss, ...)"
        )
    if weighted and model.get_compile_config().get("metrics"):
        raise TrainingError(
            "label.weight names a column, and Keras does not weigh what build_model compiles as metrics=[...]; compile "
            "them as weighted_metrics=[...]"
        )


class Steps:
    """Compiled steps of a built and compiled model.

    Attributes:
        done: Steps completed in this training; right even after a call that failed half-way.
        steps_per_epoch: For the schedule; to be set before the first step.
        class_weights: How much a row of each class counts in the loss, [classes], to be set before the first step;
            None: all count the same.
        micro_batches: Parts of a replica's batch that are computed sequentially; their gradients are summed.
    """

    def __init__(
        self,
        model: keras.Model,
        rows: Rows,
        distribution: Distribution,
        settings: Training,
        *,
        seed: int = 0,
        augment: Augment | None = None,
    ):
        self.model = model
        self._seed, self._augment = seed, augment
        self._head_only = False
        self._rows = rows
        self._settings = settings
        self.micro_batches = settings.accumulate
        self.done = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.steps_per_epoch = tf.Variable(1, dtype=tf.int64, trainable=False)
        self.class_weights = tf.Variable(tf.ones([rows.classes]), trainable=False) if settings.class_weight else None
        self._strategy, self._replicas = distribution.strategy, distribution.replicas
        self._local = distribution.part.local
        # Nothing to deal out: handing batches from device to device costs threads, and TensorFlow's generator for it
        # makes the allocator give every large buffer back to the system after each use.
        self._direct = distribution.on_cpu and distribution.replicas == 1
        self._records = tf.Variable(tf.zeros([settings.steps_per_call, len(RECORDED)]), trainable=False)
        self._waited = tf.Variable(0.0, dtype=tf.float64, trainable=False) if distribution.workers > 1 else None
        self._norms = tf.Variable(tf.zeros([len(model.trainable_variables)]), trainable=False)
        with self._strategy.scope():
            self._evaluation_loss = keras.metrics.Mean("loss")
        self._optimizer = model.optimizer
        inner = getattr(self._optimizer, "inner_optimizer", self._optimizer)
        if settings.clip_norm:
            inner.global_clipnorm = settings.clip_norm
        # Gradients are summed over the replicas in _gradients. The optimizer would do it later, and so clip each
        # replica's gradients by their own norm and let replicas disagree on a float16 overflow.
        inner._all_reduce_sum_gradients = list
        self._sparse = SparseUpdates(model)
        # A schedule inside the optimizer is the user's own, and stays.
        self._sets_rate = hasattr(self._optimizer.learning_rate, "assign")
        self._compile()

    def _compile(self) -> None:
        self._train = tf.function(self._train_steps)
        self._evaluate = tf.function(self._evaluate_steps)
        self._traced: set[str] = set()

    def trace_training(self) -> None:
        """Compile the training step, by a call of no steps, unless it is compiled."""
        if "train" not in self._traced:
            self.train(0)
            self._traced.add("train")

    def trace_evaluation(self) -> None:
        """Compile the evaluation step, by a call of no steps, unless it is compiled."""
        if "evaluate" not in self._traced:
            self._evaluate(self._batches, tf.constant(0, tf.int64))
            self._traced.add("evaluate")

    def split_further(self, micro_batches: int) -> None:
        """Compute a batch in more parts from now on."""
        self.micro_batches = micro_batches
        self._compile()

    def train_head_only(self, head_only: bool) -> None:
        """Leave the weights of a backbone as they are from now on, or train them too."""
        if head_only != self._head_only:
            self._head_only = head_only
            self._compile()

    def compile_for(self, batch_size: int, meanwhile: Callable[[], None]) -> None:
        """Compile the training step before there are examples.

        ``meanwhile`` runs while TensorFlow compiles the traced step, for which it needs no Python.
        """
        self.feed(_zeros(self._rows.chunk(batch_size)))
        arguments = self._arguments(0, 0.0)
        traced = self._train.get_concrete_function(*arguments)
        self._traced.add("train")
        with ThreadPoolExecutor(1) as beside:
            # Not tf.function's own call: in another thread, without the scopes of this one, it may trace once more.
            compiling = beside.submit(traced, *arguments)
            meanwhile()
            compiling.result()

    def feed(self, chunks: tf.data.Dataset) -> None:
        """Take the training batches from a dataset made by ``Split.training``."""
        spec = chunks.element_spec
        self._chunks, self._chunk = self._distributed(chunks), next(self._distributed(_zeros(spec)))
        self._used = tf.constant(spec.shape[0])  # all of it: the first step asks for the next

    def _distributed(self, dataset: tf.data.Dataset) -> Any:
        if self._direct:
            return iter(dataset)
        return iter(self._strategy.distribute_datasets_from_function(lambda _: dataset))

    def train(self, steps: int) -> bool:
        """Run at most ``steps_per_call`` training steps.

        Returns:
            False if the last step had a loss or gradient that is not finite; the weights are then those before it.

        Raises:
            tf.errors.ResourceExhaustedError: a step did not fit into memory; ``feed`` again from step ``done``.
        """
        rate = float(tf.convert_to_tensor(self._optimizer.learning_rate))
        try:
            finite, self._chunk, self._used = self._train(*self._arguments(steps, rate))
        finally:
            if self._sets_rate:
                self._optimizer.learning_rate = rate  # between calls callbacks read and change it
        return bool(finite)

    def _arguments(self, steps: int, rate: float) -> tuple[Any, ...]:
        return self._chunks, self._chunk, self._used, tf.constant(steps, tf.int64), tf.constant(rate)

    def records(self, steps: int) -> list[list[float]]:
        """Return ``RECORDED`` of each of the first steps of the last call."""
        return self._records[:steps].numpy().tolist()

    def waited_for_others(self) -> float:
        """Return the seconds since the last call in which one of several workers waited for the sums over all."""
        assert self._waited is not None
        waited = float(self._waited) / self._local
        self._waited.assign(0.0)
        return waited

    def largest_gradient(self) -> tuple[str, float]:
        """Return the path and the norm of the largest gradient in the step that was not finite."""
        norms = [float(norm) for norm in self._norms.numpy()]
        largest = max(range(len(norms)), key=lambda index: (norms[index] != norms[index], norms[index]))
        return self.model.trainable_variables[largest].path, norms[largest]

    def set_evaluation_data(self, batches: tf.data.Dataset, rows: Rows) -> None:
        """Take the evaluation batches from a dataset made by ``Split.evaluation``, packed by ``rows``."""
        self._batches, self._evaluation_rows = self._distributed(batches), rows

    def evaluate(self, steps: int) -> dict[str, float]:
        """Return the model's loss and metrics over the next batches."""
        self.model.reset_metrics()
        self._evaluation_loss.reset_state()
        self._evaluate(self._batches, tf.constant(steps, tf.int64))
        return {**self.metrics(), "loss": float(self._evaluation_loss.result())}

    def metrics(self) -> dict[str, float]:
        """Return the current values of the model's metrics."""
        return {name: float(value) for name, value in self.model.get_metrics_result().items() if name != "loss"}

    @tf.autograph.experimental.do_not_convert
    def _train_steps(
        self, chunks: Any, chunk: Any, used: tf.Tensor, steps: tf.Tensor, rate: tf.Tensor
    ) -> tuple[tf.Tensor, Any, tf.Tensor]:
        """Train from a chunk of which some batches are used; return whether all was finite, and the place."""

        def next_moved(chunk: Any, used: tf.Tensor) -> tuple[Any, tf.Tensor, Any, tf.Tensor]:
            return self._next_moved(chunks, chunk, used)

        def first() -> tuple[Any, Any, tf.Tensor, Any, tf.Tensor]:
            before = tf.timestamp()
            with tf.control_dependencies([before]):
                moved, fetched, following, place = next_moved(chunk, used)
            batch = self._strategy.run(self._rows.pick, args=(moved,))
            return moved, batch, tf.cast(fetched - before, tf.float32), following, place

        def none() -> tuple[Any, Any, tf.Tensor, Any, tf.Tensor]:
            moved = self._strategy.run(lambda chunk: chunk[0], args=(chunk,))
            rows = self._strategy.run(lambda chunk: tf.zeros([chunk.shape[1], self._rows.words], WORD), args=(chunk,))
            return moved, rows, tf.constant(0.0), chunk, used

        def train(
            step: tf.Tensor, _: tf.Tensor, moved: Any, batch: Any, waited: tf.Tensor, chunk: Any, used: tf.Tensor
        ) -> tuple[Any, ...]:
            moved, fetched, chunk, used = tf.cond(
                step + 1 < steps,
                lambda: next_moved(chunk, used),
                lambda: (moved, tf.constant(0.0, tf.float64), chunk, used),
            )
            finite, batch, computed = self._train_step(step, batch, moved, waited, rate)
            # The next batch was fetched meanwhile: only what is left of that when the gradients are there is waiting.
            waited = tf.cast(tf.maximum(fetched - computed, 0.0), tf.float32)
            return step + 1, finite, moved, batch, waited, chunk, used

        _, finite, _, _, _, chunk, used = tf.while_loop(
            lambda step, finite, *_: (step < steps) & finite,
            train,
            (tf.constant(0, tf.int64), tf.constant(True), *tf.cond(steps > 0, first, none)),
        )
        return finite, chunk, used

    def _train_step(
        self, step: tf.Tensor, batch: Any, moved: Any, waited: tf.Tensor, rate: tf.Tensor
    ) -> tuple[tf.Tensor, Any, tf.Tensor]:
        """Train on a batch; return whether all was finite, the next rows, and when the gradients were ready."""
        if self._sets_rate:
            multiple = rate_multiple(self._settings, self._replicas, self.done, self.steps_per_epoch)
            self._optimizer.learning_rate.assign(rate * multiple)
        per_replica_loss, gradients, per_replica_norms, read = self._strategy.run(self._gradients, args=(batch,))
        loss = self._strategy.experimental_local_results(per_replica_loss)[0]  # all are the same
        # The next step's rows are picked during the backward pass, which leaves a core idle now and then. During
        # the forward pass that made a step of 2,048 or 4,096 examples 3 to 6 % longer
        # (benchmarks/input_pipeline.py).
        with tf.control_dependencies([loss]):
            following = self._strategy.run(self._rows.pick, args=(moved,))
        norms = self._strategy.experimental_local_results(per_replica_norms)[0]
        norm = tf.linalg.norm(norms)
        with tf.control_dependencies([norm]):
            computed = tf.timestamp()
        self._records[step].assign(tf.stack([loss, tf.cast(self._optimizer.learning_rate, tf.float32), norm, waited]))
        # A LossScaleOptimizer reacts to overflows itself, with a smaller scale.
        scales_loss = isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer)
        finite = tf.math.is_finite(loss if scales_loss else loss + norm)

        def apply() -> tf.Tensor:
            self._strategy.run(self._apply, args=(gradients, read))
            return self.done.assign_add(1)

        def stop() -> tf.Tensor:
            self._norms.assign(norms)
            return self.done.read_value()

        tf.cond(finite, apply, stop)
        return finite, following, computed

    def _next_moved(self, chunks: Any, chunk: Any, used: tf.Tensor) -> tuple[Any, tf.Tensor, Any, tf.Tensor]:
        """Return the next batch, packed, when it was ready, and the place after it."""
        batches = self._strategy.experimental_local_results(chunk)[0].shape[0]
        chunk, used = tf.cond(used == batches, lambda: (chunks.get_next(), 0), lambda: (chunk, used))
        # TensorFlow does not order reading a clock and asking an iterator by their place in the code.
        with tf.control_dependencies([self._strategy.experimental_local_results(chunk)[0]]):
            fetched = tf.timestamp()
        moved = self._strategy.run(lambda chunk, place: chunk[place], args=(chunk, used))
        return moved, fetched, chunk, used + 1

    def _gradients(self, rows: tf.Tensor) -> tuple[tf.Tensor, list[Gradient | None], tf.Tensor, list[list[tf.Tensor]]]:
        """Return, in a replica, loss [], gradients and their norms [variables] of the global batch, and rows of tables.

        The rows that the gradients will change are read while it is unknown whether all is finite and a core is idle.
        """
        x, y, weight = keras.utils.unpack_x_y_sample_weight(self._rows.unpack(rows))
        counted = self._counted(y, weight)
        if self._augment:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            place = self.done * self._replicas + tf.cast(replica, tf.int64)
            seed = tf.stack([tf.constant(self._seed, tf.int64), place])
            x, y = augmented(self._augment, x, y, seed)
        given = {"x": x, "y": y, "weight": weight, "counted": counted}
        batch = {name: value for name, value in given.items() if value is not None}
        loss, gradients = accumulated(self._micro_batch_gradients, batch, self.micro_batches)
        present = [gradient for gradient in gradients if gradient is not None]
        sums = [loss, *present]
        if self._replicas > 1:
            sums = summed_over_replicas(sums, self._waited)
        reduced = iter(sums)
        loss = next(reduced)
        # Rows are summed after that only: workers exchange equally many.
        gradients = [None if gradient is None else summed(next(reduced)) for gradient in gradients]
        scale = self._optimizer.scale_loss(tf.constant(1.0))
        norms = [0.0 if gradient is None else norm_of(gradient) / scale for gradient in gradients]
        read = self._sparse.read(self.model.trainable_variables, gradients)
        return loss, gradients, tf.stack(norms), read

    def _apply(self, gradients: list[Gradient | None], read: list[list[tf.Tensor]]) -> None:
        variables = self.model.trainable_variables
        self._optimizer.apply(self._sparse.rows_for_optimizer(variables, gradients, read), variables)

    def _counted(self, y: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor | None:
        """Return how much each row counts in the loss, [rows]; None where all count the same."""
        if self.class_weights is None:
            return weight
        of_class = tf.gather(self.class_weights, tf.cast(tf.reshape(y, [-1]), tf.int32))
        return of_class if weight is None else of_class * weight

    def _micro_batch_gradients(
        self, x: Any, y: Any, weight: Any = None, counted: Any = None
    ) -> tuple[tf.Tensor, list[Gradient | None]]:
        """Return this replica's loss and gradients; their sum over the replicas is the global batch's mean."""
        model, variables = self.model, self.model.trainable_variables
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=counted, training=True)
            scaled = self._optimizer.scale_loss(loss)
        backbone = backbone_of(model) if self._head_only else None
        frozen = {id(variable) for variable in backbone.trainable_variables} if backbone else set()
        wanted = [variable for variable in variables if id(variable) not in frozen]
        found = iter(tape.gradient(scaled, [variable.value for variable in wanted]))
        gradients = [None if id(variable) in frozen else next(found) for variable in variables]
        model.compute_metrics(x, y, predictions, weight)
        return loss, [
            None if gradient is None else self._sparse.kept(variable, gradient)
            for variable, gradient in zip(variables, gradients, strict=True)
        ]

    @tf.autograph.experimental.do_not_convert
    def _evaluate_steps(self, batches: Any, steps: tf.Tensor) -> None:
        def evaluate(step: tf.Tensor) -> tuple[tf.Tensor]:
            self._strategy.run(self._evaluate_batch, args=(batches.get_next(),))
            return (step + 1,)

        tf.while_loop(lambda step: step < steps, evaluate, (tf.constant(0, tf.int64),))

    def _evaluate_batch(self, packed: tf.Tensor) -> None:
        batch = self._evaluation_rows.unpack(self._evaluation_rows.pick(packed))
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        predictions = self.model(x, training=False)
        total = rows = tf.shape(packed)[0]
        relative = None
        counted = self._counted(y, weight)
        if counted is not None:
            # Keras divides by the rows of the batch: of weights whose mean is 1 this is their weighted mean.
            total = tf.reduce_sum(counted)
            relative = tf.math.divide_no_nan(counted * tf.cast(rows, counted.dtype), total)
        loss = self.model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=relative, training=False)
        # Keras has divided it by the replicas, for it to be summed.
        mean = loss * tf.cast(self._strategy.num_replicas_in_sync, loss.dtype)
        self._evaluation_loss.update_state(mean, sample_weight=total)
        self.model.compute_metrics(x, y, predictions, weight)


def _zeros(spec: tf.TensorSpec) -> tf.data.Dataset:
    return without_autotune(tf.data.Dataset.from_tensors(tf.zeros(spec.shape, spec.dtype)).repeat())
