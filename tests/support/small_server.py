"""A web server in a thread of the test, whose answers are a function: for what a loopback hub never says."""

from __future__ import annotations

import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RELAY_S = 10.0


class Request(BaseHTTPRequestHandler):
    """One request; `server.asked` are all so far, as (method, path, headers)."""

    protocol_version = "HTTP/1.1"
    server: SmallServer
    body = b""  # of a POST

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append((self.command, self.path, dict(self.headers)))
        self.server.answer(self)

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def do_CONNECT(self) -> None:
        """As a proxy does."""
        self.server.asked.append((self.command, self.path, dict(self.headers)))
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as other:
            self.send_response(200)
            self.end_headers()
            _relay(self.connection, other)
        self.close_connection = True

    def say(self, body: bytes = b"", status: int = 200, **headers: str) -> None:
        """Answer; `headers` with an underscore for the hyphen."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class SmallServer(ThreadingHTTPServer):
    """Answers by a function."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Request], None], host: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), Request)
        self.answer = answer
        self.asked: list[tuple[str, str, dict[str, str]]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no news."""


@contextmanager
def small_server(
    answer: Callable[[Request], None], *, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> Iterator[SmallServer]:
    """Serve until the block ends; with TLS where a context is given. OSError where there is no such host."""
    server = SmallServer(answer, host)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def own_certificate(home: Path) -> tuple[ssl.SSLContext, Path]:
    """Make a certificate for localhost that nobody vouches for; a server's context, and its file."""
    key, certificate = home / "key.pem", home / "certificate.pem"
    made = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {key} -out {certificate}"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = ["openssl", *made.split(), "-subj", "/CN=localhost", "-addext", names]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate


def _relay(one: socket.socket, other: socket.socket) -> None:
    while True:
        ready, _, _ = select.select([one, other], [], [], RELAY_S)
        if not ready:
            return
        for each in ready:
            data = each.recv(1 << 16)
            if not data:
                return
            (other if each is one else one).sendall(data)
