"""Files without a listed sum: never two contents in one, and called proven only where something proves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.corpus.records.sources import PUBLISHED
from stoker.shards.audit.audit import audit_sets
from support.loopback_hub import noise
from support.parquet import write_fineweb
from support.pipelines import DataPipeline
from support.small_server import Request, small_server
from support.watchdogs import WATCHDOG, from_urls, landed, receipt_states

SIZE, CUT = 300_000, 120_000
OLD, NEW = noise(SIZE, 1), noise(SIZE, 2)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


def begin(request: Request, status: int, **headers: str) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()


def verify(data: DataPipeline, *options: str) -> int:
    return exit_code(["verify", "downloads", str(data.file), *options])


def test_what_comes_without_a_length_is_used_and_called_unproven_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = write_fineweb(tmp_path / "x.parquet", 150).read_bytes()

    def until_it_closes(request: Request) -> None:
        begin(request, 200, Connection="close")
        request.wfile.write(body)
        request.close_connection = True

    with small_server(until_it_closes) as server:
        data = from_urls(tmp_path / "p", [f"http://127.0.0.1:{server.port}/x.parquet"])
        assert data.once(WATCHDOG).returncode == 0
        assert receipt_states(data) == {"x.parquet": "unproven"}
        assert [event["path"] for event in data.events(WATCHDOG, "file_unproven")] == ["x.parquet"]
        counts = data.status(WATCHDOG)["files"]
        assert (counts["unproven"], counts["verified"]) == (1, 0)
        assert verify(data) == 0
        assert "1 file came without a length or a sum" in capsys.readouterr().out

        ended = data.once("stage_shard")
        assert ended.returncode == 0, ended.stderr
        assert data.sources()["x.parquet"].state in PUBLISHED
        audit = audit_sets(data.pipeline)
        assert (audit.findings, audit.unproven) == ((), ("x.parquet",))
        assert exit_code(["audit", str(data.file)]) == 0
        assert "unproven     1 file" in capsys.readouterr().out


def answer_of(name: str, request: Request, times: int) -> None:
    """The old content breaks off; then each file says something else of its own."""
    tag = {} if name == "untagged.bin" else {"ETag": '"old"'}
    if name == "rots.bin" or (name == "endless.bin" and times > 3):
        request.say(OLD)
    elif times == 1:
        begin(request, 200, Content_Length=str(SIZE), **tag)
        request.wfile.write(OLD[:CUT])
        request.close_connection = True
    elif name == "endless.bin":
        if times == 2:
            begin(request, 206, Content_Length="0", Content_Range=f"bytes {CUT}-{SIZE - 1}/{'9' * 5000}")
        else:
            begin(request, 200, Content_Length="9" * 5000)
            request.close_connection = True
    elif "Range" in request.headers:  # from now on there is the new one, whose parts come without a tag
        low = int(request.headers["Range"].removeprefix("bytes=").rstrip("-"))
        told = f"bytes {low}-{SIZE - 1}/{SIZE}"
        begin(request, 206, Content_Length=str(SIZE - low), Content_Range=told)
        request.wfile.write(NEW[low:])
    else:
        request.say(NEW)


def test_a_part_that_nothing_says_is_of_the_same_content_begins_anew_and_what_rots_is_fetched_again(
    tmp_path: Path,
) -> None:
    def answer(request: Request) -> None:
        times = sum(path == request.path for _, path, _ in request.server.asked)
        answer_of(request.path.removeprefix("/"), request, times)

    whole = {"tagged.bin": NEW, "untagged.bin": NEW, "endless.bin": OLD, "rots.bin": OLD}
    with small_server(answer) as server:
        data = from_urls(tmp_path, [f"http://127.0.0.1:{server.port}/{name}" for name in whole])
        ended = data.once(WATCHDOG)
        assert ended.returncode == 0, ended.stderr
        assert landed(data) == whole and data.events(WATCHDOG, "download_failed") == []
        assert set(receipt_states(data).values()) == {"verified"}, "they came with a length"
        receipt = data.receipts()["rots.bin"]
        Path(receipt.file).write_bytes(NEW)
        assert verify(data, "--dispute") == 1
        assert data.once(WATCHDOG).returncode == 0
    assert landed(data) == whole
    assert data.receipts()["rots.bin"] == receipt
