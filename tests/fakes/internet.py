"""A proxy that leads every host to one server here, for clients that heed HTTPS_PROXY."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def proxy_to(port: int) -> Iterator[str]:
    """Lead all tunnels to a port here until the block ends; yield the address of the proxy."""

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            with socket.create_connection(("localhost", port)) as there:
                self.send_response(200)
                self.end_headers()
                here = self.connection
                back = threading.Thread(target=_pass_on, args=(there, here), daemon=True)
                back.start()
                _pass_on(here, there)
                back.join()
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("localhost", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://localhost:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(65536):
            target.sendall(content)
        target.shutdown(socket.SHUT_WR)
