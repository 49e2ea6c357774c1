"""The registry of models: one entry for a pipeline, with a version for every model that was pushed."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.vertex.cloud import AGAIN, Cloud

# Aliases: the version that gets all the traffic, and the one that did before it. Batch jobs and other readers take
# "default", which Vertex AI gives to the first version by itself and which goes with "live".
LIVE, PREVIOUS, DEFAULT = "live", "previous", "default"
# Labels of a version: which model of which run it is, and what became of it.
SOURCE, RUN, STATE = "source", "run", "state"
CANARY, PROMOTED, FAILED, ROLLED_BACK = "canary", "promoted", "canary-failed", "rolled-back"
# What Vertex AI calls our metrics: cloud.google.com/vertex-ai/docs/evaluation/introduction#classification
CLASSIFICATION = "gs://google-cloud-aiplatform/schema/modelevaluation/classification_metrics_1.0.0.yaml"
METRICS = {"auc": "auRoc", "auc_precision_recall": "auPrc"}
SECONDS_TO_UPLOAD = 1800.0


@dataclass(frozen=True)
class Version:
    """One version of the entry.

    Attributes:
        entry: "projects/P/locations/R/models/ID".
        id: Such as "3".
        labels: As they were when it was read.
        folder: The SavedModel, gs://...
    """

    entry: str
    id: str
    labels: Mapping[str, str]
    folder: str

    @property
    def name(self) -> str:
        """The resource name with the version."""
        return f"{self.entry}@{self.id}"


class Registry:
    """The entry of one pipeline; there from the first push on.

    Args:
        cloud: Where.
        pipeline: Name of the pipeline, which becomes the entry's id.
    """

    def __init__(self, cloud: Cloud, pipeline: str):
        self._cloud = cloud
        self._client = cloud.client(v1.ModelServiceClient)
        self.id = pipeline
        self.name = f"{cloud.parent}/models/{pipeline}"

    def versions(self) -> list[Version]:
        """All of them, the oldest first; none before the first push."""
        try:
            found = list(self._client.list_model_versions(name=self.name, retry=AGAIN))
        except exceptions.NotFound:
            return []
        return sorted((self._version(one) for one in found), key=lambda one: int(one.id))

    def pushed_from(self, model: str) -> Version | None:
        """The version that was made of a Trainer's model: a task that is started again does not make a second one."""
        return next((one for one in self.versions() if one.labels.get(SOURCE) == source_of(model)), None)

    def with_alias(self, alias: str) -> Version | None:
        """The version that has an alias."""
        try:
            return self._version(self._client.get_model(name=f"{self.name}@{alias}", retry=AGAIN))
        except exceptions.NotFound:
            return None

    def add(
        self,
        model: str,
        folder: str,
        container: v1.ModelContainerSpec,
        labels: Mapping[str, str],
        description: str,
        encryption_key: str | None,
    ) -> Version:
        """Registers a model as the next version, or as the first of a new entry.

        Args:
            model: Address of the Trainer's model.
            folder: Where the SavedModel was pushed to.
            container: What serves it.
            labels: Of the version.
            description: Of the version, for people.
            encryption_key: Customer-managed key of the entry.

        Raises:
            GoogleAPICallError: Vertex AI refuses.
        """
        new = v1.Model(
            display_name=self.id,
            artifact_uri=folder,
            container_spec=container,
            labels={**labels, SOURCE: source_of(model), STATE: CANARY},
            version_description=description,
        )
        if encryption_key:
            new.encryption_spec = v1.EncryptionSpec(kms_key_name=encryption_key)
        request = v1.UploadModelRequest(parent=self._cloud.parent, model=new)
        if self.versions():
            request.parent_model = self.name
        else:
            request.model_id = self.id
        try:
            made = self._client.upload_model(request=request).result(timeout=SECONDS_TO_UPLOAD)
        except exceptions.AlreadyExists:  # the first push of another run, at the same moment
            request = v1.UploadModelRequest(parent=self._cloud.parent, model=new, parent_model=self.name)
            made = self._client.upload_model(request=request).result(timeout=SECONDS_TO_UPLOAD)
        return Version(self.name, made.model_version_id, dict(new.labels), folder)

    def add_metrics(self, version: Version, metrics: Mapping[str, float]) -> None:
        """Shows the metrics on the test split beside a version: Vertex AI's own by its names, all as metadata."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        evaluation = v1.ModelEvaluation(
            display_name="test split",
            metrics_schema_uri=CLASSIFICATION,
            metrics={theirs: finite[ours] for ours, theirs in METRICS.items() if ours in finite},
            metadata=finite,
        )
        self._client.import_model_evaluation(parent=version.name, model_evaluation=evaluation, retry=AGAIN)

    def make_live(self, version: Version, rolled_back: bool = False) -> None:
        """Gives a version the aliases of the one that gets the traffic; the one that had them becomes "previous".

        Args:
            version: The one that gets it.
            rolled_back: The one that had them is not to come back: no version is "previous" then.
        """
        before = self.with_alias(LIVE)
        if rolled_back:
            self.move_alias(PREVIOUS, None)
        elif before is not None and before.id != version.id:
            self.move_alias(PREVIOUS, before)
        # Each alone: "default" cannot be taken from a version, only given to another.
        self.move_alias(LIVE, version)
        self.move_alias(DEFAULT, version)
        self.label(version, **{STATE: PROMOTED})

    def move_alias(self, alias: str, version: Version | None) -> None:
        """Takes an alias from the version that has it and gives it to another, or to none."""
        holder = self.with_alias(alias)
        if holder is not None and version is not None and holder.id == version.id:
            return
        if holder is not None and alias != DEFAULT:
            self._client.merge_version_aliases(name=holder.name, version_aliases=[f"-{alias}"], retry=AGAIN)
        if version is not None:
            self._client.merge_version_aliases(name=version.name, version_aliases=[alias], retry=AGAIN)

    def label(self, version: Version, **labels: str) -> None:
        """Adds labels to a version, or changes them."""
        now = self._client.get_model(name=version.name, retry=AGAIN)
        changed = v1.Model(name=version.name, labels={**now.labels, **labels})
        self._client.update_model(model=changed, update_mask={"paths": ["labels"]}, retry=AGAIN)

    def _version(self, model: v1.Model) -> Version:
        return Version(self.name, model.version_id, dict(model.labels), model.artifact_uri)


def source_of(model: str) -> str:
    """The label for the address of a Trainer's model."""
    return hashlib.sha256(model.encode()).hexdigest()[:16]


def as_label(text: str) -> str:
    """A text as the value of a label: lower-case letters, digits, "_" and "-", at most 63."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]


def described(metrics: Mapping[str, float], run: str) -> str:
    """A line about a version for people."""
    shown = [f"{name} {metrics[name]:.4f}" for name in METRICS if name in metrics]
    return f"{', '.join(shown) or 'no metrics'} on the test split; run {run}"


def prebuilt_image(tensorflow: str, region: str, accelerator: str | None, known: Sequence[Any] | None = None) -> str:
    """Google's serving image for a version of TensorFlow.

    Args:
        tensorflow: Such as "2.21.0".
        region: Decides which copy of it.
        accelerator: Whether the machine has one.
        known: Addresses of the images; None: those that google-cloud-aiplatform lists.

    Raises:
        UserError: there is none with that TensorFlow or a newer one.
    """
    if known is None:
        from google.cloud.aiplatform.constants import prediction

        known = prediction.SERVING_CONTAINER_URIS
    place = region.partition("-")[0]
    place = place if place in ("us", "europe", "asia") else "us"
    kind = "gpu" if accelerator else "cpu"
    found = {}
    for address in known:
        match = re.fullmatch(rf"{place}-docker\.pkg\.dev/vertex-ai/prediction/tf2-{kind}\.(\d+)-(\d+):latest", address)
        if match:
            found[int(match[1]), int(match[2])] = address
    wanted = tuple(int(part) for part in tensorflow.split(".")[:2])
    fitting = sorted(version for version in found if version >= wanted)
    if not fitting:
        newest = ".".join(map(str, max(found))) if found else "none"
        raise UserError(
            f'endpoint.image is "prebuilt", and Google has no {kind} image for TensorFlow {tensorflow} (newest: '
            f'{newest}); take image="pipeline", which has the TensorFlow that the model was trained with'
        )
    return str(found[fitting[0]])
