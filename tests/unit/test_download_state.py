"""What the download watchdog keeps of its receipts, and what it says of its pauses."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stoker.kit.events
from stoker.corpus.fetch.decide import RemoteRules, parse
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.records.receipts import Receipt, write_receipt
from stoker.kit.daemon import DaemonContext
from stoker.kit.loop import Waiter
from stoker.kit.workers.pool import WorkerPool
from stoker.store.layout import DOWNLOAD_WATCHDOG, StateLayout
from stokerd.download.fetcher import FetchFailures
from stokerd.download.remote import RemoteSource
from stokerd.download.source import Source
from stokerd.download.state import LISTER, State
from support.pipelines import make_pipeline

RECEIPT = Receipt("d", "a", "/l/a", 10, "ab" * 32, "", f"sha256:{'ab' * 32}", "verified")
STALL_S = 300.0


class Heard:
    """Stands in for the events."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def record(self, event: str, **_: Any) -> None:
        self.words.append(event)


class World:
    """The context of a daemon as far as these objects ask it, a state from its receipts, and a clock."""

    def __init__(self, home: Path) -> None:
        self.now = 1000.0
        self.layout = StateLayout(home / "state")
        self.layout.create()
        self.heard: Any = Heard()
        pipeline = SimpleNamespace(
            dataset=SimpleNamespace(name="d"), download=SimpleNamespace(stall=STALL_S), source_root=home
        )
        reserve = SimpleNamespace(spent=False)
        about = {"layout": self.layout, "events": self.heard, "pipeline": pipeline, "reserve": reserve}
        self.context: Any = SimpleNamespace(**about, once=False)
        self.context.set_aside = partial(DaemonContext.set_aside, self.context)
        self.state = self.read()
        self.transfers = self.state.transfers

    def read(self) -> State[RemoteFile]:
        return State(self.context, RemoteRules("/l", None), None)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setattr(stoker.kit.events.time, "monotonic", lambda: world.now)
    return world


def test_bytes_and_states_follow_each_receipt_and_a_restart_finds_the_same(world: World) -> None:
    state = world.state
    steps = [("a", "verified", 10, []), ("b", "verified", 30, []), ("a", "disputed", 20, ["a"])]
    steps += [("b", "disputed", 0, ["a", "b"]), ("a", "verified", 10, ["b"])]
    for path, to, held, disputed in steps:
        size = 10 if path == "a" else 20
        receipt = replace(RECEIPT, path=path, file=f"/l/{path}", size=size, state=to)
        write_receipt(world.layout, receipt)
        state.take(receipt)
        for each in (state, world.read()):
            assert each.verified_bytes == held
            assert sorted(each.paths["disputed"]) == disputed
            assert each.receipts == state.receipts


def test_a_copied_record_makes_nobody_release_what_is_verified(world: World) -> None:
    file = world.layout.receipt("d", "a")
    for first, last in (("verified", "releasing"), ("releasing", "verified")):
        write_receipt(world.layout, replace(RECEIPT, state=first))
        shutil.copy(file, file.with_name("copy-000000000000.json"))
        write_receipt(world.layout, replace(RECEIPT, state=last))
        state = world.read()
        assert state.paths["releasing"] == {
            path for path, each in state.receipts.items() if each.state == "releasing"
        }


def test_a_damaged_receipt_is_moved_aside_and_told(world: World) -> None:
    write_receipt(world.layout, RECEIPT)
    file = world.layout.receipt("d", "a")
    file.write_bytes(file.read_bytes().replace(b'"size":10', b'"size":11'))
    assert not world.read().receipts
    assert world.heard.words == ["record_damaged"]
    assert not file.exists()


def test_a_warning_about_a_path_is_told_once(world: World) -> None:
    source: Any = SimpleNamespace(events=world.heard, _warned=set())
    for path in "aab":
        Source.warn_once(source, "source_refused", path, "it is a link")
    assert world.heard.words == ["source_refused"] * 2


def test_a_pause_is_told_at_its_begin_now_and_then_while_it_lasts_and_at_its_end(world: World) -> None:
    pauses = world.state.pauses
    pauses.begin("disk", "disk_full", "no room", until=1060.0)
    pauses.begin("disk", "disk_full", "no room, still", until=1120.0)
    assert (pauses.reason("access", "disk"), pauses.until("disk", "access")) == ("no room, still", 1120.0)
    assert world.heard.words == ["disk_full"]
    world.now += 301.0
    pauses.begin("disk", "disk_full", "no room, still", until=1420.0)
    assert world.heard.words == ["disk_full"] * 2
    for _ in range(2):
        pauses.end("disk", "download_resumed", reason="no room")
    assert world.heard.words == ["disk_full"] * 2 + ["download_resumed"]
    assert not pauses.reason("disk")


class TestWaitingForServers:
    """Two files with the worker: what is shown at once, and what is worth an event."""

    @pytest.fixture
    def failures(self, world: World) -> FetchFailures:
        world.transfers.add("a", 100, None)
        world.transfers.add("b", 100, None)
        return FetchFailures(world.context, world.state, is_repo=True)

    def hear(self, world: World, kind: str, path: str, **fields: Any) -> None:
        world.transfers.hear(parse({"kind": kind, "path": path, **fields}), world.now)

    def retry(self, world: World, path: str, wait_s: float) -> None:
        self.hear(world, "retry", path, **{"class": "server", "reason": "h answers 503", "wait_s": wait_s})

    def look(self, world: World, failures: FetchFailures, after_s: float = 0.0) -> str:
        world.now += after_s
        failures.look_at_waits(world.now)
        return failures.waits

    def test_nothing_is_said_while_a_file_is_worked_on_or_none_was_tried(
        self, world: World, failures: FetchFailures
    ) -> None:
        assert self.look(world, failures) == ""
        self.hear(world, "start", "a", offset=0)
        self.retry(world, "b", 3600.0)
        assert self.look(world, failures) == ""
        assert world.heard.words == []

    def test_short_waits_are_shown_and_become_an_event_when_they_bring_nothing_for_long(
        self, world: World, failures: FetchFailures
    ) -> None:
        self.retry(world, "a", 2.0)
        self.retry(world, "b", 5.0)
        shown = self.look(world, failures)
        assert shown.startswith("2 files wait, tried again at ") and shown.endswith("answers 503")
        assert world.heard.words == []
        self.retry(world, "a", 30.0)
        assert self.look(world, failures, STALL_S + 1)
        assert world.heard.words == ["downloads_wait"]
        self.look(world, failures, 1.0)
        assert world.heard.words == ["downloads_wait"], "it is said once in five minutes"

    def test_a_long_wait_is_an_event_at_once_and_bytes_end_it(
        self, world: World, failures: FetchFailures
    ) -> None:
        self.retry(world, "a", 3600.0)
        self.retry(world, "b", 7200.0)
        self.look(world, failures)
        assert world.heard.words == ["downloads_wait"]
        self.hear(world, "start", "a", offset=0)
        assert self.look(world, failures) == "" and world.heard.words == ["downloads_wait"], "no byte yet"
        self.hear(world, "progress", "a", bytes=50, received=50)
        self.look(world, failures)
        assert world.heard.words == ["downloads_wait", "downloads_go_on"]

    def test_files_that_nobody_wants_any_more_end_it_too(self, world: World, failures: FetchFailures) -> None:
        self.retry(world, "a", 3600.0)
        self.look(world, failures)
        world.transfers.clear()
        assert self.look(world, failures) == ""
        assert world.heard.words == ["downloads_wait", "downloads_go_on"]


def test_a_source_that_could_never_be_listed_has_nothing_due_before_the_next_try(tmp_path: Path) -> None:
    source = {"kind": "hub", "repo": "a/b", "endpoint": "http://127.0.0.1:9"}
    data = make_pipeline(tmp_path, dataset__source=source)
    with contextlib.closing(Waiter()) as waiter:
        context = DaemonContext(DOWNLOAD_WATCHDOG, data.pipeline, waiter, once=True)
        remote = RemoteSource(context, WorkerPool("test", waiter))
        remote.state.retries.retry_in(LISTER, 600)
        remote.keep_listing()
        now = time.monotonic()
        assert remote.next_due(now) > now + 500, "or the daemon does not sleep at all"
