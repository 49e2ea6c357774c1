"""A machine of Google Cloud, as a task of Vertex AI sees it: names, certificates and the metadata server.

``isolated`` starts a command in a network and a mount namespace of its own, and ``cloud_machine`` makes that a machine
on which Google's addresses lead to Cloud Storage in this process. No variable of the environment is needed, and no
client is configured: TensorFlow's knows no other address, and certificates and credentials come from where they are on
Vertex AI.

    metadata   cloud.google.com/compute/docs/metadata/querying-metadata: requests carry Metadata-Flavor: Google
    names      gcs_file_system.cc: www.googleapis.com and storage.googleapis.com; compute_engine_metadata_client.cc:
               metadata.google.internal; google/auth/compute_engine/_metadata.py: also 169.254.169.254
"""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import certifi

from tests.fakes.certificate import write_certificate
from tests.fakes.cloud_storage import CloudStorage

# google-auth asks the last one for allowedLocations with the first token (_regional_access_boundary_utils.py)
# and takes an error for none; without an answer it tries for seconds.
HOSTS = ("storage.googleapis.com", "www.googleapis.com", "iamcredentials.googleapis.com")
METADATA_HOST, METADATA_ADDRESS = "metadata.google.internal", "169.254.169.254"
NEW_NAMESPACES = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--")
# <linux/sockios.h>, <linux/if.h>
SIOCSIFADDR, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x8914, 0x1


def isolated(*command: str) -> list[str]:
    """Return a command that runs another in namespaces of its own.

    Raises:
        RuntimeError: this machine does not allow it; the message says why.
    """
    try:
        subprocess.run([*NEW_NAMESPACES, "true"], check=True, capture_output=True, text=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "").strip() or error
        raise RuntimeError(
            f"{' '.join(NEW_NAMESPACES)} does not run here: {reason}. It needs util-linux and user namespaces "
            "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0; in docker run "
            "--security-opt seccomp=unconfined)"
        ) from error
    return [*NEW_NAMESPACES, *command]


@contextlib.contextmanager
def cloud_machine(folder: Path, storage: CloudStorage, project: str, token: str) -> Iterator[None]:
    """Make this process' namespaces a machine of a project; call it in a command that ``isolated`` has started.

    Args:
        folder: Takes certificate and key.
        storage: Answers at Google's addresses.
        project: Of the machine's service account.
        token: That the metadata server gives out.
    """
    _bring_up("lo", "127.0.0.1")
    _bring_up("lo:0", METADATA_ADDRESS)
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {' '.join(HOSTS)}\n{METADATA_ADDRESS} {METADATA_HOST}\n", encoding="utf-8")
    _mount(hosts, Path("/etc/hosts"))
    certificate, key = write_certificate(folder, HOSTS)
    # TensorFlow's curl reads the first, Python's requests the second.
    authorities = folder / "authorities"
    authorities.mkdir()
    shutil.copy(certificate, authorities / "ca-certificates.crt")
    _mount(authorities, Path("/etc/ssl/certs"))
    _mount(certificate, Path(certifi.where()))
    with storage.serve(443, (certificate, key)), _metadata_server(project, token):
        yield


def _bring_up(interface: str, address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = interface.encode()
        wanted = struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(address))
        fcntl.ioctl(control, SIOCSIFADDR, wanted)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", name, IFF_UP))


def _mount(source: Path, target: Path) -> None:
    subprocess.run(["mount", "--bind", str(source), str(target)], check=True)


@contextlib.contextmanager
def _metadata_server(project: str, token: str) -> Iterator[None]:
    account = f"tasks@{project}.iam.gserviceaccount.com"
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    access = {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}
    accounts = "/computeMetadata/v1/instance/service-accounts"
    answers = {
        "/": "computeMetadata/",
        "/computeMetadata/v1/project/project-id": project,
        "/computeMetadata/v1/universe/universe-domain": "googleapis.com",
        **{
            path: text
            for name in ("default", account)
            for path, text in (
                (f"{accounts}/{name}/", json.dumps({"aliases": ["default"], "email": account, "scopes": scopes})),
                (f"{accounts}/{name}/email", account),
                (f"{accounts}/{name}/token", json.dumps(access)),
            )
        },
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked_rightly = self.headers.get("Metadata-Flavor") == "Google"  # rule: metadata
            text = answers.get(path) if asked_rightly else None
            self.send_response(200 if text is not None else 404 if asked_rightly else 403)
            content = (text or "").encode()
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Type", "application/json" if content[:1] == b"{" else "application/text")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((METADATA_ADDRESS, 80), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def task_environment() -> dict[str, str]:
    """Return an environment with nothing of this shell's."""
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
    return {"PATH": path, "HOME": os.environ.get("TMPDIR", "/tmp"), "LANG": "C.UTF-8"}
