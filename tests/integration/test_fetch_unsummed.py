"""Files without a listed sum: never two contents in one, and called proven only where something proves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.corpus.records.sources import PUBLISHED
from stoker.shards.audit.audit import audit_sets
from support.loopback_hub import noise
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, Template
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


def test_a_part_of_unknown_content_begins_anew_what_rots_comes_again_and_what_has_no_length_is_unproven(
    drained: Template, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unsummed = write_fineweb(tmp_path / "x.parquet", 150).read_bytes()

    def answer(request: Request) -> None:
        times = sum(path == request.path for _, path, _ in request.server.asked)
        if request.path == "/x.parquet":  # until it closes
            begin(request, 200, Connection="close")
            request.wfile.write(unsummed)
            request.close_connection = True
        else:
            answer_of(request.path.removeprefix("/"), request, times)

    summed = {"tagged.bin": NEW, "untagged.bin": NEW, "endless.bin": OLD, "rots.bin": OLD}
    whole = {**summed, "x.parquet": unsummed}
    with small_server(answer) as server:
        lines = [f"http://127.0.0.1:{server.port}/{name}" for name in whole]
        data = from_urls(tmp_path / "p", lines, tokenizer=drained.tokenizer)
        ended = data.once(WATCHDOG)
        assert ended.returncode == 0, ended.stderr
        assert landed(data) == whole and data.events(WATCHDOG, "download_failed") == []
        came_with_a_length = dict.fromkeys(summed, "verified")
        assert receipt_states(data) == {**came_with_a_length, "x.parquet": "unproven"}
        assert [event["path"] for event in data.events(WATCHDOG, "file_unproven")] == ["x.parquet"]
        counts = data.status(WATCHDOG)["files"]
        assert (counts["unproven"], counts["verified"]) == (1, 4)
        assert verify(data) == 0
        assert "1 file came without a length or a sum" in capsys.readouterr().out

        receipt = data.receipts()["rots.bin"]
        Path(receipt.file).write_bytes(NEW)
        assert verify(data, "--dispute") == 1
        assert data.once(WATCHDOG).returncode == 0
        assert landed(data) == whole
        assert data.receipts()["rots.bin"] == receipt
    it_is_used_and_called_unproven_everywhere(data, capsys)


def it_is_used_and_called_unproven_everywhere(data: DataPipeline, capsys: pytest.CaptureFixture[str]) -> None:
    ended = data.once("stage_shard")
    assert ended.returncode == 0, ended.stderr
    states = data.states()
    assert states.pop("x.parquet") in PUBLISHED
    assert set(states.values()) == {"quarantined"}, "they are no parquet"
    audit = audit_sets(data.pipeline)
    assert (audit.findings, audit.unproven) == ((), ("x.parquet",))
    capsys.readouterr()
    assert exit_code(["audit", str(data.file)]) == 0
    assert "unproven     1 file" in capsys.readouterr().out
