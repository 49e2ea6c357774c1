"""TensorBoards of the fake Vertex AI, which stand and are paid for until they are deleted.

They are listed and read only; tests put them there, as somebody else has made them.
"""

from collections.abc import Callable
from typing import Any

from google.cloud import aiplatform_v1 as v1

from tests.fakes import rules
from tests.fakes.checks import require
from tests.fakes.resources import Methods
from tests.fakes.script import Script


class FakeStanding:
    """The state and its methods.

    Attributes:
        tensorboards, experiments, runs: By resource name, which has the project's number.
        sizes: Bytes in a TensorBoard, by its name.
    """

    def __init__(self, canonical: Callable[[str], str], script: Script):
        self._canonical = canonical
        self._script = script
        self.tensorboards: dict[str, v1.Tensorboard] = {}
        self.experiments: dict[str, v1.TensorboardExperiment] = {}
        self.runs: dict[str, v1.TensorboardRun] = {}
        self.sizes: dict[str, int] = {}

    def services(self) -> dict[str, Methods]:
        """Request type and answer, by method, by service."""
        return {
            "TensorboardService": {
                "ListTensorboards": (
                    v1.ListTensorboardsRequest,
                    self._lists(self.tensorboards, v1.ListTensorboardsResponse, "tensorboards"),
                ),
                "ListTensorboardExperiments": (
                    v1.ListTensorboardExperimentsRequest,
                    self._lists(self.experiments, v1.ListTensorboardExperimentsResponse, "tensorboard_experiments"),
                ),
                "ListTensorboardRuns": (
                    v1.ListTensorboardRunsRequest,
                    self._lists(self.runs, v1.ListTensorboardRunsResponse, "tensorboard_runs"),
                ),
                "ReadTensorboardSize": (v1.ReadTensorboardSizeRequest, self._read_size),
            },
        }

    def _lists(self, kept: dict[str, Any], response: Any, field: str) -> Callable[[Any], Any]:
        """A method that lists the children of a parent, and not theirs."""

        def listed(ask: Any) -> Any:
            parent = self._canonical(ask.parent)
            require(not getattr(ask, "filter", ""), "the fake lists these without a filter")
            require(not getattr(ask, "order_by", ""), "the fake lists these in no order")
            found = [one for name, one in kept.items() if name.rsplit("/", 2)[0] == parent]
            page, token = rules.page(found, ask, self._script.page_size)
            return response(**{field: page, "next_page_token": token})

        return listed

    def _read_size(self, ask: v1.ReadTensorboardSizeRequest) -> v1.ReadTensorboardSizeResponse:
        name = self._canonical(ask.tensorboard)
        if name not in self.tensorboards:
            raise KeyError(name)
        return v1.ReadTensorboardSizeResponse(storage_size_byte=self.sizes.get(name, 0))
