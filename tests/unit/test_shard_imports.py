"""What becomes of a request to import tokens, and of imported sets that are nowhere any more: as tables."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.corpus.schedule.outcome import Outcome
from stoker.shards.exchange.import_claim import IMPORT
from stokerd.sharding.activities import imports
from stokerd.sharding.activities.imports import AT_ONCE, LOST, LOST_EVERY_S
from stokerd.sharding.state import TRIES_ONCE
from support.shard_state import BOOKS, MANIFEST, Clock, MakeShard, Shard

PLACE, SUBJECT, PATH = "/data/web", "/import /data/web", "import/web"
CONTENT = {"kind": "content", "size": 14, "sha256": "c" * 64, "form": "nanogpt"}


def published(shard: Shard) -> dict[str, Any]:
    key = shard.state.key(shard.state.sources[PATH])
    return {"status": "published", "key": key, "books": BOOKS, "manifest_sha256": MANIFEST, "notes": ["n"]}


def begun(shard: Shard) -> Any:
    """A request whose worker has seen the content."""
    request = shard.ask(IMPORT, place=PLACE)
    assert shard.apply(imports.act(shard.state)) == ["begin import"]
    shard.hear(SUBJECT, CONTENT)
    return request


def test_what_is_there_is_on_record_before_its_worker_goes_on(shard: Shard) -> None:
    begun(shard)
    source = shard.on_disk(PATH)
    assert (source.state, source.imported, source.size) == ("seen", True, 14)
    assert shard.sent(SUBJECT) == [{"path": PATH}]


def test_a_worker_that_ends_right_after_it_told_is_tried_again(shard: Shard) -> None:
    shard.ask(IMPORT, place=PLACE)
    shard.apply(imports.act(shard.state))
    job = shard.pool.end(SUBJECT)  # the pool forgets a job before it hands out its last messages
    assert shard.apply(imports.on_message(shard.state, job, CONTENT)) == ["write seen", "Send"]
    assert shard.apply(imports.on_end(shard.state, job, Outcome("killed", "signal 9"))) == [
        "alert import_failed"
    ]


def test_the_record_is_right_before_the_request_is_answered(shard: Shard) -> None:
    request = begun(shard)
    result = published(shard)
    effects = ["write proven", "set_imported", "over import_failed", "answer path"]
    assert shard.done(SUBJECT, **result) == effects
    assert shard.answer(request) == {
        "path": PATH,
        "key": result["key"],
        "new": True,
        "books": BOOKS,
        "notes": ["n"],
    }
    assert result["key"][:16] in shard.state.hot.published


def test_the_same_content_is_not_copied_twice(shard: Shard) -> None:
    begun(shard)
    shard.done(SUBJECT, **published(shard))
    request = begun(shard)
    assert shard.sent(SUBJECT) == [{"path": None}]
    assert shard.done(SUBJECT, status="on_record") == ["answer path"]
    assert (shard.answer(request) or {})["new"] is False


def test_what_cannot_be_imported_is_refused(shard: Shard) -> None:
    request = begun(shard)
    assert shard.done(SUBJECT, status="refused", reason="another tokenizer") == [
        "import_refused",
        "answer refused",
    ]
    assert shard.answer(request) == {"refused": "another tokenizer"}
    request = shard.ask(IMPORT, place="relative")
    assert shard.apply(imports.act(shard.state)) == ["answer refused"]
    assert "no absolute path" in str((shard.answer(request) or {})["refused"])


def test_a_wrong_set_at_its_target_goes_first(shard: Shard) -> None:
    request = begun(shard)
    assert shard.done(SUBJECT, status="target_invalid", reason="why") == ["shard_set_invalid"]
    assert shard.state.records.invalid_sets == {PATH: "why"}
    assert shard.answer(request) is None and not shard.state.retries.allows(SUBJECT)


def test_what_fails_is_tried_some_times(shard: Shard) -> None:
    request = begun(shard)
    for _ in range(TRIES_ONCE - 1):
        assert shard.end(SUBJECT, Outcome("died", "signal 11")) == ["alert import_failed"]
        shard.job("import", request.id)
    assert shard.end(SUBJECT, Outcome("died", "signal 11")) == ["alert import_failed", "answer failed"]
    assert shard.answer(request) == {"failed": "signal 11"}
    assert shard.events.words.count("import_failed") == 1


@pytest.mark.parametrize("once", [False, True])
def test_a_full_disk_is_waited_for_unless_once(make_shard: MakeShard, once: bool) -> None:
    shard = make_shard(once=once)
    shard.pin()
    shard.look()
    request = begun(shard)
    for _ in range(TRIES_ONCE):
        if SUBJECT not in shard.pool:
            shard.job("import", request.id)
        shard.end(SUBJECT, Outcome("disk_full", "ENOSPC"))
    assert (shard.answer(request) is not None) == once


def test_few_go_on_at_once_and_one_of_a_place(shard: Shard) -> None:
    for place in (PLACE, PLACE, "/data/b"):
        shard.ask(IMPORT, place=place)
    assert shard.apply(imports.act(shard.state)) == ["begin import"] * AT_ONCE
    assert sorted(shard.state.doing("import")) == ["/import /data/b", SUBJECT], "one of each place"
    shard.ask(IMPORT, place="/data/c")
    assert shard.apply(imports.act(shard.state)) == []


def test_nothing_is_imported_before_the_dataset_is_pinned(make_shard: MakeShard) -> None:
    shard = make_shard()
    shard.look()
    shard.ask(IMPORT, place=PLACE)
    assert shard.apply(imports.act(shard.state)) == []


def test_a_request_that_somebody_took_away_ends_nothing(shard: Shard) -> None:
    request = begun(shard)
    (shard.layout.requests("stage_shard") / f"{request.id}.json").unlink()
    shard.state.records.requests = []
    shard.done(SUBJECT, **published(shard))
    assert shard.on_disk(PATH).state == "proven"
    assert shard.answer(request) is not None


class TestLost:
    @staticmethod
    def lost(shard: Shard) -> None:
        shard.source(PATH, "seen", imported=True)

    def test_a_set_that_is_nowhere_is_passed_over(self, shard: Shard) -> None:
        self.lost(shard)
        assert shard.apply(imports.act(shard.state)) == ["write quarantined", "import_lost"]
        assert shard.on_disk(PATH).reason == LOST

    def test_not_while_it_may_be_found(self, warm_shard: Shard, clock: Clock) -> None:
        self.lost(warm_shard)
        state = warm_shard.state
        assert state.warm is not None
        key = state.key(state.sources[PATH])[:16]
        for place in (state.hot.published, state.warm.published):
            place.add(key)
            assert warm_shard.apply(imports.act(state)) == []
            clock.now += LOST_EVERY_S
            place.discard(key)
        warm_shard.end("/warm-lister", Outcome("again", "gone"))
        assert warm_shard.apply(imports.act(state)) == []

    def test_not_while_it_is_imported_again(self, shard: Shard) -> None:
        self.lost(shard)
        shard.ask(IMPORT, place=PLACE)
        assert shard.apply(imports.act(shard.state)) == ["begin import"]
