"""What the ends of stage, prove, quarantine, release, sweep and tokenizer jobs make true: as tables."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stoker.corpus.readers.finding import SET_INVALID, Finding
from stoker.corpus.records.receipts import Listing
from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.schedule.state import Action
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.store.errors import DataError, UnavailableError
from stoker.store.requests import Request
from stokerd.sharding.activities import build, tokenizer
from stokerd.sharding.activities.base import FOOTER
from stokerd.sharding.activities.build import PROVE_SET
from stokerd.sharding.record_actions import take
from stokerd.sharding.situation import busy
from stokerd.sharding.work import SourceWork
from support.shard_state import BOOKS, MANIFEST, MakeShard, Shard

HUB = {"kind": "hub", "repo": "some/where"}
PROOF = {"verdict": "proven", "reason": "", "missing": False, "cached": False, "books": BOOKS}


FROZEN = {"sha256": "ab" * 32, "vocab_size": 400, "eot": 0}


def waits(shard: Shard) -> bool:
    return not shard.dataset.retries.allows("a")


class TestStage:
    @pytest.fixture
    def shard(self, shard: Shard) -> Shard:
        shard.source()
        shard.receipt()
        return shard

    def test_a_staged_file_has_no_past(self, shard: Shard) -> None:
        shard.source(attempts=2, deaths=(1,), reason="x")
        shard.job("stage")
        result = {"status": "staged", "how": "copy", "xxh3": "x", "resumed": 7}
        assert shard.done(**result) == ["stage_resumed", "write staged"]
        staged = shard.on_disk()
        assert (staged.state, staged.attempts, staged.deaths, staged.reason) == ("staged", 0, (), None)
        assert shard.dataset.xxh3 == {staged.sha256: "x"}
        assert not shard.state.hot.is_measured, "it takes room"

    @pytest.mark.parametrize(("how", "is_linked"), [("link", True), ("copy", False), ("kept", True)])
    def test_the_last_file_tells_whether_links_work(
        self, make_shard: MakeShard, how: str, is_linked: bool
    ) -> None:
        shard = make_shard(dataset__source=HUB)
        shard.source()
        shard.receipt()
        assert shard.dataset.needs.is_linked
        shard.job("stage")
        shard.done(status="staged", how=how, xxh3="")
        assert shard.dataset.needs.is_linked == is_linked

    def test_a_folders_missing_file_is_waited_for(self, shard: Shard) -> None:
        shard.job("stage")
        assert shard.done(status="missing") == ["stage_failed"]
        assert waits(shard) and shard.disputes() == []

    def test_a_fetched_file_that_is_missing_is_disputed_once(self, make_shard: MakeShard) -> None:
        shard = make_shard(dataset__source=HUB)
        shard.source()
        shard.receipt()
        for effects in (["Dispute", "stage_failed"], ["stage_failed"]):
            shard.job("stage")
            assert shard.done(status="missing") == effects
        assert shard.disputes() == ["a"]
        assert "a" in shard.situation().shelved, "nothing goes on until the receipt is written again"
        shard.receipt(state="disputed")
        assert "a" not in shard.situation().shelved

    def test_an_absent_folder_pauses_staging_once(self, shard: Shard) -> None:
        for _ in range(2):
            shard.job("stage")
            assert shard.done(status="unavailable", reason="mount it") == ["stage_failed"]
        assert shard.events.words == ["source_unavailable", "stage_failed", "stage_failed"]

    @pytest.mark.parametrize("status", ["mismatch", "changed"])
    def test_other_content_is_disputed_once_and_starts_over(self, shard: Shard, status: str) -> None:
        for effects in (["Dispute", "start over"], ["start over"]):
            shard.job("stage")
            assert shard.end("a", Outcome("changed", result={"status": status})) == effects
        assert shard.disputes() == ["a"] and waits(shard)

    def test_a_receipt_of_other_content_was_written_since_and_nobody_has_to_be_asked(
        self, shard: Shard
    ) -> None:
        shard.job("stage")
        shard.receipt(sha256="f" * 64)
        assert shard.end("a", Outcome("changed", result={"status": "mismatch"})) == ["start over"]

    def test_preflight_blames_the_footer_and_then_the_row_group_it_reads(self, shard: Shard) -> None:
        shard.job("stage")
        shard.hear("a", {"kind": "preflight"})
        assert shard.pool["a"].facts.row_group == FOOTER
        shard.hear("a", {"kind": "progress", "row_groups": 3})
        assert shard.end("a", Outcome("died", "signal 11")) == ["write seen", "stage_failed"]
        assert shard.on_disk().deaths == (3,)


class TestProve:
    def test_a_set_without_a_record_is_proven_or_goes(self, shard: Shard) -> None:
        shard.source()
        shard.job("prove")
        proof = {**PROOF, "manifest_sha256": MANIFEST}
        assert shard.done(proofs=[proof]) == ["write proven", "source_proven"]
        for verdict, effects in (("invalid", ["shard_set_invalid"]), ("unreadable", ["prove_failed"])):
            shard.source()
            shard.job("prove")
            assert shard.done(proofs=[{"verdict": verdict, "reason": "why"}]) == effects
            assert shard.on_disk().state == "seen"
        assert shard.dataset.convicted == {"a": Finding(SET_INVALID, "why")}

    @staticmethod
    def asked(shard: Shard, key: object) -> Request:
        request = shard.ask(PROVE_SET, key=key)
        shard.apply(build.consider_requests(shard.dataset))
        return request

    def test_what_is_not_on_hot_is_answered_at_once(self, shard: Shard) -> None:
        warm_only = shard.dataset.key(shard.source(state="proven", evicted=True, on_warm=True))
        for key, verdict in ((warm_only, "invalid"), ("f" * 64, "unknown")):
            answer = shard.answer(self.asked(shard, key))
            assert answer is not None and answer["verdict"] == verdict

    @pytest.mark.parametrize(
        ("proof", "effects", "verdict"),
        [
            ({"manifest_sha256": MANIFEST}, ["answer verdict"], "proven"),
            ({"manifest_sha256": "other", "cached": True}, ["answer verdict"], "unreadable"),
            ({"manifest_sha256": "other"}, ["shard_set_invalid", "start over", "answer verdict"], "invalid"),
            ({"verdict": "invalid"}, ["shard_set_invalid", "start over", "answer verdict"], "invalid"),
            ({"verdict": "unreadable"}, ["answer verdict"], "unreadable"),
            ({"verdict": "unreadable", "missing": True}, [], None),
        ],
    )
    def test_a_proof_that_was_asked_for_is_answered_once_the_record_is_right(
        self, shard: Shard, proof: dict[str, Any], effects: list[str], verdict: str | None
    ) -> None:
        source = shard.source(state="proven")
        requests = [self.asked(shard, source.key) for _ in range(2)]
        assert list(shard.dataset.to_prove) == ["a"]
        shard.job("prove")
        answers = [each for each in effects if each.startswith("answer")]
        assert shard.done(proofs=[{**PROOF, **proof}]) == effects + answers
        for request in requests:
            assert (shard.answer(request) or {}).get("verdict") == verdict
        assert waits(shard) == (verdict is None)

    def test_a_set_that_is_wrong_on_hot_and_right_on_warm_is_brought_back(self, warm_shard: Shard) -> None:
        warm_shard.source(state="synced", on_warm=True)
        warm_shard.job("prove")
        effects = warm_shard.done(proofs=[{**PROOF, "verdict": "invalid", "reason": "why"}])
        assert effects == ["shard_set_invalid", "write synced", "shard_set_lost"]
        assert warm_shard.on_disk().evicted


class TestQuarantine:
    def test_a_file_is_set_aside_before_its_event(self, shard: Shard) -> None:
        shard.source(state="building")
        shard.dataset.convicted["a"] = Finding("page_corrupt", "d", 2, "text", {"needed_bytes": 7})
        task = shard.task("quarantine", "a")
        assert (task["kind"], task["reason"]["row_group"], task["reason"]["needed_bytes"]) == (
            "parquet",
            2,
            7,
        )
        shard.job("quarantine")
        assert shard.done(folder="f") == ["write quarantined", "source_quarantined"]
        source = shard.on_disk()
        assert (source.reason, source.column) == ("page_corrupt", "text")
        ((_, fields),) = shard.events.all
        assert (fields["folder"], fields["needed_bytes"]) == ("f", 7)
        assert not shard.dataset.convicted

    def test_a_wrong_set_is_set_aside_and_its_source_stays_as_it_is(self, shard: Shard) -> None:
        source = shard.source()
        key = shard.dataset.key(source)
        shard.state.hot.published.add(key[:16])
        shard.dataset.convicted["a"] = Finding(SET_INVALID, "why")
        task = shard.task("quarantine", "a")
        assert (task["kind"], task["reason"]["key"]) == ("shards", key)
        shard.job("quarantine")
        assert shard.done(folder="f") == []
        assert not shard.dataset.convicted and key[:16] not in shard.state.hot.published
        assert shard.on_disk() == source

    def test_one_that_could_not_be_set_aside_keeps_its_finding(self, shard: Shard) -> None:
        shard.source(state="building")
        shard.dataset.convicted["a"] = Finding("page_corrupt")
        shard.job("quarantine")
        assert shard.end("a", Outcome("storage", "EIO")) == ["quarantine_failed"]
        assert list(shard.dataset.convicted) == ["a"] and waits(shard)

    def test_a_full_state_disk_is_what_it_waits_for(self, shard: Shard) -> None:
        shard.source(state="building")
        shard.dataset.convicted["a"] = Finding("page_corrupt")
        shard.job("quarantine")
        shard.end("a", Outcome("disk_full", "ENOSPC"))
        ((_, fields),) = shard.events.all
        assert fields["place"] == "state"


class TestCleaning:
    def test_a_released_file_is_removed_and_its_source_waits_for_that(self, shard: Shard) -> None:
        source = shard.source(state="proven")
        released = shard.apply(take(shard.dataset, Action("release", "a")))
        assert released == ["write released", "source_released"]
        assert list(shard.state.hot.litter) == [shard.dataset.parquet(source)]
        assert busy(shard.dataset) == {"a": "sweep"}
        shard.start()
        shard.look(parquet=(parquet_name(source),))
        assert list(shard.state.hot.litter) == [shard.dataset.parquet(source)], "a crash forgets no file"

    def test_a_source_waits_while_what_was_its_is_being_removed(self, shard: Shard) -> None:
        source = shard.source(state="staged")
        shard.dataset.discard_parquet(source)
        assert busy(shard.dataset) == {"a": "sweep"}
        sweeper = shard.state.hot.sweeper
        shard.job("sweep", shard.state.hot.sweeper)
        assert shard.pool.tasks[sweeper]["remove"] == [shard.dataset.parquet(source)]
        assert busy(shard.dataset) == {"a": "sweep"}
        assert shard.end(sweeper, Outcome("storage", "EIO")) == ["alert sweep_failed"]
        assert busy(shard.dataset) == {"a": "sweep"}, "it is tried again"
        shard.job("sweep", shard.state.hot.sweeper)
        failed = {shard.dataset.parquet(source): "EIO"}
        assert shard.done(sweeper, failed=failed) == ["alert sweep_failed"]
        assert busy(shard.dataset) == {"a": "sweep"}, "what is there still is tried again"
        shard.job("sweep", shard.state.hot.sweeper)
        assert shard.done(sweeper, failed={}) == []
        assert busy(shard.dataset) == {}

    def test_once_gives_up_what_cannot_be_removed(self, make_shard: MakeShard) -> None:
        shard = make_shard(once=True)
        shard.state.hot.discard("/x")
        with pytest.raises(UnavailableError):
            for _ in range(9):
                shard.job("sweep", shard.state.hot.sweeper)
                shard.end(shard.dataset.hot.sweeper, Outcome("storage", "EIO"))


class TestTokenizer:
    @pytest.fixture
    def shard(self, make_shard: MakeShard) -> Shard:
        """Two files that are staged, enough to train on."""
        shard = make_shard()
        shard.look()
        for path in "ab":
            shard.source(path, "staged")
            shard.receipt(path)
        shard.dataset.pinning.listing = Listing("prose", (("a", 1 << 20), ("b", 1 << 20)), True, "")
        shard.situation()
        return shard

    @staticmethod
    def files(shard: Shard) -> list[str]:
        training = shard.dataset.pinning.training
        assert training is not None
        return [path for path, _ in training.files]

    def test_the_dataset_is_pinned_to_what_it_was_trained_on(self, shard: Shard) -> None:
        assert tokenizer.task_of(shard.dataset)
        job = shard.job("tokenizer", tokenizer.SUBJECT)
        shard.hear(job.subject, {"kind": "progress", "percent": 40})
        shard.hear(job.subject, {"kind": "progress", "reading": "a.parquet", "bytes": 5})
        assert "40 %" in shard.status()["text"]
        effects = shard.done(job.subject, **FROZEN, trained_on=list(job.facts.files))
        assert effects == ["WritePin", "dataset_pinned"]
        trained_on = shard.data.pin().tokenizer_trained_on
        assert [path for path, _ in trained_on or ()] == self.files(shard)
        assert not tokenizer.task_of(shard.dataset)

    def test_files_that_do_not_decode_or_changed_are_passed_over_and_it_is_trained_again(
        self, shard: Shard
    ) -> None:
        job = shard.job("tokenizer", tokenizer.SUBJECT)
        file = next(iter(job.facts.files))
        flaw = {"file": file, "reason": "page_corrupt", "detail": "", "row_group": 1, "column": "text"}
        assert shard.done(job.subject, bad=[flaw]) == []
        assert list(shard.dataset.convicted) == [self.files(shard)[0]]
        shard.dataset.convicted.clear()
        job = shard.job("tokenizer", tokenizer.SUBJECT)
        assert shard.done(job.subject, changed=[file]) == ["Dispute", "start over"]
        assert shard.dataset.pinning.pin is None

    def test_a_file_that_left_meanwhile_pins_nothing(self, shard: Shard) -> None:
        job = shard.job("tokenizer", tokenizer.SUBJECT)
        shard.source(self.files(shard)[0])
        assert shard.done(job.subject, **FROZEN, trained_on=list(job.facts.files)) == []

    def test_a_tokenizer_that_cannot_be_had_ends_the_daemon_and_other_failures_are_tried_again(
        self, shard: Shard
    ) -> None:
        shard.job("tokenizer", tokenizer.SUBJECT)
        assert shard.end(tokenizer.SUBJECT, Outcome("killed", "why")) == ["tokenizer_failed"]
        assert shard.dataset.retries.not_before[tokenizer.SUBJECT] < math.inf
        shard.job("tokenizer", tokenizer.SUBJECT)
        with pytest.raises(DataError):
            shard.end(tokenizer.SUBJECT, Outcome("again", "why", code=DataError.exit_code))


class TestRecordActions:
    def test_a_new_receipt_begins_a_record_and_other_content_starts_one_over(self, shard: Shard) -> None:
        shard.receipt()
        assert shard.apply(take(shard.dataset, Action("restart", "a"))) == ["write seen"]
        shard.receipt(sha256="f" * 64)
        shard.dataset.convicted["a"] = Finding("page_corrupt")
        assert shard.apply(take(shard.dataset, Action("restart", "a"))) == ["start over"]
        assert shard.on_disk().sha256 == "f" * 64 and not shard.dataset.convicted

    def test_the_set_of_a_content_that_was_replaced_stays_under_another_name(self, shard: Shard) -> None:
        proven = shard.source(state="proven")
        shard.receipt(sha256="f" * 64)
        effects = ["write proven", "source_changed_after_build", "start over"]
        assert shard.apply(take(shard.dataset, Action("replace", "a"))) == effects
        (former,) = shard.dataset.sources.formers
        assert shard.on_disk(former).key == proven.key
        assert shard.on_disk().formers == ((proven.sha256, proven.size),)

    def test_a_duplicates_own_file_goes(self, shard: Shard) -> None:
        source = shard.source(state="staged")
        assert shard.apply(take(shard.dataset, Action("duplicate", "a", "b"))) == [
            "write duplicate",
            "source_duplicate",
        ]
        assert list(shard.state.hot.litter) == [shard.dataset.parquet(source)]

    def test_what_cannot_be_had_is_quarantined_with_a_finding(self, shard: Shard) -> None:
        shard.receipt(state="given_up")
        assert shard.apply(take(shard.dataset, Action("give_up", "a"))) == [
            "write quarantined",
            "OpenFinding",
        ]
        assert shard.data.reasons()["a"]["reason"] == "download_failed"
        assert shard.events.words == ["source_quarantined"]
        shard.source("b", "seen", former="x")
        assert shard.apply(take(shard.dataset, Action("give_up_content", "b"))) == [
            "write quarantined",
            "content_gone",
        ]


def test_what_the_schedule_begins_is_a_job_with_the_disk_it_is_meant_for(shard: Shard) -> None:
    shard.source(state="proven")
    task = shard.task("prove", "a")
    assert [disk["device"] for disk in task["disks"]] == [7]
    assert task["sets"][0]["key"] == shard.on_disk().key
    shard.job("prove", work=SourceWork())
    assert shard.dataset.doing("prove") == ["a"] and not shard.state.is_idle()
