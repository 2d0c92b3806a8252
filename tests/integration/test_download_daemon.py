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
from support.pipelines import DataPipeline, Template
from support.processes import RunningDaemon
from support.waiting import wait_until
from support.watchdogs import (
    WATCHDOG,
    from_hub,
    landed,
    pretend_built,
    put,
    receipt_states,
    set_receipt,
)

SIZE = 3_000_000
CUT, LAST = 1_200_000, 2_800_000


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


def test_a_slice_of_a_hubs_parquet_becomes_shard_sets_and_leaves_the_landing(
    hub: LoopbackHub, drained: Template, tmp_path: Path
) -> None:
    repo = "org/whole"
    folder = hub.root / "dataset" / repo
    for number in range(6):
        write_fineweb(folder / f"data/{number:03d}.parquet", 150, seed=number)
    put(hub, repo, {"README.md": b"no data", "data/old.parquet": b"left out"})
    data = from_hub(
        tmp_path,
        hub,
        repo,
        {"exclude": ["old*"]},
        dataset__limit={"rows": 200},
        tokenizer=drained.tokenizer,
        stage={"settle": "0s", "free_floor": "1MiB", "queue_files": 1},
        download__files_at_once=1,
    )
    hub.control("set", page=2)
    slice_ = dict.fromkeys(("data/000.parquet", "data/001.parquet"), "released")
    daemons = [data.start(WATCHDOG), data.start("stage_shard")]
    try:
        wait_until(lambda: slice_.items() <= receipt_states(data).items(), what="an empty landing")
        wait_until(lambda: data.pin().complete, what="the end of the slice")
    finally:
        hub.control("set", page=1000)
        assert [daemon.stop() for daemon in daemons] == [0, 0]
    assert data.pin().complete and set(data.pin().listing) == slice_.keys()
    listing = read_listing(data.pipeline.layout, "prose")
    assert listing is not None and listing.revision == hub.control("head", repo=f"dataset/{repo}")
    assert slice_.items() <= data.states().items()
    assert len(data.sets()) >= 2 and len(data.receipts()) <= 4, "only a stretch was fetched"
    # What came before the loop knew that it needs no more stays for a larger limit.
    assert not landed(data).keys() & slice_.keys() and len(landed(data)) <= 2
    assert hub.served(repo) == sum((folder / path).stat().st_size for path in data.receipts())


# What goes wrong on the way


def test_kills_of_daemon_and_worker_cost_no_durable_byte_and_a_landing_that_goes_away_is_waited_for(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    repo, files = "org/kill", {f"{i}.parquet": noise(SIZE if i else 1000, i) for i in range(3)}
    put(hub, repo, files)
    data = from_hub(tmp_path, hub, repo)
    for after in (CUT, 2 * CUT, LAST):
        for number in (1, 2):
            hub.fault("stall", path=f"{repo}/{number}.parquet", after=after)
    root, away = data.pipeline.source_root, tmp_path / "away"
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: set(under_way(data).values()) == {CUT}, what="durable bytes of both")
        (claim,) = read_claims(data.pipeline.layout, WATCHDOG)
        assert (claim.purpose, claim.device) == ("landing", root.stat().st_dev)
        assert 0 < claim.bytes <= 1000 + 2 * SIZE
        daemon.kill()
        daemon = data.start(WATCHDOG)
        wait_until(lambda: set(under_way(data).values()) == {2 * CUT}, what="more of both")
        signal_process(fetch_worker(daemon), signal.SIGKILL)
        wait_until(lambda: set(under_way(data).values()) == {LAST}, what="most of both")
        assert hub.served(repo) == 1000 + 2 * LAST
        root.rename(away)
        hub.control("release")
        wait_until(lambda: data.events(WATCHDOG, "landing_unavailable"), what="the word")
        wait_until(lambda: "mount" in data.status(WATCHDOG).get("trouble", ""), what="the trouble")
        assert not root.exists()
        away.rename(root)
        wait_until(lambda: is_complete(data), what="the complete listing")
        wait_until(lambda: not data.status(WATCHDOG)["trouble"], what="the end of the trouble")
        wait_until(lambda: not read_claims(data.pipeline.layout, WATCHDOG), what="the end of the claim")
    finally:
        assert daemon.stop() == 0
    assert landed(data) == files
    assert [event["reason"] for event in data.events(WATCHDOG, "fetcher_died")] == ["killed by SIGKILL"]


def test_wrong_bytes_are_fetched_again_and_what_never_comes_right_is_given_up_until_asked_for_or_once(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    """And a worker that stands still is replaced."""
    repo, files = "org/wrong", {f"{i}.parquet": noise(100_000, i) for i in range(4)}
    files["slow.parquet"] = noise(SIZE, 1)
    put(hub, repo, files)
    how = {"attempts": 2, "stall": "6s", "files_at_once": 2}  # slow after 2 s below 20 KiB a second
    data = from_hub(tmp_path, hub, repo, download=how)
    hub.fault("trickle", path=f"{repo}/slow.parquet", after=CUT, seconds=0.05, times=2)
    hub.fault("wrong", path=f"{repo}/1.parquet", after=5000)
    hub.fault("wrong", path=f"{repo}/2.parquet", after=5000, times=2)
    hub.fault("status", on="resolve", path="3.parquet", code=404, times=-1)
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: len(data.receipts()) == 4, what="an end of each small file")
        wait_until(lambda: under_way(data).get("slow.parquet", 0) >= CUT, what="durable bytes")
        os.kill(fetch_worker(daemon).pid, signal.SIGSTOP)
        wait_until(lambda: is_complete(data), what="the complete listing")
        assert data.events(WATCHDOG, "fetcher_stalled")
        assert hub.served(f"{repo}/slow.parquet") < SIZE + CUT / 2
        states = {path: "given_up" if path in ("2.parquet", "3.parquet") else "verified" for path in files}
        assert receipt_states(data) == states
        assert landed(data) == {path: files[path] for path in ("0.parquet", "1.parquet", "slow.parquet")}
        told = [(event["path"], event["count"]) for event in data.events(WATCHDOG, "download_mismatch")]
        assert sorted(told) == [("1.parquet", 1), ("2.parquet", 1), ("2.parquet", 2)]
        reasons = [event["kind"] for event in data.events(WATCHDOG, "download_given_up")]
        assert sorted(reasons) == ["mismatch", "missing"]
        assert len(list((data.pipeline.source_root / EVIDENCE).iterdir())) == 3
        wait_until(lambda: data.status(WATCHDOG)["files"].get("given_up") == 2, what="the status")
        wish = {"path": "2.parquet", "sha256": None}
        asked = file_request(data.pipeline.layout, DOWNLOAD_WATCHDOG, "fetch", wish)
        wait_until(lambda: receipt_states(data)["2.parquet"] == "verified", what="the file")
        assert read_outcome(data.pipeline.layout, asked) == {"receipt": "given_up"}
    finally:
        assert daemon.stop() == 0
    ended = data.once(WATCHDOG)
    assert ended.returncode == 1 and "1 given up: 3.parquet" in ended.stderr
    assert len(hub.requests("3.parquet")) == 2, "it was tried again"
    assert landed(data) == {path: content for path, content in files.items() if path != "3.parquet"}


def test_a_token_opens_a_gated_repository_whose_page_is_told_and_a_failing_list_is_asked_again(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    repo, files = "org/gated", {f"{i}.parquet": noise(1000, i) for i in range(5)}
    put(hub, repo, files)
    hub.control("set", gated={f"dataset/{repo}": "secret-token"}, page=2)
    (tmp_path / "token").write_text("secret-token\n")
    data = from_hub(tmp_path, hub, repo, {"token_file": str(tmp_path / "token")})
    hub.fault("status", on="api", path="tree", code=500)
    hub.fault("status", on="api", path="tree", code=429, retry_after="1", skip=1)
    ended = data.once(WATCHDOG)
    hub.control("set", page=1000)
    assert ended.returncode == 0, ended.stderr
    assert landed(data) == files and is_complete(data)
    assert {each["authorization"] for each in hub.requests("/cdn/") if repo in each["path"]} == {None}
    assert "secret-token" not in ended.stderr

    # The next start knows nothing of it before its first look, and says so.
    hub.fault("slow_head", on="api", path=repo)
    (tmp_path / "token").unlink()
    data = from_hub(tmp_path, hub, repo)
    daemon = data.start(WATCHDOG)
    try:
        status = wait_until(lambda: "looked" in data.status(WATCHDOG) and data.status(WATCHDOG))
        assert status["text"].startswith("looking at the source") and not status["looked"]
        counts = {one: value for one, value in data.metrics(WATCHDOG).items() if "_files" in one[0]}
        assert counts and all(map(math.isnan, counts.values()))
        lines = "\n".join(report_lines(Facts("data", "FILE", read_status(data.pipeline.layout))))
        assert "files              looking at the source; 4.9 KiB verified\n" in lines + "\n"
        wait_until(lambda: any("slow_head" in kind for kind in hub.control("struck")), what="its first look")
        hub.control("release")
        trouble = wait_until(lambda: data.status(WATCHDOG).get("trouble"), what="the trouble")
        assert f"visit {hub.endpoint}/datasets/{repo}" in trouble
        assert data.events(WATCHDOG, "source_unavailable")[-1]["kind"] == "gated"
    finally:
        assert daemon.stop() == 0


# What changes


def test_what_is_here_is_checked_released_and_brought_back_and_a_commit_is_for_who_follows(  # noqa: PLR0915
    hub: LoopbackHub, tmp_path: Path
) -> None:
    repo, files = "org/moves", {f"d/{i}.parquet": noise(50_000, i) for i in range(7)}
    put(hub, repo, files)
    data = from_hub(tmp_path, hub, repo)
    layout, root = data.pipeline.layout, data.pipeline.source_root
    (root / "d").mkdir(parents=True)
    for number in (0, 1):
        (root / f"d/{number}.parquet").write_bytes(files[f"d/{number}.parquet"])
    (root / "d/2.parquet.incomplete").write_bytes(b"half")
    assert data.once(WATCHDOG).returncode == 0
    assert hub.served(repo) == 5 * 50_000
    how = {event["path"]: event["how"] for event in data.events(WATCHDOG, "file_verified")}
    assert how == {path: "kept" if path in ("d/0.parquet", "d/1.parquet") else "fetched" for path in files}
    assert (root / "d/2.parquet.incomplete").read_bytes() == b"half"
    assert [event["first"] for event in data.events(WATCHDOG, "foreign_files")] == ["d/2.parquet.incomplete"]
    assert data.status(WATCHDOG)["foreign_files"] == 1

    # Disputed, asked back, and released as a kill between the intent and the unlink leaves it.
    first, sums = (
        hub.control("head", repo=f"dataset/{repo}"),
        {p: r.sha256 for p, r in data.receipts().items()},
    )
    (root / "d/0.parquet").write_bytes(files["d/0.parquet"][:-1] + b"?")
    set_receipt(data, "d/2.parquet", "releasing")
    for path in ("d/0.parquet", "d/1.parquet"):
        file_request(layout, DOWNLOAD_WATCHDOG, "dispute", {"path": path, "sha256": sums[path]})
    put(hub, repo, {"d/5.parquet": noise(60_000, 11), "d/7.parquet": noise(50_000, 7)})
    (hub.root / "dataset" / repo / "d/6.parquet").unlink()
    pretend_built(data, "d/3.parquet")
    pretend_built(data, "d/4.parquet", "staged")
    unneeded = {path: Unneeded(sums[path], path) for path in ("d/3.parquet", "d/4.parquet")}
    write_demand(layout, "prose", Demand(unneeded, {}))
    daemon = data.start(WATCHDOG)
    try:
        wait_until(lambda: receipt_states(data)["d/2.parquet"] == "released", what="the end of a release")
        asked = {"path": "d/2.parquet", "sha256": sums["d/2.parquet"]}
        file_request(layout, DOWNLOAD_WATCHDOG, "fetch", asked)
        wait_until(lambda: len(data.events(WATCHDOG, "file_reverified")) == 3, what="the files in doubt")
        wait_until(lambda: receipt_states(data)["d/3.parquet"] == "released", what="the removal")
        again = {event["path"]: event["how"] for event in data.events(WATCHDOG, "file_reverified")}
        assert again == {"d/0.parquet": "fetched", "d/1.parquet": "kept", "d/2.parquet": "fetched"}
        (evidence,) = (root / EVIDENCE).glob("*/content")
        assert evidence.read_bytes()[-1:] == b"?"
        here = {path: content for path, content in files.items() if path != "d/3.parquet"}
        assert landed(data) == {**here, "d/2.parquet.incomplete": b"half"}

        missed = {"d/3.parquet": sums["d/3.parquet"], "other.parquet": sums["d/0.parquet"]}
        write_demand(layout, "prose", Demand({"d/4.parquet": unneeded["d/4.parquet"]}, missed))
        wait_until(lambda: receipt_states(data)["d/3.parquet"] == "verified", what="the file's coming back")
        wait_until(lambda: data.events(WATCHDOG, "landing_fetch_refused"), what="the refusal")
        wait_until(lambda: is_complete(data), what="the complete listing")
    finally:
        assert daemon.stop() == 0
    assert landed(data) == {**files, "d/2.parquet.incomplete": b"half"} and is_complete(data)
    assert hub.served(repo) == 8 * 50_000 and not data.events(WATCHDOG, "source_moved")
    (release,) = data.events(WATCHDOG, "landing_release_refused")
    assert release["path"] == "d/4.parquet" and "is staged" in release["reason"]
    (fetch,) = data.events(WATCHDOG, "landing_fetch_refused")
    assert fetch["path"] == "other.parquet" and "does not list" in fetch["reason"]

    data = from_hub(tmp_path, hub, repo, {"follow": "new_commits"})
    write_demand(layout, "prose", Demand({}, {}))
    assert data.once(WATCHDOG).returncode == 0
    (moved,) = data.events(WATCHDOG, "source_moved")
    assert (moved["before"], moved["revision"]) == (first, hub.control("head", repo=f"dataset/{repo}"))
    new = {"d/5.parquet": noise(60_000, 11), "d/7.parquet": noise(50_000, 7)}
    assert landed(data) == {**files, **new, "d/2.parquet.incomplete": b"half"}
    assert [event["path"] for event in data.events(WATCHDOG, "source_vanished")] == ["d/6.parquet"]
    assert sorted(data.listed()) == sorted({*files, *new} - {"d/6.parquet"})
    assert hub.served(repo) == 8 * 50_000 + 110_000
    assert len(list((root / EVIDENCE).iterdir())) == 1, "the old content was no damage"


def test_a_full_disk_pauses_and_room_ends_the_pause(tmp_path: Path) -> None:
    command = apart([sys.executable, "-m", "support.full_download", str(tmp_path)])
    if command is None:
        pytest.skip(WHY_NOT)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
