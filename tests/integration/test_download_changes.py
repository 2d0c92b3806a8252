"""What changes at the source while it is being fetched: no receipt ever speaks of another content."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

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


def test_content_listed_anew_while_the_old_is_on_its_way_is_fetched(hub: LoopbackHub, tmp_path: Path) -> None:
    old, new = noise(SIZE, 1), noise(SIZE, 2)
    hub.put("x.bin", old, repo="urls")
    data = from_urls(tmp_path, [f"{hub.url('x.bin')} {sha256(old)}"])
    hub.fault("stall", on="url", path="x.bin", after=CUT)
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: hub.served("x.bin") == CUT, what="the old content's first bytes")
        replace_file(hub, "x.bin", new)
        write_list(data, [f"{hub.url('x.bin')} {sha256(new)}"])
        wait_until(lambda: data.events(WATCHDOG, "source_moved"), what="the list, read again")
        hub.control("release")
        wait_until(data.receipts, what="a receipt")
        wait_until(lambda: data.status(WATCHDOG)["complete"], what="the complete listing")
        receipt = data.receipts()["x.bin"]
        assert (receipt.sha256, receipt.etag) == (sha256(new), f"sha256:{sha256(new)}")
        assert landed(data) == {"x.bin": new}
    finally:
        assert daemon.stop() == 0


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
    ended = data.once(WATCHDOG)
    assert ended.returncode == 69 and pinned[:12] in ended.stderr

    data = from_hub(tmp_path, hub, repo, {"follow": "new_commits"})
    assert data.once(WATCHDOG).returncode == 0
    assert landed(data) == {**files, "3.parquet": noise(SIZE, 33)}


def test_a_stop_before_everything_is_here_is_no_success(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.put("slow.bin", noise(SIZE, 1), repo="urls")
    data = from_urls(tmp_path, [hub.url("slow.bin")])
    hub.fault("stall", on="url", path="slow.bin", after=CUT)
    daemon = start_daemon(daemon_command(WATCHDOG, data.file, "--once"), tmp_path / "once.err")
    wait_until(lambda: hub.served("slow.bin") == CUT, what="its first bytes")
    assert daemon.stop() == 75
    assert "start it again" in daemon.said()
    assert data.once(WATCHDOG).returncode == 0
    assert hub.served("slow.bin") < SIZE + CUT, "it continues; what was under way at the stop comes twice"


def test_the_landing_of_another_pipeline_is_not_touched(hub: LoopbackHub, tmp_path: Path) -> None:
    for name, number in (("one", 1), ("two", 2)):
        put(hub, f"org/{name}", {"a.parquet": noise(50_000, number)})
    one = from_hub(tmp_path / "one", hub, "org/one")
    two = from_hub(tmp_path / "two", hub, "org/two", hot=str(one.pipeline.hot))
    assert one.once(WATCHDOG).returncode == 0
    ended = two.once(WATCHDOG)
    assert ended.returncode == 69
    assert f"is another's: pipeline data (state {one.pipeline.state})" in ended.stderr
    assert landed(one) == {"a.parquet": noise(50_000, 1)} and not two.receipts()
    assert one.once(WATCHDOG).returncode == 0

    (one.pipeline.source_root / LANDING_LOCK).unlink()
    assert two.once(WATCHDOG).returncode == 0


def test_addresses_that_are_signed_anew_bring_nothing_again(hub: LoopbackHub, tmp_path: Path) -> None:
    names = [f"signed{number}.bin" for number in range(3)]
    for number, name in enumerate(names):
        hub.put(name, noise(50_000, number), repo="urls")
    data = from_urls(tmp_path, [f"{hub.url(name)}?Expires=1&Signature=a" for name in names])
    assert data.once(WATCHDOG).returncode == 0
    set_receipt(data, names[0], "releasing")
    write_list(data, [f"{hub.url(name)}?Expires=2&Signature=b" for name in names])
    assert data.once(WATCHDOG).returncode == 0
    assert set(receipt_states(data).values()) == {"verified", "released"}
    assert hub.served("signed") == 150_000


def test_what_ended_a_run_stays_in_the_status_with_how_far_it_came(hub: LoopbackHub, tmp_path: Path) -> None:
    repo = "org/revoked"
    put(hub, repo, {f"{number}.parquet": noise(50_000, number) for number in range(3)})
    data = from_hub(tmp_path, hub, repo, download__files_at_once=1)
    hub.fault("status", on="resolve", path=repo, code=401, times=-1, skip=1)
    assert data.once(WATCHDOG).returncode == 69
    status = data.status(WATCHDOG)
    assert status["files"]["verified"] == 1 and status["files"]["waiting"] == 2
    assert f"{hub.endpoint}/datasets/{repo}" in status["trouble"] and status["text"] == status["trouble"]
    hub.fault("status", on="api", path=repo, code=404, times=-1)
    assert data.once(WATCHDOG).returncode == 69
    assert "cannot be listed" in data.status(WATCHDOG)["trouble"]


def test_a_list_that_is_half_written_drops_nothing(hub: LoopbackHub, tmp_path: Path) -> None:
    contents = {f"half{number}.bin": noise(SIZE, number) for number in range(2)}
    for name, content in contents.items():
        hub.put(name, content, repo="urls")
    lines = [f"{hub.url(name)} {sha256(content)}" for name, content in contents.items()]
    data = from_urls(tmp_path, lines, stage={"settle": "3s", "free_floor": "1MiB"})
    hub.fault("stall", on="url", path="half1.bin", after=CUT)
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: receipt_states(data) == {"half0.bin": "verified"}, what="the first file")
        write_list(data, lines[:1])
        written = time.monotonic()
        wait_until(lambda: time.monotonic() > written + 2.2, what="two looks at what is there")
        write_list(data, lines)
        hub.control("release")
        wait_until(lambda: data.status(WATCHDOG)["complete"], what="the complete listing")
    finally:
        assert daemon.stop() == 0
    assert landed(data) == contents and hub.served("half") == 2 * SIZE
    assert not data.events(WATCHDOG, "source_moved")


def test_what_was_given_up_is_tried_again_at_once_when_it_is_listed_anew(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    content = noise(50_000, 3)
    hub.put("good.bin", content, repo="urls")
    good = f"{hub.url('good.bin')} {sha256(content)}"
    data = from_urls(tmp_path, [good, f"{hub.url('late.bin')} {sha256(content)}"])
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: data.events(WATCHDOG, "download_given_up"), what="the missing file's end")
        hub.put("late.bin", content, repo="urls")
        write_list(data, ["# it is there now", good, f"{hub.url('late.bin')} {sha256(content)}"])
        wait_until(lambda: len(landed(data)) == 2, what="the file that was missing")
        wait_until(lambda: data.receipts()["late.bin"].state == "verified", what="its receipt")
    finally:
        assert daemon.stop() == 0
