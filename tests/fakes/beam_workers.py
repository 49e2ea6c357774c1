"""Workers of Beam in processes of their own, each started as in a container of Beam's: it has what the job brings.

A pool from which any runner takes workers (``--environment_type=EXTERNAL``). Beam's own, ``worker_pool_main``, calls
the program ``boot`` of Beam's images, which is in no package. What that does is done here
(sdks/python/container/boot.go): ask the runner for the job, fetch its files, install its wheels, start Beam's worker. A
worker is forked from a process that has imported the packages and nothing of this repository.

    python -m tests.fakes.beam_workers PORT FOLDER
"""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability.api import (
    beam_artifact_api_pb2_grpc,
    beam_fn_api_pb2,
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    beam_runner_api_pb2,
)
from apache_beam.runners.portability import artifact_service
from apache_beam.runners.worker import worker_pool_main
from google.protobuf import json_format, text_format

from tests.preloaded import IMPORTED

ROOT = Path(__file__).resolve().parents[2]
_server = multiprocessing.get_context("forkserver")


class Pool(worker_pool_main.BeamFnExternalWorkerPoolServicer):
    """Start a process for each worker that a runner asks for; ``folder`` takes the files of their jobs."""

    folder = Path()

    def StartWorker(self, request: Any, context: Any) -> Any:
        """Start one."""
        folder = self.folder / request.worker_id
        folder.mkdir()
        process = _server.Process(target=_work, args=(request.SerializeToString(), str(folder)), daemon=True)
        process.start()
        return beam_fn_api_pb2.StartWorkerResponse()


def _work(asked: bytes, folder: str) -> None:
    """Do what ``boot`` does, and be the worker."""
    request = beam_fn_api_pb2.StartWorkerRequest.FromString(asked)
    log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    channel = grpc.insecure_channel(_here(request.provision_endpoint.url))
    info = (
        beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        .GetProvisionInfo(beam_provision_api_pb2.GetProvisionInfoRequest(), metadata=[("worker_id", request.worker_id)])
        .info
    )
    staged = Path(folder, "staged")
    staged.mkdir()
    artifacts = beam_artifact_api_pb2_grpc.ArtifactRetrievalServiceStub(channel)
    for artifact in artifact_service.resolve_artifacts(info.dependencies, artifacts, folder):
        name = beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(artifact.role_payload).staged_name
        stored = beam_runner_api_pb2.ArtifactFilePayload.FromString(artifact.type_payload).path
        Path(stored).rename(staged / name)
    listed = staged / "extra_packages.txt"
    for wheel in listed.read_text().split() if listed.exists() else ():
        pip = ("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", f"{folder}/packages")
        subprocess.run([sys.executable, *pip, staged / wheel], check=True)
    # The library is installed; nothing else of this repository is found by chance.
    sys.path[:] = [*(path for path in sys.path if Path(path).resolve() != ROOT), f"{folder}/packages"]
    for endpoint in (request.control_endpoint, request.logging_endpoint):
        endpoint.url = _here(endpoint.url)
    os.environ.update(
        WORKER_ID=request.worker_id,
        PIPELINE_OPTIONS=json_format.MessageToJson(info.pipeline_options),
        SEMI_PERSISTENT_DIRECTORY=folder,
        RUNNER_CAPABILITIES=" ".join(info.runner_capabilities),
        CONTROL_API_SERVICE_DESCRIPTOR=text_format.MessageToString(request.control_endpoint),
        LOGGING_API_SERVICE_DESCRIPTOR=text_format.MessageToString(request.logging_endpoint),
    )
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main([])


def _here(url: str) -> str:
    """Return the address of a port on this machine, whatever name the runner has for it."""
    return f"localhost:{url.rpartition(':')[2]}"


def main() -> None:
    """Serve at a port until the process is ended."""
    port, Pool.folder = int(sys.argv[1]), Path(sys.argv[2])
    _server.set_forkserver_preload(list(IMPORTED))
    _, server = Pool.start(port=port)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
