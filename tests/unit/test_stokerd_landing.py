"""What the stage-shard loop asks about the landing: filed once, followed, and asked again when refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Receipt, ReceiptState
from stoker.corpus.records.sources import Source
from stoker.corpus.schedule.state import Limits, Situation
from stoker.kit.metrics import Metrics
from stoker.store.layout import DOWNLOAD_WATCHDOG, StateLayout
from stoker.store.requests import Request, filed_requests, finish_request
from stokerd.sharding import landing as landing_desk
from stokerd.sharding.landing import AGAIN_S, LEAST_FETCHES, LandingDesk

LIMITS = Limits(stagers=1, builders=1, provers=1, queue_files=3, queue_bytes=1000, release="after_proof")


class World:
    """Records, a clock and a desk."""

    def __init__(self, state: Path, kind: str = "hub") -> None:
        self.layout = StateLayout(state)
        self.layout.create()
        self.now = 100.0
        self.told: list[tuple[str, str]] = []
        self.sources = Catalog()
        self.receipts: dict[str, Receipt] = {}
        self.kind = kind
        self.begin()

    def begin(self) -> None:
        """Start the daemon, or start it again."""
        source = SimpleNamespace(kind=self.kind)
        pipeline = SimpleNamespace(
            dataset=SimpleNamespace(source=source), stage=SimpleNamespace(queue_files=1)
        )
        events = SimpleNamespace(record=lambda word, *, path, **_: self.told.append((word, path)))
        metrics = Metrics("stage_shard", "p")
        context: Any = SimpleNamespace(
            pipeline=pipeline, layout=self.layout, events=events, metrics=metrics, once=False
        )
        self.desk = LandingDesk(context, SimpleNamespace(sources=self.sources))  # type: ignore[arg-type]
        self.desk.note(self.sources.keys() | self.receipts.keys())

    def put(self, path: str, source: str, receipt: ReceiptState) -> None:
        """A path's records as they are now."""
        self.sources.put(replace(Source("d", path, 100, f"{path:f<64}"), state=source))
        self.receipts[path] = Receipt("d", path, f"/l/{path}", 100, f"{path:f<64}", "", "e", receipt)
        self.desk.note([path])

    def turn(self, **changes: Any) -> dict[str, Request]:
        """One turn of the loop; the requests that wait for an answer, by path."""
        plain = Situation(self.receipts, self.sources, LIMITS, key_of=lambda sha256: sha256)
        self.desk.act(lambda: replace(plain, **changes))
        return {str(one.args["path"]): one for one in filed_requests(self.layout, DOWNLOAD_WATCHDOG)}

    def answer(self, request: Request, **outcome: str) -> None:
        finish_request(self.layout, DOWNLOAD_WATCHDOG, request, outcome)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path / "state")
    monkeypatch.setattr(landing_desk.time, "monotonic", lambda: made.now)
    return made


def test_a_folders_files_are_asked_nothing_about(tmp_path: Path) -> None:
    folder = World(tmp_path / "state", kind="folder")
    folder.put("a", "released", "verified")
    assert folder.turn() == {}
    assert folder.desk.show(folder.receipts) == {}


def test_a_removal_is_asked_once_over_turns_and_restarts(world: World) -> None:
    world.put("a", "proven", "verified")
    assert world.turn() == {}
    world.put("a", "released", "verified")
    (first,) = world.turn().values()
    assert (first.verb, first.args["owner"]) == ("release", "a")
    world.turn()
    world.begin()
    assert list(world.turn().values()) == [first]
    assert world.desk.show(world.receipts)["landing"] == {
        "unneeded_bytes": 100,
        "asked": {"release": 1, "fetch": 0},
    }
    world.answer(first, receipt="releasing")
    assert world.turn() == {}, "it is on its way, though its receipt was not read again yet"
    world.put("a", "released", "releasing")
    assert world.turn() == {}
    assert world.desk.show(world.receipts)["landing"]["asked"] == {"release": 0, "fetch": 0}


def test_a_refusal_is_told_once_and_asked_again_later(world: World) -> None:
    world.put("a", "released", "verified")
    (first,) = world.turn().values()
    world.answer(first, refused="for a reason")
    assert world.turn() == {}
    assert world.told == [("landing_release_refused", "a")]
    world.now = world.desk.due - 1
    assert world.turn() == {}
    world.now += 2
    (second,) = world.turn().values()
    assert second.id != first.id
    world.answer(second, refused="for a reason")
    world.turn()
    assert len(world.told) == 1


def test_a_request_that_nobody_answers_stays_the_only_one(world: World) -> None:
    world.put("a", "released", "verified")
    asked = world.turn()
    for _ in range(3):
        world.now += AGAIN_S + 1
        assert world.turn() == asked


def test_what_was_lost_is_asked_for_until_it_is_here_and_no_more_than_so_many(world: World) -> None:
    for number in range(LEAST_FETCHES + 1):
        world.put(f"{number:02d}", "seen", "released")
    asked = world.turn()
    assert sorted(asked) == [f"{number:02d}" for number in range(LEAST_FETCHES)]
    assert world.told == [("source_wanted_again", path) for path in sorted(asked)]
    world.answer(asked["00"], receipt="disputed")
    world.put("00", "seen", "disputed")
    assert "16" not in world.turn(), "it is not here yet"
    world.put("00", "seen", "verified")
    assert "16" in world.turn()


def test_what_cannot_be_known_yet_is_asked_when_it_is(world: World) -> None:
    world.put("a", "seen", "released")
    assert world.turn(uncertain=True) == {}
    assert [one.verb for one in world.turn().values()] == ["fetch"]


def test_a_duplicates_file_goes_when_only_the_owners_record_changes(world: World) -> None:
    world.put("a", "proven", "verified")
    twin = replace(world.sources["a"], path="b", state="duplicate")
    world.sources.put(twin)
    world.receipts["b"] = replace(world.receipts["a"], path="b")
    world.desk.note(["b"])
    assert world.turn() == {}
    world.put("a", "released", "verified")
    assert {path: one.args["owner"] for path, one in world.turn().items()} == {"a": "a", "b": "a"}
