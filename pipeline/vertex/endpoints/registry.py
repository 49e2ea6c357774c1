"""Keep the model registry: one entry for a pipeline, with a version for every model that was pushed."""

import concurrent.futures
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.cloud import aiplatform_v1 as v1

from pipeline.errors import UserError
from pipeline.vertex.cloud import RETRY, Cloud

# Aliases: the version that gets all the traffic, and the one that did before it. Batch jobs and other readers take
# "default", which Vertex AI gives to the first version by itself and which goes with "live".
LIVE, PREVIOUS, DEFAULT = "live", "previous", "default"
# Labels of a version: its model, its run, and its state.
SOURCE, RUN, STATE = "source", "run", "state"
CANARY, PROMOTED, FAILED, ROLLED_BACK = "canary", "promoted", "canary-failed", "rolled-back"
# Vertex AI's names of our metrics: cloud.google.com/vertex-ai/docs/evaluation/introduction#classification
CLASSIFICATION = "gs://google-cloud-aiplatform/schema/modelevaluation/classification_metrics_1.0.0.yaml"
METRICS = {"auc": "auRoc", "auc_precision_recall": "auPrc"}
SECONDS_TO_UPLOAD = 1800.0
# Vertex AI may refuse a call while another operation changes the same resource (google.aip.dev/151). Nothing else is
# repeated: a call whose answer was lost may have been carried out.
WHEN_FREE = Retry(if_exception_type(exceptions.Aborted), initial=1.0, maximum=30.0, timeout=1800.0)
# Another process is creating the resource, which will exist when that operation has ended.
WHEN_CREATED = Retry(
    if_exception_type(exceptions.NotFound, exceptions.Aborted), initial=1.0, maximum=15.0, timeout=300.0
)


@dataclass(frozen=True)
class Version:
    """One version of the entry."""

    entry: str  # "projects/P/locations/R/models/ID"
    id: str  # such as "3"
    labels: Mapping[str, str]  # at the time of reading
    folder: str  # the SavedModel, gs://...

    @property
    def name(self) -> str:
        """Return the resource name with the version."""
        return f"{self.entry}@{self.id}"


class Registry:
    """The entry of one pipeline, whose name is its id; it exists from the first push on."""

    def __init__(self, cloud: Cloud, pipeline: str):
        self._cloud = cloud
        self._client = cloud.client(v1.ModelServiceClient)
        self.id = pipeline
        self.name = f"{cloud.parent}/models/{pipeline}"

    def versions(self) -> list[Version]:
        """Return all versions, the oldest first; none before the first push."""
        try:
            models = list(self._client.list_model_versions(name=self.name, retry=RETRY))
        except exceptions.NotFound:
            return []
        return sorted((self._version(model) for model in models), key=lambda version: int(version.id))

    def pushed_from(self, model: str) -> Version | None:
        """Return the version of a Trainer's model: a task that is started again does not register a second one."""
        source = source_of(model)
        return next((version for version in self.versions() if version.labels.get(SOURCE) == source), None)

    def with_alias(self, alias: str) -> Version | None:
        """Return the version that has an alias or a number, if it exists."""
        try:
            return self._version(self._client.get_model(name=f"{self.name}@{alias}", retry=RETRY))
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
        """Register the Trainer's ``model``, pushed to ``folder``, as the next version or the first of a new entry."""
        new = v1.Model(
            display_name=self.id,
            artifact_uri=folder,
            container_spec=container,
            labels={**labels, SOURCE: source_of(model), STATE: CANARY},
            version_description=description,
        )
        if encryption_key:
            new.encryption_spec = v1.EncryptionSpec(kms_key_name=encryption_key)
        request = v1.UploadModelRequest(parent=self._cloud.parent, model=new, model_id=self.id)
        next_version = v1.UploadModelRequest(parent=self._cloud.parent, model=new, parent_model=self.name)
        if self.versions():
            request = next_version
        try:
            response = finished(self._client.upload_model(request=request), SECONDS_TO_UPLOAD)
        except (exceptions.AlreadyExists, exceptions.Aborted):  # the first push of another run, at the same moment
            operation = self._client.upload_model(request=next_version, retry=WHEN_CREATED)
            response = finished(operation, SECONDS_TO_UPLOAD)
        return Version(self.name, response.model_version_id, dict(new.labels), folder)

    def add_metrics(self, version: Version, metrics: Mapping[str, float]) -> None:
        """Show the metrics on the test split with a version: Vertex AI's own by its names, all as metadata."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        evaluation = v1.ModelEvaluation(
            display_name="test split",
            metrics_schema_uri=CLASSIFICATION,
            metrics={theirs: finite[ours] for ours, theirs in METRICS.items() if ours in finite},
            metadata=finite,
        )
        self._client.import_model_evaluation(parent=version.name, model_evaluation=evaluation, retry=RETRY)

    def make_live(self, version: Version, rolled_back: bool = False) -> None:
        """Give a version the aliases of all the traffic; the version that had them becomes "previous".

        After a rollback no version is "previous": the rejected version must not return.
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
        """Take an alias from the version that has it and give it to another, or to none."""
        holder = self.with_alias(alias)
        if holder is not None and version is not None and holder.id == version.id:
            return
        if holder is not None and alias != DEFAULT:
            self._client.merge_version_aliases(name=holder.name, version_aliases=[f"-{alias}"], retry=RETRY)
        if version is not None:
            self._client.merge_version_aliases(name=version.name, version_aliases=[alias], retry=RETRY)

    def label(self, version: Version, **labels: str) -> None:
        """Add labels to a version, or change them."""
        model = self._client.get_model(name=version.name, retry=RETRY)
        changed = v1.Model(name=version.name, labels={**model.labels, **labels})
        self._client.update_model(model=changed, update_mask={"paths": ["labels"]}, retry=RETRY)

    def _version(self, model: v1.Model) -> Version:
        return Version(self.name, model.version_id, dict(model.labels), model.artifact_uri)


def finished(operation: Any, seconds: float) -> Any:
    """Wait for a long-running operation and return its response."""
    try:
        return operation.result(timeout=seconds)
    except concurrent.futures.TimeoutError as error:
        raise UserError(
            f"{operation.operation.name} has not ended within {seconds / 60:.0f} minutes, and may still do what it was "
            "started for. What to do: look at it in the Google Cloud console, undeploy there what is deployed without "
            "traffic, and run again"
        ) from error


def source_of(model: str) -> str:
    """Return the label for the address of a Trainer's model."""
    return hashlib.sha256(model.encode()).hexdigest()[:16]


def as_label(text: str) -> str:
    """Return a text as the value of a label: lower-case letters, digits, "_" and "-", at most 63."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]


def described(metrics: Mapping[str, float], run: str) -> str:
    """Return a line about a version for people."""
    shown = [f"{name} {metrics[name]:.4f}" for name in METRICS if name in metrics]
    return f"{', '.join(shown) or 'no metrics'} on the test split; run {run}"
