"""Where an address leads: relative redirects, other schemes, IPv6, and bodies of every form."""

from __future__ import annotations

import hashlib
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
from support.loopback_hub import noise
from support.small_server import Request, small_server

DATA = noise(50_000, 1)
SUM = hashlib.sha256(DATA).hexdigest()
PIECE = 7000
REDIRECTS = {
    "/deep/up.bin": "../whole/up.bin",
    "/root.bin": "/whole/root.bin",
    "/climb.bin": "/../../../whole/climb.bin",
    "/query.bin": "/whole/query.bin?x=%2e%2e%2f",
    "/file.bin": "file:///etc/hostname",
    "/script.bin": "javascript:alert(1)",
    "/broken.bin": "//[broken/x",
    "/itself.bin": "/itself.bin",
    "/nowhere.bin": "",
}


def answer(request: Request) -> None:
    """A redirect by the table, or the file in one of its forms."""
    if (to := REDIRECTS.get(request.path)) is not None:
        request.say(status=302, **({"Location": to} if to else {}))
    elif request.path == "/chunked.bin":
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for low in range(0, len(DATA), PIECE):
            piece = DATA[low : low + PIECE]
            request.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        request.wfile.write(b"0\r\n\r\n")
    elif request.path == "/closed.bin":
        request.send_response(200)
        request.end_headers()
        request.wfile.write(DATA)
        request.close_connection = True
    else:
        request.say(DATA)


def test_a_file_comes_whole_however_it_is_pointed_to_and_sent_and_what_leads_nowhere_is_never_read(
    landing: Path, start: Start
) -> None:
    worker = start(hub=None, attempts=2)
    with small_server(answer) as server:
        names = ("deep/up.bin", "root.bin", "climb.bin", "query.bin", "chunked.bin", "closed.bin")
        nowhere = ("file.bin", "script.bin", "broken.bin", "itself.bin", "nowhere.bin")
        at = f"http://127.0.0.1:{server.port}"
        good = [RemoteFile.listed(name, None, SUM, None, f"{at}/{name}") for name in names]
        worker.fetch(*good, *(RemoteFile.listed(name, None, None, None, f"{at}/{name}") for name in nowhere))
        worker.until("done", count=len(names))
        worker.until("failed", count=len(nowhere))
    assert all(content(landing, file) == DATA for file in good)
    for name in nowhere:
        assert worker.of("failed", name)[0]["class"] == "redirects"
        assert len(worker.of("retry", name)) == 1 and not (landing / name).exists()
    try:
        opened = small_server(answer, host="::1")
        with opened as server:
            file = RemoteFile.listed("six.bin", None, SUM, None, f"http://[::1]:{server.port}/root.bin")
            worker.fetch(file)
            worker.until("done", file.path)
    except OSError as error:
        pytest.skip(f"no IPv6 on loopback: {error}")
    assert content(landing, file) == DATA
