"""What the end of a worker makes true for the train supervisor, and what warm's trouble leads to."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.kit.process import ProcessId
from stoker.kit.workers.parent import WorkerExit
from stoker.plan.timelines import Timeline, read_timelines
from stoker.store.log import ChainedLog
from stoker.supervise import actions as do
from stoker.supervise.health.liveness import Stillness
from stoker.supervise.health.trainer_protocol import TrainerView
from stoker.supervise.mirror.inventory import Checkpoints, MirrorState
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.run.record import Heldout
from stoker.supervise.state import Phase, RunState
from stoker.supervise.trainer import Trainer
from stoker.supervise.trainer_kind import EXTERNAL
from stokerd.supervision.jobs import ACTIVITIES
from stokerd.supervision.jobs.proofs import BEGUN_WITH
from stokerd.supervision.run import Counted, Run
from stokerd.supervision.trainer.control import TrainerControl
from support.pipelines import make_pipeline
from support.run_ground import NO_TIMINGS

HERE, NAME, DIGEST = Mirrored(0, 30, "ab" * 4, "r"), "step-000000030", "ab" * 32
SETS = do.Job("sets", {"a": "ma", "b": "mb", "c": "mc"})
HELDOUT = do.Job("heldout", ({"a": "ma"}, 400, 10, ""))
COPY = Mirrored(0, 40, "00000040", run_id="r")
LOOK, MUST = do.Job("sync", need="try"), do.Job("sync", need="wait")


def proof(verdict: str, **words: Any) -> dict[str, Any]:
    return {"verdict": verdict, "reason": "", "body": None, "digest": "", **words}


def listing(*copies: Mirrored, foreign: tuple[str, ...] = (), timelines: str | None = None) -> dict[str, Any]:
    found = {"copies": [asdict(one) for one in copies], "foreign": foreign, "timelines": timelines}
    return {**found, "gone": []}


class Warm:
    """A mirrored run of which one checkpoint, of step 30, is proven; and its data's words."""

    def __init__(self, home: Path) -> None:
        pipeline = make_pipeline(home, warm=str(home / "warm")).pipeline
        pipeline.layout.create()
        layout = pipeline.layout.run("main")
        layout.create()
        record = SimpleNamespace(identity=SimpleNamespace(run_id="r"))
        context = SimpleNamespace(pipeline=pipeline, events=self)
        self.data: list[tuple[str, ...]] = []
        data = SimpleNamespace(
            whole=lambda *words: self.data.append(("whole", *words)) or True,
            another=lambda *words: self.data.append(("another", *words)),
            not_whole=lambda *words: self.data.append(("not whole", *words)),
        )
        store = SimpleNamespace(record=record, fruitful=lambda: self.data.append(("fruitful",)))
        self.run = Run(
            cast(Any, context),
            RunState(Phase.PROVING, 0.0, proofs={NAME: "proven"}),
            cast(Any, store),
            Checkpoints(pipeline),
            MirrorState(layout.mirror, pipeline.layout.quarantine),
            *cast(Any, (None, data, NO_TIMINGS, None)),
        )
        body = {"step": 30, "timeline": 0, "files": {}, "position": [0, 0], "run_id": "r"}
        self.run.checkpoints.path(NAME).mkdir()
        self.run.checkpoints.proven(NAME, body, DIGEST)
        self.words: list[tuple[str, dict[str, Any]]] = []

    def record(self, event: str, **fields: Any) -> None:
        self.words.append((event, fields))

    def ended(self, job: do.Job, result: dict[str, Any] | None, reason: str = "") -> list[str]:
        """The event words at the end of a job with this result, or none for this reason."""
        self.words.clear()
        end = WorkerExit("finished", result=result)
        if result is None:
            end = WorkerExit("failed", error={"message": reason})
        ACTIVITIES[job.kind].end(self.run, job, end)
        return [event for event, _ in self.words]

    @property
    def copies(self) -> tuple[Mirrored, ...]:
        assert self.run.mirror is not None
        return self.run.mirror.copies


@pytest.fixture
def warm(tmp_path: Path) -> Warm:
    return Warm(tmp_path)


NEWER = "step-000000040"
BODY = {"step": 40, "timeline": 0, "files": {}, "position": [0, 0], "run_id": "r"}


def test_only_a_checkpoint_that_is_found_wrong_is_moved_away(warm: Warm) -> None:
    warm.run.checkpoints.path(NEWER).mkdir()
    newer = do.Job("checkpoint", NEWER)
    assert warm.ended(newer, proof("proven", body=BODY, digest="cd")) == ["checkpoint_proven"]
    assert warm.run.newest is not None and warm.run.newest.step == 40
    assert warm.ended(newer, None, "it hung") == ["checkpoint_unreadable"]
    assert warm.words[0][1]["reason"] == "no proof: it hung"
    assert warm.run.state.proofs[NEWER] == "unreadable" and warm.run.checkpoints.path(NEWER).exists()
    assert warm.ended(newer, proof("invalid", reason="a bit")) == ["checkpoint_quarantined"]
    assert not warm.run.checkpoints.path(NEWER).exists()
    assert (warm.run.newest.step, warm.run.counted.quarantined) == (30, 1)


def test_the_time_of_the_newest_checkpoint_goes_back_with_it(warm: Warm) -> None:
    """As at a rollback: the time of a checkpoint that is given up says nothing about the others."""
    for name, body, at in ((NAME, {**BODY, "step": 30}, 1000.0), (NEWER, BODY, 2000.0)):
        (file := warm.run.checkpoints.path(name)).mkdir(exist_ok=True)
        (file / "checkpoint.json").touch()
        os.utime(file / "checkpoint.json", (at, at))
        warm.run.checkpoints.proven(name, body, "cd")
        assert warm.run.newest is not None and warm.run.newest.sealed_at == at
    shutil.rmtree(warm.run.checkpoints.path(NEWER))
    warm.run.checkpoints.forget_missing()
    assert warm.run.newest is not None and warm.run.newest.sealed_at == 1000.0


def test_a_set_is_whole_another_or_not_whole_and_one_that_was_mended_forgives_launches(warm: Warm) -> None:
    digests = {"a": "ma", "c": "md"}
    proofs = [proof("proven", manifest_sha256=digests.get(key)) for key in SETS.subject]
    proofs[1] = proof("invalid", reason="x")
    assert warm.ended(SETS, {"proofs": proofs}) == []
    assert warm.data == [
        ("whole", "a", "ma"),
        ("fruitful",),
        ("not whole", "b", "invalid: x"),
        ("another", "c", "its manifest's sha256 is md, recorded is mc"),
    ]
    warm.data.clear()
    warm.ended(do.Job("sets", {"a": "ma"}), None, "it hung")
    assert warm.data == [("not whole", "a", "not proven: it hung")]


def test_held_out_windows_are_taken_as_they_are_and_copied_again_after_a_failure(warm: Warm) -> None:
    assert warm.ended(HELDOUT, None, "full") == ["heldout_failed"]
    assert BEGUN_WITH.of(warm.run).heldout is None and warm.run.state.retry_at > 0.0
    windows = {"sha256": "ab", "windows": 6, "dtype": "uint16", "tokens": 60}
    warm.ended(HELDOUT, windows)
    assert BEGUN_WITH.of(warm.run).heldout == Heldout("ab", 6, "uint16", 60)


def test_a_look_that_a_launch_needs_is_waited_for_and_said_once(warm: Warm) -> None:
    words = [*warm.ended(MUST, None, "not mounted"), *warm.ended(MUST, None, "not mounted")]
    assert words == ["mirror_failed", "mirror_awaited"]
    assert (warm.run.state.look, warm.run.state.is_warm_awaited) == ("", True)
    assert warm.run.counted.mirror_failures == 2
    newest = "(step 30 is the newest proven here): not mounted"
    assert f"waiting for warm, which may hold a newer checkpoint {newest}" in warm.run.state.retry_doing
    assert warm.ended(MUST, listing(COPY)) == ["mirror_recovered"]
    assert warm.run.state.look == "done" and warm.copies == (COPY,)


@pytest.mark.parametrize("job", [LOOK, do.Job("fetch", COPY, need="try")])
def test_a_look_that_may_fail_and_a_rollbacks_fetch_are_not_waited_for(warm: Warm, job: do.Job) -> None:
    warm.ended(job, None, "away")
    state = warm.run.state
    assert (state.look, state.retry_at) == ("failed", 0.0)
    assert state.look_problem == "the mirror cannot be used now: away; ask again later"


def test_what_goes_on_beside_everything_is_only_reported(warm: Warm) -> None:
    before = warm.run.state
    assert warm.ended(do.Job("sync", HERE), None, "full") == ["mirror_failed"]
    assert warm.run.state == before
    assert warm.ended(do.Job("sync", HERE), listing(HERE) | {"replaced": False}) == [
        "mirror_recovered",
        "checkpoint_mirrored",
    ]
    (copy,) = warm.copies
    pruned = listing() | {"gone": [copy.name]}
    assert warm.ended(do.Job("sync", (copy.name,)), pruned) == ["mirror_pruned"]
    assert warm.copies == ()


def test_a_checkpoint_here_that_differs_is_trusted_no_longer(warm: Warm) -> None:
    assert warm.ended(do.Job("sync", HERE), listing() | {"source_bad": "x"}) == ["mirror_source_differs"]
    assert (warm.run.newest, warm.run.state.proofs) == (None, {})


def test_a_fetched_copy_is_proven_here_and_a_bad_one_is_never_asked_for_again(warm: Warm) -> None:
    fetch = do.Job("fetch", COPY, need="try")
    warm.ended(LOOK, listing(COPY))
    bad = {"state": "bad", "reason": "a bit"}
    assert warm.ended(fetch, bad) == ["mirror_copy_bad"]
    assert warm.copies == ()
    warm.run.checkpoints.path(NEWER).mkdir()
    fetched = {
        "state": "fetched",
        "proof": proof("proven", body=BODY, digest="cd"),
        "logs": [],
        "heldout": "brought",
    }
    assert warm.ended(fetch, fetched) == ["checkpoint_fetched", "run_file_restored"]
    assert warm.run.newest is not None and warm.run.newest.step == 40
    assert warm.run.state.proofs[NEWER] == "proven"
    assert warm.run.checkpoints.kept == {NEWER}


def test_the_logs_of_steps_and_of_launches_come_back_with_a_copy(warm: Warm) -> None:
    logs = ACTIVITIES["fetch"].task(warm.run, do.Job("fetch", COPY))["logs"]
    assert [Path(log).name for log in logs] == [
        *("metrics.jsonl", "launches.jsonl", "runs.jsonl", "evaluations.jsonl")
    ]


def test_lost_rollbacks_come_back_before_anything_is_chosen(warm: Warm, tmp_path: Path) -> None:
    log = ChainedLog(tmp_path / "copy.jsonl")
    log.append(Timeline(1, 0, 10, (), "operator").body())
    log.close()
    found = listing(foreign=("another",), timelines=(tmp_path / "copy.jsonl").read_text())
    words = [*warm.ended(LOOK, found), *warm.ended(LOOK, found)]
    assert words == ["run_file_restored"]
    assert read_timelines(warm.run.layout.timelines).current == 1


def test_a_trainer_is_asked_to_stop_and_a_guard_that_does_not_see_to_it_is_killed(tmp_path: Path) -> None:
    guard, events = list[str](), list[str]()
    launch = Launch("l1", 0, None, 0, tmp_path / "socket")
    trainer = Trainer(launch, ProcessId(1, 1), TrainerView("l1", 0.0, 0.0), Stillness(0.0, 0.0), 0.0)
    told: Any = SimpleNamespace(events=SimpleNamespace(record=lambda event, *_, **__: events.append(event)))
    run = Run(*cast(Any, (told, RunState(Phase.TRAINING, 0.0, trainer=trainer), *[None] * 7)))
    control = TrainerControl(run)
    words: Any = SimpleNamespace(pid=1, stop=lambda: guard.append("stop"), kill=lambda: guard.append("kill"))
    control.guarded = words
    control.stop(do.StopTrainer())
    control.stop(do.StopTrainer(kill_guard=True))
    assert (guard, events) == (["stop", "kill"], ["trainer_stop_asked", "guard_stuck"])
    assert run.state.trainer is not None and run.state.trainer.stop_asked_at is not None


def test_without_a_trainer_a_supervisor_that_begins_again_does_so_from_cleaning(warm: Warm) -> None:
    """A rollback that was asked for is made then; what the metrics count goes on."""
    run = warm.run
    run.change(rollbacks=("r1",), failures=2, is_gate_open=True, is_settled=True)
    run.counted.restarts["killed"] += 3
    run.counted.trained_tokens = 77
    (path := run.checkpoints.path(NEWER)).mkdir()
    data = json.dumps(BODY).encode()
    (path / "checkpoint.json").write_bytes(data)
    run.checkpoints.proven(NEWER, BODY, hashlib.sha256(data).hexdigest())
    body = json.loads(json.dumps(run.handed_over()))
    run.counted, run.state = Counted(), RunState(Phase.CLEANING, 0.0)
    run.checkpoints.forget(NEWER)
    run.adopt(body)
    assert run.state.phase is Phase.CLEANING
    assert (run.state.rollbacks, run.state.failures, run.state.is_gate_open) == (("r1",), 2, True)
    assert run.newest is not None and run.newest.step == 40
    assert run.state.proofs == {} and not run.state.is_settled
    run.counted.restarts["killed"] += 1
    assert (run.counted.restarts["killed"], run.counted.trained_tokens) == (4, 77)


def test_the_launch_of_an_external_trainer_is_read_on_after_an_upgrade_that_names_it_anew(warm: Warm) -> None:
    launch = Launch("l1", 0, None, 0, Path("socket"))
    one = Trainer(launch, ProcessId(1, 1), TrainerView("l1", 0.0, 0.0), Stillness(0.0, 0.0), 0.0)
    warm.run.state = RunState(Phase.TRAINING, 0.0, trainer=one)
    body = json.loads(json.dumps(warm.run.handed_over()))
    del body["state"]["trainer"]["launch"]["reads_output"]
    body["state"]["trainer"]["launch"]["is_foreign"] = True  # as the version before wrote it
    warm.run.kind = EXTERNAL
    warm.run.adopt(body)
    assert warm.run.state.live is not None and warm.run.state.live.is_read
