"""Fetching over TLS: a certificate is believed or told, and nothing leads from https to plain http."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stoker.corpus.remote import RemoteFile
from support.fetch_fixtures import (  # noqa: F401 - found by their names
    Start,
    content,
    hub_fixture,
    landing_fixture,
    served_hub_fixture,
    start_fixture,
)
from support.hub_listing import result_of
from support.loopback_hub import LoopbackHub, noise

DATA = noise(50_000, 1)
OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="there is no openssl to make a certificate with")


@dataclass(frozen=True)
class Secure:
    """A server with a certificate of its own, in the file `certificate`."""

    url: str
    certificate: Path


class Handler(BaseHTTPRequestHandler):
    """Everything is one file, but /down, which leads to plain http."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        down = self.path.startswith("/down")
        self.send_response(302 if down else 200)
        if down:
            self.send_header("Location", "http://127.0.0.1:1/a.bin")
        self.send_header("Content-Length", "0" if down else str(len(DATA)))
        self.end_headers()
        if not down:
            self.wfile.write(DATA)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    home = tmp_path_factory.mktemp("tls")
    key, certificate = home / "key.pem", home / "certificate.pem"
    made = f"req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2 -subj /CN=localhost"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run([str(OPENSSL), *made.split(), "-addext", names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Secure(f"https://localhost:{server.server_address[1]}", certificate)
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_certificate_of_ones_own_is_believed_when_it_is_named(
    secure: Secure, landing: Path, start: Start
) -> None:
    file = RemoteFile("a.bin", f"{secure.url}/a.bin")
    worker = start(hub=None, environ={"SSL_CERT_FILE": str(secure.certificate)})
    worker.fetch(file)
    worker.until("done")
    assert content(landing, file) == DATA


def test_a_certificate_that_nobody_vouches_for_is_told_and_tried_again(secure: Secure, start: Start) -> None:
    worker = start(hub=None)
    worker.fetch(RemoteFile("a.bin", f"{secure.url}/a.bin"))
    said = worker.until("retry", count=2)
    assert said["class"] == "connect"
    assert "CERTIFICATE_VERIFY_FAILED" in said["reason"] and "SSL_CERT_FILE" in said["reason"]


def test_nothing_leads_from_https_to_plain_http(secure: Secure, start: Start) -> None:
    worker = start(hub=None, environ={"SSL_CERT_FILE": str(secure.certificate)}, attempts=1)
    worker.fetch(RemoteFile("a.bin", f"{secure.url}/down"))
    said = worker.until("failed")
    assert (said["class"], "from https to http" in said["reason"]) == ("redirects", True)


def test_a_hubs_certificate_is_told_as_well(secure: Secure, hub: LoopbackHub) -> None:
    found = result_of(hub, endpoint=secure.url)
    assert found["class"] == "connect" and "SSL_CERT_FILE" in found["reason"]
