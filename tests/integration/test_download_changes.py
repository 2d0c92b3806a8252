"""What changes at the source while it is being fetched: no receipt ever speaks of another content."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.store.layout import LANDING_LOCK
from support.fetch_fixtures import hub_fixture, served_hub_fixture  # noqa: F401 - found by their names
from support.loopback_hub import LoopbackHub, noise
from support.pipelines import DataPipeline
from support.processes import daemon_command, start_daemon
from support.waiting import wait_until
from support.watchdogs import WATCHDOG, from_hub, from_urls, landed, put, receipt_states, set_receipt, sha256

SIZE, CUT = 3_000_000, 1_200_000


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


def write_list(data: DataPipeline, lines: list[str]) -> None:
    """Replace the list of URLs at once, as an editor does."""
    new = data.home / "urls.new"
    new.write_text("".join(f"{line}\n" for line in lines))
    new.replace(data.home / "urls.txt")


def replace_file(hub: LoopbackHub, name: str, content: bytes) -> None:
    """Another content under that address; who is being sent the old one still gets that."""
    (hub.root / "urls" / name).unlink()
    hub.put(name, content, repo="urls")


def test_a_list_of_urls_is_read_again_when_it_changes_and_what_is_listed_anew_comes_or_is_waited_for(
    hub: LoopbackHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: noise(50_000, number) for number, name in enumerate(("l0.bin", "l1.bin", "late.bin"))}
    for name in ("l0.bin", "l1.bin"):
        hub.put(name, files[name], repo="urls")
    old, new = noise(SIZE, 5), noise(SIZE, 6)
    hub.put("x.bin", old, repo="urls")
    small = [f"{hub.url('l0.bin')} {sha256(files['l0.bin'])}", hub.url("l1.bin")]
    missing = f"{hub.url('late.bin')} {sha256(files['late.bin'])}"
    lines = [f"{hub.url('x.bin')} {sha256(old)}", *small, missing]
    data = from_urls(tmp_path, lines, stage={"settle": "3s", "free_floor": "1MiB"})
    hub.fault("stall", on="url", path="x.bin", after=CUT)
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: hub.served("x.bin") == CUT, what="the old content's first bytes")
        wait_until(lambda: data.events(WATCHDOG, "download_given_up"), what="the missing file's end")

        write_list(data, small)  # half written: that drops nothing
        written = time.monotonic()
        wait_until(lambda: time.monotonic() > written + 2.2, what="two looks at what is there")
        assert not data.events(WATCHDOG, "source_moved")

        replace_file(hub, "x.bin", new)
        hub.put("late.bin", files["late.bin"], repo="urls")
        write_list(data, [f"{hub.url('x.bin')} {sha256(new)}", *small, "# it is there now", missing])
        wait_until(lambda: data.events(WATCHDOG, "source_moved"), what="the list, read again")
        hub.control("release")  # the old content is still on its way
        wait_until(lambda: len(data.receipts()) == 4, what="receipts of all")
        wait_until(lambda: data.status(WATCHDOG)["complete"], what="the complete listing")
        receipt = data.receipts()["x.bin"]
        assert (receipt.sha256, receipt.etag) == (sha256(new), f"sha256:{sha256(new)}")
        assert landed(data) == {**files, "x.bin": new}
        wait_until(lambda: data.listed() == {**dict.fromkeys(files, 50_000), "x.bin": SIZE}, what="the sizes")
        assert hub.served("l") == 150_000

        write_list(data, ["no url at all"])
        wait_until(lambda: "urls.txt:1" in data.status(WATCHDOG)["trouble"], what="the wrong line")
        hub.fault("status", on="url", path="busy", code=429, retry_after="date 3600", times=-1)
        write_list(data, [*small, *(hub.url(f"busy{number}.bin") for number in range(3))])
        wait_until(lambda: not data.status(WATCHDOG)["trouble"], what="the end of the trouble")
        a_wait_is_shown(data, capsys)
        (tmp_path / "urls.txt").unlink()
        way_out = "correct dataset.source.urls_file"
        wait_until(lambda: way_out in data.status(WATCHDOG)["trouble"], what="the loss of the list")
    finally:
        assert daemon.stop() == 0


def a_wait_is_shown(data: DataPipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """A wait that a server asks for stands in status, event and metric."""
    wait_until(lambda: data.status(WATCHDOG).get("waits"), what="the wait in the status")
    wait_until(lambda: data.events(WATCHDOG, "downloads_wait"), what="the event")
    assert exit_code(["status", str(data.file)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"waits +3 files wait, tried again at \S+Z: http://\S+ answers 429", told), told
    (event,) = data.events(WATCHDOG, "downloads_wait")
    assert 3500 < event["retry_in_s"] <= 3600
    assert data.metrics(WATCHDOG)["stoker_download_paused", "server"] == 1


def test_a_pinned_commit_that_vanishes_pauses_the_source_and_gives_no_file_up(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    repo, files = "org/rewritten", {f"{number}.parquet": noise(SIZE, number) for number in range(4)}
    put(hub, repo, files)
    pinned = hub.control("head", repo=f"dataset/{repo}")
    data = from_hub(tmp_path, hub, repo, download__files_at_once=1)
    hub.fault("stall", path=f"{repo}/1.parquet", after=CUT)
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: hub.served(f"{repo}/1.parquet") == CUT, what="the second file's first bytes")
        put(hub, repo, {"3.parquet": noise(SIZE, 33)})
        hub.control("head", repo=f"dataset/{repo}")
        hub.control("vanish", commit=pinned)
        hub.control("release")
        wait_until(lambda: "history was rewritten" in data.status(WATCHDOG)["trouble"], what="the trouble")
        assert receipt_states(data) == {"0.parquet": "verified", "1.parquet": "verified"}
        assert not data.status(WATCHDOG)["complete"]
    finally:
        assert daemon.stop() == 0
    assert data.events(WATCHDOG, "source_refuses")[-1]["kind"] == "vanished"
    assert landed(data) == {path: files[path] for path in ("0.parquet", "1.parquet")}


def test_a_stop_is_no_success_another_pipeline_keeps_off_and_addresses_signed_anew_bring_nothing_again(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    names = [f"signed{number}.bin" for number in range(2)]
    for number, name in enumerate((*names, "slow.bin")):
        hub.put(name, noise(SIZE if name == "slow.bin" else 50_000, number), repo="urls")
    signed = [f"{hub.url(name)}?Expires=1&Signature=a" for name in names]
    data = from_urls(tmp_path / "one", [*signed, hub.url("slow.bin")])
    hub.fault("stall", on="url", path="slow.bin", after=CUT)
    daemon = start_daemon(daemon_command(WATCHDOG, data.file, "--once"), tmp_path / "once.err")
    wait_until(lambda: hub.served("slow.bin") == CUT and len(data.receipts()) == 2, what="its first bytes")
    assert daemon.stop() == 75
    assert "start it again" in daemon.said()

    other = from_urls(tmp_path / "two", [hub.url("slow.bin")], hot=str(data.pipeline.hot))
    ended = other.once(WATCHDOG)
    assert ended.returncode == 69
    assert f"is another's: pipeline data (state {data.pipeline.state})" in ended.stderr
    assert landed(data).keys() == {*names} and not other.receipts()

    set_receipt(data, names[0], "releasing")
    write_list(data, [*(f"{hub.url(name)}?Expires=2&Signature=b" for name in names), hub.url("slow.bin")])
    assert data.once(WATCHDOG).returncode == 0
    assert receipt_states(data) == {names[0]: "released", names[1]: "verified", "slow.bin": "verified"}
    assert hub.served("signed") == 100_000
    assert hub.served("slow.bin") < SIZE + CUT, "it continues; what was under way at the stop comes twice"

    (data.pipeline.source_root / LANDING_LOCK).unlink()
    assert other.once(WATCHDOG).returncode == 0


def test_a_refusal_by_the_hub_ends_a_run_gives_no_file_up_and_stays_in_the_status_with_how_far_it_came(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    repo = "org/revoked"
    put(hub, repo, {f"{number}.parquet": noise(50_000, number) for number in range(3)})
    data = from_hub(tmp_path, hub, repo, download__files_at_once=1)
    hub.fault("status", on="resolve", path=repo, code=401, times=-1, skip=1)
    ended = data.once(WATCHDOG)
    assert ended.returncode == 69 and f"{hub.endpoint}/datasets/{repo}" in ended.stderr
    assert receipt_states(data) == {"0.parquet": "verified"}
    status = data.status(WATCHDOG)
    assert status["files"]["verified"] == 1 and status["files"]["waiting"] == 2 and not status["complete"]
    assert f"{hub.endpoint}/datasets/{repo}" in status["trouble"] and status["text"] == status["trouble"]
