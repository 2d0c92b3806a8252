"""Fetching over TLS: a certificate is believed or told, and nothing leads from https to plain http."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stoker.corpus.http.remote_file import RemoteFile
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
from support.small_server import Request, own_certificate, small_server

DATA = noise(50_000, 1)
OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="there is no openssl to make a certificate with")


@dataclass(frozen=True)
class Secure:
    """A server with a certificate of its own, in the file `certificate`."""

    url: str
    certificate: Path


def answer(request: Request) -> None:
    """Everything is one file, but /down, which leads to plain http."""
    if request.path.startswith("/down"):
        request.say(status=302, Location="http://127.0.0.1:1/a.bin")
    else:
        request.say(DATA)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    context, certificate = own_certificate(tmp_path_factory.mktemp("tls"))
    with small_server(answer, context=context) as server:
        yield Secure(f"https://localhost:{server.port}", certificate)


def test_a_certificate_of_ones_own_is_believed_when_it_is_named_and_nothing_leads_to_plain_http(
    secure: Secure, landing: Path, start: Start
) -> None:
    file, down = (
        RemoteFile.listed(name, None, None, None, f"{secure.url}/{name}") for name in ("a.bin", "down")
    )
    worker = start(hub=None, environ={"SSL_CERT_FILE": str(secure.certificate)}, attempts=1)
    worker.fetch(file, down)
    worker.until("done")
    assert content(landing, file) == DATA
    said = worker.until("failed")
    assert (said["class"], "from https to http" in said["reason"]) == ("redirects", True)


def test_a_proxy_relays_what_it_cannot_read(secure: Secure, landing: Path, start: Start) -> None:
    file = RemoteFile.listed("a.bin", None, None, None, f"{secure.url}/a.bin")
    with small_server(answer) as proxy:
        environ = {"SSL_CERT_FILE": str(secure.certificate), "NO_PROXY": ""}
        worker = start(
            hub=None, environ={**environ, "HTTPS_PROXY": f"http://user:sEcret@127.0.0.1:{proxy.port}"}
        )
        worker.fetch(file)
        worker.until("done")
        worker.finish()
    assert [(method, path) for method, path, _ in proxy.asked] == [("CONNECT", secure.url.partition("//")[2])]
    assert content(landing, file) == DATA and "sEcret" not in str(worker.said)


def test_a_certificate_that_nobody_vouches_for_is_told_and_tried_again(secure: Secure, start: Start) -> None:
    worker = start(hub=None)
    worker.fetch(RemoteFile.listed("a.bin", None, None, None, f"{secure.url}/a.bin"))
    said = worker.until("retry", count=2)
    assert said["class"] == "connect"
    assert "CERTIFICATE_VERIFY_FAILED" in said["reason"] and "SSL_CERT_FILE" in said["reason"]


def test_a_hubs_certificate_is_told_as_well(secure: Secure, hub: LoopbackHub) -> None:
    found = result_of(hub, endpoint=secure.url)
    assert found["class"] == "connect" and "SSL_CERT_FILE" in found["reason"]
