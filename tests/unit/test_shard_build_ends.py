"""What becomes of a source when its build ends, and of what the builder says meanwhile: as tables."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.corpus.readers.finding import SET_INVALID, Finding
from stoker.corpus.schedule.outcome import ALONE, SMALLEST, Attempt, Kind, Outcome
from stoker.observe.machine import MemoryFacts
from stokerd.sharding.activities import ACTIVITIES
from stokerd.sharding.activities.base import FOOTER
from stokerd.sharding.effects import StartOver, Write, event
from stokerd.sharding.situation import plan_builders
from stokerd.sharding.work import BuildWork, SourceWork
from support.shard_state import BOOKS, MANIFEST, Shard

EASY = Attempt(rows=0, alone=False, headroom_bytes=1 << 40)
LAST = Attempt(rows=SMALLEST, alone=True, headroom_bytes=1 << 40)
PUBLISHED = {"status": "published", "books": BOOKS, "manifest_sha256": MANIFEST}


@pytest.fixture
def shard(shard: Shard) -> Shard:
    """A source that is about to be built."""
    shard.source(state="building")
    shard.receipt()
    return shard


def built(
    shard: Shard, kind: Kind, reason: str = "why", work: BuildWork | None = None, **outcome: Any
) -> list[str]:
    """The effects, in order, of a build's end."""
    work = work or BuildWork()
    work.attempt = work.attempt or EASY
    shard.job("build", work=work)
    return shard.end("a", Outcome(kind, reason, **outcome))


def at(row_group: int | None = None, **facts: Any) -> BuildWork:
    return BuildWork(row_group=row_group, **facts)


def waits(shard: Shard) -> bool:
    return not shard.dataset.retries.allows("a")


def test_what_was_published_is_proven_and_what_was_begun_of_it_goes(shard: Shard) -> None:
    source = shard.on_disk()
    shard.dataset.xxh3[source.sha256] = "x"
    shard.dataset.retries.failed("a")
    assert built(shard, "done", result=PUBLISHED) == ["write proven", "source_proven"]
    proven = shard.on_disk()
    assert (proven.state, proven.manifest_sha256) == ("proven", MANIFEST)
    assert proven.key16 in shard.state.hot.published
    assert any(proven.key16 in place for place in shard.state.hot.litter)
    assert not waits(shard) and not shard.dataset.xxh3
    ((_, fields),) = shard.events.all
    assert (fields["documents"], fields["tokens"], fields["dropped"]) == (2, 100, 1)


def test_a_content_whose_set_is_anothers_gets_no_second_owner(shard: Shard) -> None:
    shard.source("b", "proven", content="a")
    assert built(shard, "done", result=PUBLISHED) == []
    assert shard.on_disk().state == "building", "the schedule makes a duplicate of it"


def test_a_wrong_set_at_its_target_waits_for_quarantine(shard: Shard) -> None:
    result = {"status": "target_invalid", "reason": "its index is cut"}
    assert built(shard, "done", result=result) == ["shard_set_invalid"]
    assert shard.dataset.convicted == {"a": Finding(SET_INVALID, "its index is cut")}
    assert shard.on_disk().state == "building"


def test_a_bad_file_is_convicted_and_its_event_comes_with_the_quarantine(shard: Shard) -> None:
    result = {"status": "bad", "reason": "page_corrupt", "detail": "d", "row_group": 2, "column": "text"}
    assert built(shard, "bad", result=result) == []
    assert shard.dataset.convicted == {"a": Finding("page_corrupt", "d", 2, "text")}


def test_a_file_of_other_content_is_disputed_and_starts_over(shard: Shard) -> None:
    assert built(shard, "changed") == ["Dispute", "start over"]
    assert shard.on_disk().state == "seen" and waits(shard)
    assert shard.disputes() == ["a"]
    shard.source(state="building")
    assert built(shard, "changed") == ["start over"], "nobody is asked twice about one receipt"


@pytest.mark.parametrize(
    ("work", "effects", "rows"),
    [
        (at(reached=(1, 0)), ["worker_recycled"], 0),
        (at(), ["worker_recycled", "write building", "build_failed"], 1),
        (at(attempt=LAST), ["worker_recycled", "write building", "build_failed"], SMALLEST),
    ],
)
def test_a_recycled_worker_that_never_came_further_reads_less_at_a_time(
    shard: Shard, work: BuildWork, effects: list[str], rows: int
) -> None:
    shard.dataset.retries.failed("a")
    assert built(shard, "recycled", work=work) == effects
    assert waits(shard) == (len(effects) > 1)
    assert shard.state.memory.attempt("a", others=False).rows == rows


def test_a_worker_that_comes_further_than_any_before_goes_on_for_ever(shard: Shard) -> None:
    for reached, is_further in (((0, 9), True), ((0, 9), False), ((0, 12), True), ((1, 0), True)):
        shard.events.all.clear()
        built(shard, "recycled", work=at(reached=reached))
        assert shard.events.all[0] == (
            "worker_recycled",
            {"level": "info", "path": "a", "further": is_further},
        )


class TestMemory:
    @pytest.mark.parametrize("kind", ["out_of_memory", "over_memory"])
    def test_less_is_read_at_a_time_and_then_it_is_built_alone(self, shard: Shard, kind: Kind) -> None:
        memory = shard.state.memory
        assert built(shard, kind) == ["write building", "build_failed"]
        assert shard.on_disk().attempts == 1
        assert memory.attempt("a", others=False).rows == 1
        crowded = Attempt(SMALLEST, alone=False, headroom_bytes=1 << 40)
        built(shard, kind, work=at(attempt=crowded))
        assert memory.attempt("a", others=False).alone
        built(shard, kind, work=at(attempt=Attempt(0, alone=False, headroom_bytes=0)))
        assert memory.attempt("a", others=False).alone, "an older attempt takes nothing back"
        assert memory.needs == {"a": ALONE}
        assert plan_builders(shard.dataset)[1:] == (None, ["a"]), "it waits after its failure"
        shard.dataset.retries.succeeded("a")
        memory.facts = MemoryFacts(0)
        assert plan_builders(shard.dataset)[1:] == (None, ["a"]), "there is no memory to spare"
        memory.facts = MemoryFacts(1 << 40)
        limits, *others = plan_builders(shard.dataset)
        assert (limits.builders, others) == (1, ["a", []])
        shard.source("b", "building")
        shard.job("build", "b", BuildWork())
        assert plan_builders(shard.dataset)[0].builders == 0, "until nothing else is built"
        assert "source_waits_for_memory" in shard.events.words

    def test_the_machines_want_of_memory_goes_down_its_ladder_and_a_files_does_not(
        self, shard: Shard
    ) -> None:
        built(shard, "over_memory")
        assert shard.state.memory.ladder.step == 0
        built(shard, "out_of_memory")
        assert shard.state.memory.ladder.step == 1

    @pytest.mark.parametrize("kind", ["out_of_memory", "over_memory"])
    def test_what_fails_alone_in_the_smallest_batches_with_memory_to_spare_is_convicted(
        self, shard: Shard, kind: Kind
    ) -> None:
        assert built(shard, kind, work=at(3, attempt=LAST)) == ["write building", "build_failed"]
        finding = shard.dataset.convicted["a"]
        assert (finding.reason, finding.row_group) == ("out_of_memory", 3)
        assert not shard.state.memory.needs

    def test_another_job_that_ran_out_of_memory_says_nothing_of_builds(self, shard: Shard) -> None:
        shard.job("prove", work=SourceWork())
        assert shard.end("a", Outcome("out_of_memory", "why")) == ["prove_failed"]
        assert shard.state.memory.ladder.step == 0
        assert shard.on_disk().attempts == 0


class TestDeath:
    def test_twice_at_one_place_convicts(self, shard: Shard) -> None:
        for row_group, is_convicted in ((2, False), (4, False), (2, True)):
            assert built(shard, "died", "signal 11", at(row_group)) == ["write building", "build_failed"]
            assert ("a" in shard.dataset.convicted) == is_convicted
        assert shard.on_disk().deaths == (2, 4, 2)
        finding = shard.dataset.convicted["a"]
        assert finding == Finding("worker_died", "signal 11; twice at the same place", 2)

    def test_a_death_before_anything_was_read_blames_nothing(self, shard: Shard) -> None:
        built(shard, "died")
        built(shard, "died")
        assert shard.on_disk().deaths == () and not shard.dataset.convicted

    def test_after_a_death_each_row_group_is_committed_to_blame_one(self, shard: Shard) -> None:
        assert not shard.task("build", "a")["commit_every_row_group"]
        built(shard, "died", work=at(2))
        assert shard.task("build", "a")["commit_every_row_group"]

    @pytest.mark.parametrize("kind", ["died", "stalled", "silent"])
    def test_where_the_fast_engine_was_at_work_the_reference_shows_who_is_to_blame(
        self, shard: Shard, kind: Kind
    ) -> None:
        work = at(2, is_encoding=True)
        assert built(shard, kind, work=work) == ["engine_refused", "write building", "build_failed"]
        source = shard.on_disk()
        assert (source.engine, source.deaths) == ("tokenizers", ())
        assert built(shard, "died", work=work) == ["write building", "build_failed"]
        assert shard.on_disk().deaths == (2,)
        assert shard.task("build", "a")["engine"] == "tokenizers"

    @pytest.mark.parametrize("kind", ["stalled", "silent", "again", "storage", "killed"])
    def test_no_other_end_counts_against_the_file(self, shard: Shard, kind: Kind) -> None:
        for _ in range(3):
            assert built(shard, kind, work=at(2)) == ["write building", "build_failed"]
        source = shard.on_disk()
        assert (source.attempts, source.deaths) == (3, ())
        assert waits(shard) and not shard.dataset.convicted

    def test_the_footer_is_a_place_too(self, shard: Shard) -> None:
        for _ in range(2):
            built(shard, "died", work=at(FOOTER))
        assert shard.dataset.convicted["a"].row_group is None


def test_a_full_disk_is_the_disks_and_no_try_is_counted(shard: Shard) -> None:
    assert built(shard, "disk_full", "ENOSPC") == []
    assert shard.on_disk().attempts == 0 and waits(shard)
    assert shard.events.words == ["disk_full"]
    assert list(shard.state.pauses.reasons()) == ["disk_hot"]


def test_what_a_builder_says_is_noted_before_its_end(shard: Shard) -> None:
    shard.job("build")
    work = shard.pool["a"].facts
    shard.hear("a", {"kind": "progress", "phase": "open", "row_group": 0, "row": 0})
    shard.hear("a", {"kind": "progress", "phase": "encode", "row_group": 3})
    assert (work.row_group, work.is_encoding, work.is_resumed) == (3, True, False)
    shard.hear("a", {"kind": "commit", "row_group": 4, "row": 7, "tokens": 50})
    assert (work.reached, shard.state.progress.built_tokens) == ((4, 7), 50)
    shard.hear("a", {"kind": "engine", "reason": "it differs"})
    assert shard.on_disk().engine == "tokenizers"
    assert shard.events.words == ["engine_refused"]


def test_a_resumed_build_counts_only_what_it_adds(shard: Shard) -> None:
    shard.job("build")
    shard.hear("a", {"kind": "progress", "phase": "open", "row_group": 1, "row": 0})
    for tokens in (500, 520, 520):
        shard.hear("a", {"kind": "commit", "row_group": 1, "row": 0, "tokens": tokens})
    assert shard.state.progress.built_tokens == 20


def test_the_decisions_are_values_that_can_be_compared(shard: Shard) -> None:
    job, source = shard.job("build", work=BuildWork(attempt=EASY)), shard.on_disk()
    end = ACTIVITIES["build"].end
    about = {"path": "a", "reason": "why", "row_group": None, "retry_in_s": 1.0}
    assert list(end(shard.dataset, job, Outcome("out_of_memory", "why"))) == [
        Write(source.moved("building", attempts=1)),
        event("build_failed", **about),
    ]
    changed = list(end(shard.dataset, job, Outcome("changed")))
    assert changed[1:] == [StartOver(source, "its content is not what its receipt says", "warning")]
