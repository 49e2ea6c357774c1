"""TensorBoard instances without new data, whose storage is paid for."""

import datetime
from collections.abc import Iterator
from typing import Any

from google.cloud import aiplatform_v1 as v1

from pipeline.vertex.cloud import RETRY
from pipeline.vertex.pipelines.idle import rates
from pipeline.vertex.pipelines.idle.finding import Idle, Scope, last_part, size_of


def look(scope: Scope) -> Iterator[Idle]:
    """Yield the TensorBoards to which nothing was added.

    A training adds an experiment or a run: the newest of these says when there was new data.

    Raises:
        GoogleAPICallError: they may not be listed.
    """
    client = scope.cloud.client(v1.TensorboardServiceClient)
    ours = set(map(last_part, scope.tensorboards))
    for board in client.list_tensorboards(parent=scope.cloud.parent, retry=RETRY):
        if not scope.whole and last_part(board.name) not in ours:
            continue
        last = max(_changes(board, client, scope))
        if last >= scope.since:
            continue
        size = client.read_tensorboard_size(tensorboard=board.name, retry=RETRY).storage_size_byte
        if size:
            why = f"{size_of(size)}, no new data for {scope.age(last):.0f} days; all of it is deleted"
            command = scope.gcloud("ai", "tensorboards", "delete", last_part(board.name))
            yield Idle(f"TensorBoard {board.display_name}", why, rates.of_tensorboard(size, scope), command)


def _changes(board: Any, client: v1.TensorboardServiceClient, scope: Scope) -> Iterator[datetime.datetime]:
    """Yield when a TensorBoard, its experiments and runs were made or changed, up to the first that is recent."""
    yield board.create_time
    newest_first = sorted(
        client.list_tensorboard_experiments(parent=board.name, retry=RETRY),
        key=lambda experiment: experiment.update_time,
        reverse=True,
    )
    for experiment in newest_first:
        yield experiment.update_time
        if experiment.update_time >= scope.since:
            return
        for run in client.list_tensorboard_runs(parent=experiment.name, retry=RETRY):
            yield run.update_time
            if run.update_time >= scope.since:
                return
