"""The download watchdog on a hub and on lists of URLs: every byte true, whatever goes wrong in between."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli.pipeline.status import report_lines
from stoker.corpus.fetch.landing import EVIDENCE
from stoker.corpus.records.receipts import Demand, Unneeded, read_listing, write_demand
from stoker.kit.process import ProcessId, children_tree, signal_process
from stoker.observe.ledger import read_claims
from stoker.observe.status import read_status
from stoker.observe.verdict import Facts
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stoker.store.requests import file_request, read_outcome
from support.fetch_fixtures import hub_fixture, served_hub_fixture  # noqa: F401 - found by their names
from support.loopback_hub import LoopbackHub, noise
from support.mounts import WHY_NOT, apart
from support.parquet import write_fineweb
from support.pipelines import DataPipeline
from support.processes import RunningDaemon
from support.waiting import wait_until
from support.watchdogs import (
    WATCHDOG,
    from_hub,
    from_urls,
    landed,
    pretend_built,
    put,
    receipt_states,
    set_receipt,
    sha256,
)

SIZE = 3_000_000
CUT = 1_200_000


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "CREDENTIALS_DIRECTORY", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")


def fetch_worker(daemon: RunningDaemon) -> ProcessId:
    """The daemon's fetch worker."""

    def found() -> list[ProcessId]:
        return [each for each in children_tree(daemon.pid) if b"fetch_worker" in _command(each.pid)]

    return wait_until(found, what="a fetch worker")[0]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def under_way(data: DataPipeline) -> dict[str, int]:
    """Durable bytes by path, as the status says."""
    return {each["path"]: each["bytes"] for each in data.status(WATCHDOG).get("transfers", [])}


def is_complete(data: DataPipeline) -> bool:
    listing = read_listing(data.pipeline.layout, "prose")
    return listing is not None and listing.complete


# The whole way


def test_a_hubs_parquet_becomes_shard_sets_and_leaves_the_landing(hub: LoopbackHub, tmp_path: Path) -> None:
    repo = "org/whole"
    folder = hub.root / "dataset" / repo
    for number in range(3):
        write_fineweb(folder / f"data/{number:03d}.parquet", 150, seed=number)
    put(hub, repo, {"README.md": b"no data", "data/old.parquet": b"left out"})
    data = from_hub(tmp_path, hub, repo, {"exclude": ["old*"]})
    hub.control("set", page=2)
    ended = data.once(WATCHDOG)
    hub.control("set", page=1000)
    assert ended.returncode == 0, ended.stderr
    listing = read_listing(data.pipeline.layout, "prose")
    assert listing is not None and listing.complete
    assert listing.paths == tuple(f"data/{number:03d}.parquet" for number in range(3))
    assert listing.revision == hub.control("head", repo=f"dataset/{repo}")
    assert landed(data) == {path: (folder / path).read_bytes() for path in listing.paths}
    assert hub.served(repo) == sum(size for _, size in listing.files)

    assert data.once("stage_shard").returncode == 0
    assert set(data.states().values()) == {"released"}
    assert len(data.sets()) == 3
    assert data.once(WATCHDOG).returncode == 0
    assert set(receipt_states(data).values()) == {"released"}
    assert landed(data) == {}
    assert is_complete(data)
    assert data.once(WATCHDOG).returncode == 0  # what was released is not fetched again
    assert hub.served(repo) == sum(size for _, size in listing.files)


# What goes wrong on the way


def test_kills_of_daemon_and_worker_cost_no_durable_byte(hub: LoopbackHub, tmp_path: Path) -> None:
    repo, files = "org/kill", {f"{i}.parquet": noise(SIZE, i) for i in range(2)}
    put(hub, repo, files)
    data = from_hub(tmp_path, hub, repo)
    hub.fault("stall", path=repo, after=CUT, times=2)
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: set(under_way(data).values()) == {CUT}, what="durable bytes of both")
        (claim,) = read_claims(data.pipeline.layout, WATCHDOG)
        assert (claim.purpose, claim.device) == ("landing", data.pipeline.source_root.stat().st_dev)
        assert 0 < claim.bytes <= 2 * SIZE
        daemon.kill()
        hub.fault("stall", path=repo, after=2 * CUT, times=2)
        daemon = data.start(WATCHDOG)
        wait_until(lambda: set(under_way(data).values()) == {2 * CUT}, what="more of both")
        signal_process(fetch_worker(daemon), signal.SIGKILL)
        wait_until(lambda: is_complete(data), what="the complete listing")
        wait_until(lambda: not read_claims(data.pipeline.layout, WATCHDOG), what="the end of the claim")
    finally:
        daemon.stop()
    assert landed(data) == files
    assert hub.served(repo) == 2 * SIZE
    assert [event["reason"] for event in data.events(WATCHDOG, "fetcher_died")] == ["killed by SIGKILL"]


def test_a_worker_that_stands_still_is_replaced(hub: LoopbackHub, tmp_path: Path) -> None:
    repo = "org/hang"
    put(hub, repo, {"a.parquet": noise(SIZE, 1)})
    data = from_hub(tmp_path, hub, repo, download__stall="6s")  # slow after 2 s below 20 KiB a second
    hub.fault("trickle", path=repo, after=CUT, seconds=0.05, times=2)
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: under_way(data).get("a.parquet", 0) >= CUT, what="durable bytes")
        os.kill(fetch_worker(daemon).pid, signal.SIGSTOP)
        wait_until(lambda: is_complete(data), what="the complete listing")
    finally:
        assert daemon.stop() == 0
    assert data.events(WATCHDOG, "fetcher_stalled")
    assert landed(data) == {"a.parquet": noise(SIZE, 1)}
    assert hub.served(repo) < SIZE + CUT / 2


def test_wrong_bytes_are_kept_and_fetched_again_and_a_file_that_never_comes_right_is_given_up(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    repo, files = "org/wrong", {f"{i}.parquet": noise(100_000, i) for i in range(4)}
    put(hub, repo, files)
    data = from_hub(tmp_path, hub, repo, download__attempts=2)
    hub.fault("wrong", path=f"{repo}/1.parquet", after=5000)
    hub.fault("wrong", path=f"{repo}/2.parquet", after=5000, times=-1)
    hub.fault("status", on="resolve", path="3.parquet", code=404, times=-1)
    ended = data.once(WATCHDOG)
    assert ended.returncode == 1
    assert "2 given up: 2.parquet, 3.parquet" in ended.stderr
    assert receipt_states(data) == {
        "0.parquet": "verified",
        "1.parquet": "verified",
        "2.parquet": "given_up",
        "3.parquet": "given_up",
    }
    assert landed(data) == {path: files[path] for path in ("0.parquet", "1.parquet")}
    assert is_complete(data)
    told = [(event["path"], event["count"]) for event in data.events(WATCHDOG, "download_mismatch")]
    assert sorted(told) == [("1.parquet", 1), ("2.parquet", 1), ("2.parquet", 2)]
    reasons = [event["kind"] for event in data.events(WATCHDOG, "download_given_up")]
    assert sorted(reasons) == ["mismatch", "missing"]
    assert len(list((data.pipeline.source_root / EVIDENCE).iterdir())) == 3

    hub.control("clear")
    assert data.once(WATCHDOG).returncode == 0
    assert landed(data) == files
    assert set(receipt_states(data).values()) == {"verified"}


def test_a_given_up_file_is_fetched_again_when_somebody_asks(hub: LoopbackHub, tmp_path: Path) -> None:
    repo = "org/again"
    put(hub, repo, {f"{i}.parquet": noise(50_000, i) for i in range(2)})
    data = from_hub(tmp_path, hub, repo)
    hub.fault("status", on="resolve", path=f"{repo}/resolve", code=404)
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: is_complete(data), what="the complete listing")
        (path,) = (path for path, state in receipt_states(data).items() if state == "given_up")
        wait_until(lambda: data.status(WATCHDOG)["files"].get("given_up") == 1, what="the status")
        asked = file_request(data.pipeline.layout, DOWNLOAD_WATCHDOG, "fetch", {"path": path, "sha256": None})
        wait_until(lambda: set(receipt_states(data).values()) == {"verified"}, what="the file")
        assert read_outcome(data.pipeline.layout, asked) == {"receipt": "given_up"}
    finally:
        assert daemon.stop() == 0


def test_a_gated_repository_is_told_with_its_page_and_opens_with_a_token(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    repo = "org/gated"
    put(hub, repo, {"a.parquet": noise(50_000, 1)})
    hub.control("set", gated={f"dataset/{repo}": "secret-token"})
    data = from_hub(tmp_path, hub, repo)
    ended = data.once(WATCHDOG)
    assert ended.returncode == 69
    assert f"visit {hub.endpoint}/datasets/{repo}" in ended.stderr
    assert not data.receipts() and not is_complete(data)

    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: data.status(WATCHDOG).get("trouble"), what="the trouble")
        assert f"visit {hub.endpoint}/datasets/{repo}" in data.status(WATCHDOG)["trouble"]
        assert data.events(WATCHDOG, "source_unavailable")[-1]["kind"] == "gated"
    finally:
        assert daemon.stop() == 0
    (tmp_path / "token").write_text("secret-token\n")
    data = from_hub(tmp_path, hub, repo, {"token_file": str(tmp_path / "token")})
    ended = data.once(WATCHDOG)
    assert ended.returncode == 0, ended.stderr
    assert is_complete(data)
    assert {each["authorization"] for each in hub.requests("/cdn/") if repo in each["path"]} == {None}
    assert "secret-token" not in ended.stderr


def test_a_file_refused_by_the_hub_stops_the_source_and_not_the_files(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    repo = "org/closed"
    put(hub, repo, {f"{i}.parquet": noise(50_000, i) for i in range(3)})
    data = from_hub(tmp_path, hub, repo)
    hub.fault("status", on="resolve", path=f"{repo}/resolve", code=403, times=-1)
    ended = data.once(WATCHDOG)
    assert ended.returncode == 69
    assert f"visit {hub.endpoint}/datasets/{repo}" in ended.stderr
    assert not data.receipts() and not is_complete(data)


def test_a_failing_listing_is_asked_for_again(hub: LoopbackHub, tmp_path: Path) -> None:
    repo = "org/listing"
    put(hub, repo, {f"{i}.parquet": noise(1000, i) for i in range(5)})
    hub.fault("status", on="api", path="tree", code=500)
    hub.fault("status", on="api", path="tree", code=429, retry_after="1", skip=1)
    data = from_hub(tmp_path, hub, repo)
    hub.control("set", page=2)
    ended = data.once(WATCHDOG)
    hub.control("set", page=1000)
    assert ended.returncode == 0, ended.stderr
    assert len(data.listed()) == 5 and is_complete(data)

    # The next start knows nothing of it before its first look, and says so.
    hub.fault("slow_head", on="api", path=repo)
    daemon = data.start(WATCHDOG)
    try:
        status = wait_until(lambda: "looked" in data.status(WATCHDOG) and data.status(WATCHDOG))
        assert status["text"].startswith("looking at the source") and not status["looked"]
        files = {one: value for one, value in data.metrics(WATCHDOG).items() if "_files" in one[0]}
        assert files and all(map(math.isnan, files.values()))
        lines = "\n".join(report_lines(Facts("data", "FILE", read_status(data.pipeline.layout))))
        assert "files              looking at the source; 4.9 KiB verified\n" in lines + "\n"
    finally:
        daemon.stop()


# What changes


def test_only_who_follows_sees_a_new_commit(hub: LoopbackHub, tmp_path: Path) -> None:
    repo, files = "org/moves", {f"{i}.parquet": noise(50_000, i) for i in range(3)}
    put(hub, repo, files)
    data = from_hub(tmp_path, hub, repo)
    assert data.once(WATCHDOG).returncode == 0
    first = hub.control("head", repo=f"dataset/{repo}")
    put(hub, repo, {"1.parquet": noise(60_000, 11), "3.parquet": noise(50_000, 3)})
    (hub.root / "dataset" / repo / "2.parquet").unlink()
    served = hub.served(repo)
    assert data.once(WATCHDOG).returncode == 0
    assert (hub.served(repo), landed(data)) == (served, files)

    data = from_hub(tmp_path, hub, repo, {"follow": "new_commits"})
    assert data.once(WATCHDOG).returncode == 0
    (moved,) = data.events(WATCHDOG, "source_moved")
    assert (moved["before"], moved["revision"]) == (first, hub.control("head", repo=f"dataset/{repo}"))
    assert landed(data) == {
        "0.parquet": files["0.parquet"],
        "1.parquet": noise(60_000, 11),
        "2.parquet": files["2.parquet"],
        "3.parquet": noise(50_000, 3),
    }
    assert [event["path"] for event in data.events(WATCHDOG, "source_vanished")] == ["2.parquet"]
    assert sorted(data.listed()) == ["0.parquet", "1.parquet", "3.parquet"]
    assert hub.served(repo) == served + 110_000
    assert not (data.pipeline.source_root / EVIDENCE).exists()  # the old content was no damage


def test_a_release_is_an_intent_that_is_finished_and_what_is_asked_for_comes_again(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    repo, files = "org/release", {f"{i}.parquet": noise(50_000, i) for i in range(3)}
    put(hub, repo, files)
    data = from_hub(tmp_path, hub, repo)
    assert data.once(WATCHDOG).returncode == 0
    layout, receipts = data.pipeline.layout, data.receipts()
    pretend_built(data, "0.parquet")
    pretend_built(data, "1.parquet", "staged")
    unneeded = {path: Unneeded(receipts[path].sha256, path) for path in ("0.parquet", "1.parquet")}
    write_demand(layout, "prose", Demand(unneeded, {}))
    # As a kill between the intent and the unlink leaves it.
    set_receipt(data, "2.parquet", "releasing")
    assert data.once(WATCHDOG).returncode == 0
    assert receipt_states(data) == {
        "0.parquet": "released",
        "1.parquet": "verified",
        "2.parquet": "released",
    }
    assert landed(data) == {"1.parquet": files["1.parquet"]}
    assert is_complete(data)

    served = hub.served(repo)
    write_demand(layout, "prose", Demand({}, {}))
    asked = {"path": "0.parquet", "sha256": receipts["0.parquet"].sha256}
    file_request(layout, DOWNLOAD_WATCHDOG, "fetch", asked)
    assert data.once(WATCHDOG).returncode == 0
    assert receipt_states(data)["0.parquet"] == "verified"
    assert landed(data) == {path: files[path] for path in ("0.parquet", "1.parquet")}
    assert hub.served(repo) == served + 50_000


def test_the_landing_follows_the_loops_demand_and_each_refusal_is_told_once(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    repo, files = "org/demand", {f"{i}.parquet": noise(50_000, i) for i in range(3)}
    put(hub, repo, files)
    data = from_hub(tmp_path, hub, repo)
    layout = data.pipeline.layout
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: is_complete(data), what="the complete listing")
        pretend_built(data, "0.parquet")
        pretend_built(data, "1.parquet", "staged")
        sums = {path: receipt.sha256 for path, receipt in data.receipts().items()}
        unneeded = {path: Unneeded(sums[path], path) for path in ("0.parquet", "1.parquet")}
        write_demand(layout, "prose", Demand(unneeded, {}))
        wait_until(lambda: receipt_states(data)["0.parquet"] == "released", what="the removal")
        assert landed(data).keys() == {"1.parquet", "2.parquet"}

        missed = {"0.parquet": sums["0.parquet"], "other.parquet": sums["0.parquet"]}
        write_demand(layout, "prose", Demand({"1.parquet": unneeded["1.parquet"]}, missed))
        wait_until(lambda: data.events(WATCHDOG, "file_reverified"), what="the file's coming back")
        wait_until(lambda: data.events(WATCHDOG, "landing_fetch_refused"), what="the refusal")
    finally:
        assert daemon.stop() == 0
    assert landed(data) == files and set(receipt_states(data).values()) == {"verified"}
    (release,) = data.events(WATCHDOG, "landing_release_refused")
    assert release["path"] == "1.parquet" and "is staged" in release["reason"]
    (fetch,) = data.events(WATCHDOG, "landing_fetch_refused")
    assert fetch["path"] == "other.parquet" and "does not list" in fetch["reason"]


def test_a_disputed_file_is_hashed_and_only_a_wrong_one_fetched_again(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    repo, files = "org/dispute", {f"{i}.parquet": noise(50_000, i) for i in range(2)}
    put(hub, repo, files)
    data = from_hub(tmp_path, hub, repo)
    assert data.once(WATCHDOG).returncode == 0
    bad = data.pipeline.source_root / "0.parquet"
    bad.write_bytes(files["0.parquet"][:-1] + b"?")
    served = hub.served(repo)
    for path, receipt in data.receipts().items():
        args = {"path": path, "sha256": receipt.sha256}
        file_request(data.pipeline.layout, DOWNLOAD_WATCHDOG, "dispute", args)
    assert data.once(WATCHDOG).returncode == 0
    assert set(receipt_states(data).values()) == {"verified"}
    assert landed(data) == files
    assert hub.served(repo) == served + 50_000
    again = {event["path"]: event["how"] for event in data.events(WATCHDOG, "file_reverified")}
    assert again == {"0.parquet": "fetched", "1.parquet": "kept"}
    (evidence,) = (data.pipeline.source_root / EVIDENCE).glob("*/content")
    assert evidence.read_bytes()[-1:] == b"?"


# What lies there, and where there is nothing


def test_what_others_fetched_is_hashed_and_their_partial_files_are_left_alone(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    repo, files = "org/adopt", {f"d/{i}.parquet": noise(50_000, i) for i in range(3)}
    put(hub, repo, files)
    data = from_hub(tmp_path, hub, repo)
    root = data.pipeline.source_root
    (root / "d").mkdir(parents=True)
    for path in ("d/0.parquet", "d/1.parquet"):
        (root / path).write_bytes(files[path])
    (root / "d/2.parquet.incomplete").write_bytes(b"half")
    assert data.once(WATCHDOG).returncode == 0
    assert hub.served(repo) == 50_000
    how = {event["path"]: event["how"] for event in data.events(WATCHDOG, "file_verified")}
    assert how == {"d/0.parquet": "kept", "d/1.parquet": "kept", "d/2.parquet": "fetched"}
    assert (root / "d/2.parquet.incomplete").read_bytes() == b"half"
    assert [event["first"] for event in data.events(WATCHDOG, "foreign_files")] == ["d/2.parquet.incomplete"]
    assert data.status(WATCHDOG)["foreign_files"] == 1


def test_a_landing_that_goes_away_is_waited_for(hub: LoopbackHub, tmp_path: Path) -> None:
    repo, files = "org/gone", {f"{i}.parquet": noise(SIZE, i) for i in range(2)}
    put(hub, repo, files)
    data = from_hub(tmp_path, hub, repo, download__files_at_once=1)
    hub.fault("stall", path=f"{repo}/1.parquet", after=CUT, seconds=3600)
    root, away = data.pipeline.source_root, tmp_path / "away"
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: under_way(data).get("1.parquet") == CUT, what="the second file's first bytes")
        root.rename(away)
        hub.control("release")
        wait_until(lambda: data.events(WATCHDOG, "landing_unavailable"), what="the word")
        wait_until(lambda: "mount" in data.status(WATCHDOG).get("trouble", ""), what="the trouble")
        assert not root.exists()
        away.rename(root)
        wait_until(lambda: is_complete(data), what="the complete listing")
        wait_until(lambda: not data.status(WATCHDOG)["trouble"], what="the end of the trouble")
    finally:
        assert daemon.stop() == 0
    assert landed(data) == files


def test_a_full_disk_pauses_and_room_ends_the_pause(tmp_path: Path) -> None:
    command = apart([sys.executable, "-m", "support.full_download", str(tmp_path)])
    if command is None:
        pytest.skip(WHY_NOT)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


# A list of URLs


def test_a_list_of_urls_is_fetched_and_read_again_when_it_changes(hub: LoopbackHub, tmp_path: Path) -> None:
    files = {f"l{i}.bin": noise(50_000, i) for i in range(3)}
    for name, content in files.items():
        hub.put(name, content, repo="urls")
    lines = [f"{hub.url('l0.bin')} {sha256(files['l0.bin'])}", hub.url("l1.bin")]
    data = from_urls(tmp_path, lines)
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: is_complete(data), what="the complete listing")
        assert landed(data) == {name: files[name] for name in ("l0.bin", "l1.bin")}
        wait_until(lambda: data.listed() == {"l0.bin": 50_000, "l1.bin": 50_000}, what="sizes in the listing")
        (tmp_path / "urls.txt").write_text("no url at all\n")
        wait_until(lambda: "urls.txt:1" in data.status(WATCHDOG)["trouble"], what="the wrong line")
        (tmp_path / "urls.txt").write_text("\n".join([*lines, hub.url("l2.bin")]))
        wait_until(lambda: len(data.receipts()) == 3 and is_complete(data), what="the third file")
        wait_until(lambda: not data.status(WATCHDOG)["trouble"], what="the end of the trouble")
    finally:
        assert daemon.stop() == 0
    assert landed(data) == files
    assert hub.served("l") == 150_000
    (tmp_path / "urls.txt").write_text("no url at all\n")
    ended = data.once(WATCHDOG)
    assert ended.returncode == 78
    assert "urls.txt:1" in ended.stderr
    (tmp_path / "urls.txt").unlink()
    ended = data.once(WATCHDOG)
    assert ended.returncode == 78 and "correct dataset.source.urls_file" in ended.stderr


# A slice


def test_a_slice_of_rows_fetches_only_a_stretch(hub: LoopbackHub, tmp_path: Path) -> None:
    repo = "org/slice"
    for number in range(7):
        write_fineweb(hub.root / "dataset" / repo / f"{number}.parquet", 150, seed=number)
    data = from_hub(
        tmp_path,
        hub,
        repo,
        dataset__limit={"rows": 200},
        stage={"settle": "0s", "free_floor": "1MiB", "queue_files": 1},
        download__files_at_once=1,
    )
    for _ in range(2):
        assert data.once(WATCHDOG).returncode == 0
        assert not is_complete(data) or data.pin().complete
        assert data.once("stage_shard").returncode == 0
    assert data.pin().complete
    assert set(data.pin().listing) == {"0.parquet", "1.parquet"}
    assert data.once(WATCHDOG).returncode == 0
    assert is_complete(data)
    assert len(data.receipts()) <= 4
