"""The quarantine's budget, requests about it, and another look at what lies there: as tables."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from stoker.config.schema import Quarantine
from stoker.corpus.quarantine.directory import DROP, RELEASE, mark
from stoker.corpus.records.sources import SourceState
from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.schedule.state import Action
from stokerd.sharding.activities import quarantine
from stokerd.sharding.activities.quarantine import SUBJECT, next_look
from stokerd.sharding.record_actions import take
from support.shard_state import MakeShard, Shard

BAD = Outcome("bad", result={"status": "bad", "reason": "page_corrupt", "row_group": 2})
GOOD = Outcome("done", result={"status": "good"})


@pytest.fixture
def shard(shard: Shard) -> Shard:
    """A quarantined file with its finding."""
    shard.source(state="quarantined", reason="page_corrupt")
    shard.receipt()
    shard.finding()
    return shard


def act(shard: Shard) -> list[str]:
    return shard.apply(quarantine.act(shard.dataset))


def name_of(shard: Shard) -> str:
    return shard.state.quarantine.kept[0].name


def put(shard: Shard, path: str, size: int = 10, **body: Any) -> str:
    """A finding with a file of so many bytes."""
    name = shard.finding(path, **body).name
    (shard.layout.quarantine / name / "thing").write_bytes(bytes(size))
    shard.kept(name)
    return name


class TestLook:
    def look(self, shard: Shard, outcome: Outcome) -> list[str]:
        shard.job("revalidate", SUBJECT)
        return shard.end(SUBJECT, outcome)

    def test_what_is_good_now_starts_over(self, shard: Shard) -> None:
        request = shard.ask(RELEASE, name=name_of(shard))
        act(shard)
        assert shard.answer(request) is None
        released = ["source_released_from_quarantine", "mark released"]
        assert self.look(shard, GOOD) == ["write seen", *released, "answer released"]
        source = shard.on_disk()
        assert (source.state, source.reason) == (
            "seen",
            "released from quarantine: it decodes and hashes well now",
        )
        assert (shard.answer(request) or {})["released"] == "a"
        assert act(shard) == []
        assert dict(shard.state.progress.looks) == {"good": 1}

    def test_a_file_that_came_after_all_is_a_release_too(self, shard: Shard) -> None:
        shard.source(state="quarantined", reason="download_failed")
        effects = ["source_released_from_quarantine", "mark released", "start over"]
        assert shard.apply(take(shard.dataset, Action("restart", "a"))) == effects
        assert act(shard) == []

    @pytest.mark.parametrize(
        ("outcome", "verdict", "effects", "answer"),
        [
            (BAD, "bad", ["mark revalidated revalidations", "quarantine_revalidated"], (True, False)),
            (
                Outcome("died", "signal 11"),
                "bad",
                ["mark revalidated revalidations", "quarantine_revalidated"],
                (True, False),
            ),
            (
                Outcome("done", result={"status": "gone"}),
                "gone",
                ["mark revalidated revalidations", "quarantine_revalidated"],
                (True, False),
            ),
            (Outcome("storage", "EIO"), "unreadable", ["revalidate_failed"], (False, True)),
            (Outcome("killed", "by hand"), "unreadable", ["revalidate_failed"], (False, True)),
        ],
    )
    def test_what_is_not_good_stays_and_who_asked_is_answered(
        self, shard: Shard, outcome: Outcome, verdict: str, effects: list[str], answer: tuple[bool, bool]
    ) -> None:
        request = shard.ask(RELEASE, name=name_of(shard))
        assert self.look(shard, outcome) == [*effects, "answer refused"]
        told = shard.answer(request) or {}
        assert (told["finding"], told["again"]) == answer
        assert shard.on_disk().state == "quarantined"
        assert dict(shard.state.progress.looks) == {verdict: 1}

    def test_the_looks_at_one_finding_are_counted_in_it(self, shard: Shard) -> None:
        for times in (1, 2):
            shard.ask(RELEASE, name=name_of(shard))
            self.look(shard, BAD)
            assert shard.kept(name_of(shard)).body["revalidations"] == times

    def test_other_content_is_hashed_again(self, shard: Shard) -> None:
        request = shard.ask(RELEASE, name=name_of(shard))
        outcome = Outcome("changed", result={"status": "changed"})
        assert self.look(shard, outcome) == ["answer refused", "Dispute", "start over"]
        assert (shard.answer(request) or {})["again"] is False
        assert shard.disputes() == ["a"]

    def test_a_look_at_what_started_over_meanwhile_says_nothing(self, shard: Shard) -> None:
        shard.ask(RELEASE, name=name_of(shard))
        shard.job("revalidate", SUBJECT)
        shard.source()
        assert shard.end(SUBJECT, GOOD) == []

    def test_by_force_its_word_is_taken_without_a_look(self, shard: Shard) -> None:
        shard.ask(RELEASE, name=name_of(shard), force=True)
        shard.job("revalidate", SUBJECT)
        assert shard.pool.tasks[SUBJECT]["decode"] is False
        shard.end(SUBJECT, GOOD)
        assert shard.on_disk().reason == "released from quarantine: by hand, without a check"

    def test_one_is_looked_at_at_a_time_and_none_while_hot_is_away(self, shard: Shard) -> None:
        assert next_look(shard.dataset) is None, "it was looked at when it came"
        shard.ask(RELEASE, name=name_of(shard))
        assert next_look(shard.dataset) is not None
        shard.job("revalidate", SUBJECT)
        assert next_look(shard.dataset) is None
        shard.end(SUBJECT, Outcome("killed"))
        shard.ask(RELEASE, name=name_of(shard))
        shard.state.hot.lost("gone")
        assert next_look(shard.dataset) is None

    def test_the_clock_has_files_looked_at_again(self, make_shard: MakeShard) -> None:
        shard = make_shard(quarantine={"revalidate": "1h"})
        shard.look()
        shard.source(state="quarantined", reason="page_corrupt")
        kept = shard.finding()
        assert next_look(shard.dataset) is None
        hours_ago = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 7200))
        mark(shard.layout.quarantine / kept.name, time=hours_ago)
        kept = shard.kept(kept.name)
        assert next_look(shard.dataset) == (kept, False)


class TestRequests:
    @pytest.mark.parametrize(
        ("args", "words"),
        [({"name": "nothing"}, "nothing in quarantine is called nothing"), ({}, "nothing in quarantine")],
    )
    def test_what_is_not_there_cannot_be_released(
        self, shard: Shard, args: dict[str, Any], words: str
    ) -> None:
        request = shard.ask(RELEASE, **args)
        assert act(shard) == ["answer refused"]
        assert words in str((shard.answer(request) or {})["refused"])

    def test_what_was_released_already_is_told_so(self, shard: Shard) -> None:
        name = name_of(shard)
        mark(shard.layout.quarantine / name, released={"why": "x", "told": True})
        shard.kept(name)
        request = shard.ask(RELEASE, name=name)
        act(shard)
        assert shard.answer(request) == {"released": "a", "why": "x", "already": True}

    def test_what_is_no_quarantined_file_is_refused(self, shard: Shard) -> None:
        shard.source(state="proven")
        request = shard.ask(RELEASE, name=name_of(shard))
        act(shard)
        assert "not quarantined" in str((shard.answer(request) or {})["refused"])

    def test_a_file_that_never_came_is_asked_for_again(self, shard: Shard) -> None:
        shard.source(state="quarantined", reason="download_failed")
        request = shard.ask(RELEASE, name=name_of(shard))
        act(shard)
        assert (shard.answer(request) or {})["fetching"] == "a"

    def test_what_is_dropped_is_removed_and_keeps_its_reason(self, shard: Shard) -> None:
        name = put(shard, "a")
        request = shard.ask(DROP, name=name)
        assert act(shard) == ["DropFinding", "answer dropped"]
        assert not (shard.layout.quarantine / name / "thing").exists()
        assert shard.events.words == ["quarantine_dropped"]
        assert shard.answer(request) == {"dropped": name, "bytes": 10}
        shard.ask(DROP, name=name)
        assert act(shard) == ["answer dropped"], "there is nothing left to drop"
        assert shard.kept(name).dropped is not None

    def test_with_its_reason_it_is_gone(self, shard: Shard) -> None:
        name = name_of(shard)
        shard.source(state="released")
        request = shard.ask(DROP, name=name, reason_too=True)
        act(shard)
        assert shard.answer(request) == {"dropped": name, "bytes": 0}
        assert not (shard.layout.quarantine / name).exists()

    def test_what_is_being_looked_at_is_not_dropped(self, shard: Shard) -> None:
        name = put(shard, "a")
        shard.ask(RELEASE, name=name)
        shard.job("revalidate", SUBJECT)
        shard.ask(DROP, name=name)
        assert act(shard) == []

    def test_what_a_worker_had_to_give_up_is_told_once(self, shard: Shard) -> None:
        name = name_of(shard)
        mark(shard.layout.quarantine / name, dropping={"why": "it is too large", "bytes": 9})
        shard.kept(name)
        assert act(shard) == ["DropFinding"]
        ((word, told),) = shard.events.all
        assert (word, told["why"], told["bytes"]) == ("quarantine_dropped", "it is too large", 9)
        assert act(shard) == []


def test_two_marks_in_one_tick_of_the_clock_are_both_seen(shard: Shard) -> None:
    name = name_of(shard)
    folder = shard.layout.quarantine / name
    for times in (1, 2):
        mark(folder, revalidations=times)
        for place in (folder / "reason.json", folder):
            os.utime(place, ns=(0, 0))
        assert shard.kept(name).body["revalidations"] == times


class TestBudget:
    def test_the_oldest_over_the_budget_go_one_after_the_other(
        self, make_shard: MakeShard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Quarantine, "keep_files", 1)
        shard = make_shard()
        for path in "abc":
            shard.source(path, "quarantined", reason="page_corrupt")
            name = put(shard, path)
            times = {"a": "2020-01-01", "b": "2021-01-01", "c": "2022-01-01"}
            mark(shard.layout.quarantine / name, time=f"{times[path]}T00:00:00Z")
        shard.state.quarantine.read_soon()
        assert act(shard) == ["DropFinding", "DropFinding"]
        assert act(shard) == []

    @pytest.mark.parametrize(
        ("state", "is_over"),
        [("seen", False), ("building", False), ("released", True), ("quarantined", False)],
    )
    def test_a_finding_against_a_content_that_was_replaced_ends_once_the_new_content_is_built(
        self, shard: Shard, state: SourceState, is_over: bool
    ) -> None:
        name = put(shard, "a")
        shard.source("a", state, reason="page_corrupt", sha256="7" * 64)
        if state == "quarantined":
            shard.finding("a", sha256="7" * 64)
        released = ["source_released_from_quarantine", "mark released", "DropFinding"]
        assert act(shard) == (released if is_over else [])
        assert bool(shard.kept(name).things) is not is_over
        assert act(shard) == []

    def test_a_source_starts_over_when_somebody_took_its_finding_away(self, shard: Shard) -> None:
        name = name_of(shard)
        (shard.layout.quarantine / name / "reason.json").unlink()
        (shard.layout.quarantine / name).rmdir()
        shard.state.quarantine.read_soon()
        assert act(shard) == ["start over"]
        assert shard.on_disk().state == "seen"
        assert act(shard) == []
