"""Base classes of our components.

TFX's cache compares the inputs and execution properties of a step, not the code that it runs. The components here add
one property, ``code``: a fingerprint of the module that defines them and of what it imports from this repository.
"""

import contextlib
import dataclasses
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from tensorflow_metadata.proto.v0 import schema_pb2
from tfx import types
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.types import artifact_utils
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.utils import io_utils, path_utils

from pipeline.data import files
from pipeline.packaging.fingerprints import fingerprint_of
from pipeline.packaging.user_code import importable

Artifacts = dict[str, list[types.Artifact]]


class FingerprintedComponent(BaseComponent):
    """Run again when the code of the step has changed. Stands before TFX's class in the bases of a component."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.exec_properties["code"] = fingerprint_of(Path(inspect.getfile(type(self))))


class UserCodeComponent(FingerprintedComponent):
    """Run user code from a wheel of ours, where TFX would pack the whole folder of the module file."""

    def __init__(self, module_path: str, **kwargs: Any):
        """Create the component for ``flights@folder/flights_run_fn-0.0+1a2b.whl``, as TFX writes module and wheel."""
        super().__init__(module_file=module_path, **kwargs)
        self.exec_properties.update(module_file=None, module_path=module_path)


@contextlib.contextmanager
def user_code(exec_properties: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Let the module of a step be imported until the end of the block; yield the properties with its name alone.

    TFX knows other ways to name user code than by a "module_path"; such properties stay as they are.
    """
    with importable(exec_properties.get("module_path") or "") as module:
        yield {**exec_properties, "module_path": module or None}


class DeclaredComponent(FingerprintedComponent):
    """Build the ComponentSpec from artifact types by the names of ports; inputs in OPTIONAL_INPUTS may be None."""

    INPUTS: ClassVar[Mapping[str, type[types.Artifact]]] = {}
    OPTIONAL_INPUTS: ClassVar[Mapping[str, type[types.Artifact]]] = {}
    OUTPUTS: ClassVar[Mapping[str, type[types.Artifact]]] = {}

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        inputs = {name: ChannelParameter(type=kind) for name, kind in cls.INPUTS.items()}
        optional = {name: ChannelParameter(type=kind, optional=True) for name, kind in cls.OPTIONAL_INPUTS.items()}
        ports = {
            "PARAMETERS": {"settings": ExecutionParameter(type=str)},
            "INPUTS": inputs | optional,
            "OUTPUTS": {name: ChannelParameter(type=kind) for name, kind in cls.OUTPUTS.items()},
        }
        cls.SPEC_CLASS = type(f"{cls.__name__}Spec", (ComponentSpec,), ports)

    def __init__(self, settings: Any = None, **inputs: types.BaseChannel | None):
        """Create the component; the executor gets the settings, of a class or by name, as JSON in its properties."""
        outputs = {name: types.Channel(type=kind) for name, kind in self.OUTPUTS.items()}
        values = dataclasses.asdict(settings) if dataclasses.is_dataclass(settings) else settings or {}  # type: ignore[arg-type]
        settings_json = json.dumps(values, sort_keys=True)
        super().__init__(self.SPEC_CLASS(settings=settings_json, **inputs, **outputs))


def serving_model_folder(artifacts: list[types.Artifact]) -> str:
    """Return the folder of the SavedModel of an input."""
    model = artifact_utils.get_single_instance(artifacts)
    return str(path_utils.serving_model_path(model.uri, path_utils.is_old_model_artifact(model)))


def read_schema(artifacts: list[types.Artifact]) -> schema_pb2.Schema:
    """Return the schema of an input."""
    return io_utils.SchemaReader().read(io_utils.get_only_uri_in_dir(artifact_utils.get_single_uri(artifacts)))


def files_of(examples: types.Artifact, split: str) -> list[str]:
    """Return the paths of the files of a split."""
    folder = artifact_utils.get_split_uri([examples], split)
    return list(files.find(folder, {split: "*"}).by_split[split])
