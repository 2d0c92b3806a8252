"""What the end of a worker makes true for the train supervisor, and what warm's trouble leads to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.kit.process.process_id import ProcessId
from stoker.kit.workers.parent import WorkerExit
from stoker.plan.timelines import Timeline, read_timelines
from stoker.store.log import ChainedLog
from stoker.supervise import actions as do
from stoker.supervise.health.evidence import Stillness
from stoker.supervise.health.trainer_protocol import TrainerView
from stoker.supervise.mirror.inventory import Checkpoints
from stoker.supervise.mirror.state import MirrorState
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.run.record import Heldout
from stoker.supervise.state import Phase, RunState, Trainer
from stokerd.supervision.activities import ACTIVITIES, on_end
from stokerd.supervision.data import ANOTHER
from stokerd.supervision.mirror import MirrorEffects
from stokerd.supervision.run import Run
from stokerd.supervision.trainer import TrainerControl
from support.pipelines import make_pipeline

PROOF = do.ProveCheckpoint("step-000000030")
SETS = do.ProveSets({"a": "ma", "b": "mb"})
HELDOUT = do.CopyHeldout({"a": "ma"}, 400)
HERE, NAME, DIGEST = Mirrored(0, 30, "ab" * 4, "r"), PROOF.name, "ab" * 32
COPY = Mirrored(0, 40, "00000040", run_id="r")
FETCH = do.FetchCopy(COPY)
LOOK, MUST = do.ListMirror(is_awaited=True), do.ListMirror(is_awaited=True, must=True)


def ended(result: dict[str, Any] | None, reason: str = "") -> WorkerExit:
    error = None if result is not None else {"message": reason}
    return WorkerExit("finished" if result is not None else "failed", 0, None, result, error, 0)


def proof(verdict: str, **words: Any) -> dict[str, Any]:
    return {"verdict": verdict, "reason": "", "body": None, "digest": "", **words}


@pytest.mark.parametrize(
    ("job", "result", "expected"),
    [
        (PROOF, proof("proven", body={"step": 30}, digest="ab"),
         do.CheckpointProved(PROOF.name, "proven", "", {"step": 30}, "ab")),
        (PROOF, proof("invalid", reason="a bit"),
         do.CheckpointProved(PROOF.name, "invalid", "a bit")),
        (PROOF, None, do.CheckpointProved(PROOF.name, "unreadable", "no proof: …")),
        (SETS, {"proofs": [proof("proven", manifest_sha256="ma"), proof("invalid", reason="x")]},
         do.SetsProved(SETS.sets, {"a": "", "b": "invalid: x"})),
        (SETS, {"proofs": [proof("proven", manifest_sha256="ma"), proof("proven", manifest_sha256="mc")]},
         do.SetsProved(SETS.sets, {"a": "", "b": f"{ANOTHER} is mc, recorded is mb"})),
        (SETS, None, do.SetsProved(SETS.sets, dict.fromkeys("ab", "not proven: …"))),
        (HELDOUT, {"sha256": "ab", "windows": 6, "dtype": "uint16", "tokens": 60},
         do.HeldoutCopied(Heldout("ab", 6, "uint16", 60))),
        (HELDOUT, {"sha256": "", "windows": 0, "dtype": "uint16", "tokens": 0}, do.HeldoutCopied()),
        (HELDOUT, None, do.HeldoutCopied(problem="…")),
        (do.CopyToMirror(HERE), {"set_aside": None}, do.CopyMade(HERE)),
        (do.CopyToMirror(HERE), {"source_bad": "x"}, do.SourceDiffers(NAME, "x")),
        (do.PruneMirror(("t0/x",)), {"gone": ["t0/x"]}, do.CopiesPruned(("t0/x",))),
        (FETCH, {"state": "fetched", "proof": proof("proven", body={"step": 40}, digest="cd"), "logs": ["m"]},
         do.CopyFetched(FETCH, {"step": 40}, "cd", ("m",))),
        (FETCH, {"state": "bad", "reason": "a bit", "set_aside": "/w/.trash/x"},
         do.CopyBad(COPY.name, "bad", "a bit", "/w/.trash/x")),
        (FETCH, None, do.MirrorFailed(FETCH, "…")),
        (do.RestoreHeldout("ab"), {"heldout": "brought"}, do.HeldoutRestored("brought")),
    ],
)  # fmt: skip
def test_the_end_of_a_worker_says_what_is_true_now(
    job: do.Job, result: dict[str, Any] | None, expected: do.Action
) -> None:
    assert on_end(job, ended(result, "…")) == expected


def test_a_worker_that_a_launch_can_do_without_is_given_up_sooner() -> None:
    assert ACTIVITIES[do.ListMirror].silent_s(LOOK) < ACTIVITIES[do.ListMirror].silent_s(MUST)


class Warm:
    """A mirrored run of which one checkpoint, of step 30, is proven."""

    def __init__(self, home: Path) -> None:
        pipeline = make_pipeline(home, warm=str(home / "warm")).pipeline
        pipeline.layout.create()
        layout = pipeline.layout.run("main")
        layout.create()
        record = SimpleNamespace(identity=SimpleNamespace(run_id="r"))
        self.run = Run(
            pipeline,
            RunState(phase=Phase.PROVING, proofs={NAME: "proven"}),
            cast(Any, SimpleNamespace(record=record)),
            Checkpoints(pipeline),
            MirrorState(layout.mirror, pipeline.layout.quarantine),
            *cast(Any, (None, None, None)),
        )
        body = {"step": 30, "timeline": 0, "files": {}, "position": [0, 0], "run_id": "r"}
        self.run.checkpoints.path(NAME).mkdir()
        self.run.checkpoints.proven(NAME, body, DIGEST, 0.0)
        self.words: list[tuple[str, dict[str, Any]]] = []
        self.failures = 0
        meters: Any = SimpleNamespace(mirror_failures=self)
        self.effects = MirrorEffects(self.run, cast(Any, self), meters)

    def record(self, event: str, level: str = "info", **fields: Any) -> None:
        self.words.append((event, fields))

    def inc(self) -> None:
        self.failures += 1

    def apply(self, *actions: do.Action) -> list[str]:
        """The event words of these actions."""
        self.words.clear()
        for action in actions:
            self.effects.apply(action)
        return [event for event, _ in self.words]


@pytest.fixture
def warm(tmp_path: Path) -> Warm:
    return Warm(tmp_path)


def test_a_look_that_a_launch_needs_is_waited_for_and_said_once(warm: Warm) -> None:
    away = do.MirrorFailed(MUST, "not mounted")
    assert warm.apply(away, away) == ["mirror_failed", "mirror_awaited"]
    assert "step 30 is the newest proven here" in warm.words[-1][1]["message"]
    assert (warm.run.state.look, warm.run.state.look_failures, warm.failures) == ("", 2, 2)
    assert "waiting for warm, which may hold a newer checkpoint" in warm.run.state.retry_doing
    there = do.MirrorListed((COPY,), (), None, is_awaited=True)
    assert warm.apply(there) == ["mirror_recovered"]
    assert warm.run.state.look == "done" and warm.effects.mirror.copies == (COPY,)


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        (LOOK, "the mirror cannot be looked at now: away; ask again later"),
        (do.FetchCopy(COPY, is_for_rollback=True),
         f"{COPY.name} cannot be fetched from the mirror now: away"),
    ],
)  # fmt: skip
def test_a_look_that_may_fail_and_a_rollbacks_fetch_are_not_waited_for(
    warm: Warm, job: do.MirrorJob, problem: str
) -> None:
    warm.apply(do.MirrorFailed(job, "away"))
    assert (warm.run.state.look, warm.run.state.look_problem, warm.run.state.retry_at) == (
        "failed",
        problem,
        0.0,
    )


def test_what_goes_on_beside_everything_is_only_reported(warm: Warm) -> None:
    before = warm.run.state
    assert warm.apply(do.MirrorFailed(do.CopyToMirror(HERE), "full")) == ["mirror_failed"]
    assert warm.run.state == before


def test_a_checkpoint_here_that_differs_is_trusted_no_longer(warm: Warm) -> None:
    assert warm.apply(do.SourceDiffers(NAME, "x")) == ["mirror_source_differs"]
    assert (warm.run.newest, warm.run.state.proofs) == (None, {})


def test_a_fetched_copy_is_proven_here_and_a_bad_one_is_never_asked_for_again(warm: Warm) -> None:
    warm.apply(do.MirrorListed((COPY,), (), None, is_awaited=True))
    assert warm.apply(do.CopyBad(COPY.name, "bad", "a bit", "/w/x")) == ["mirror_copy_bad"]
    assert warm.effects.mirror.copies == ()
    body = {"step": 40, "timeline": 0, "files": {}, "position": [0, 0], "run_id": "r"}
    warm.run.checkpoints.path("step-000000040").mkdir()
    fetched = do.CopyFetched(do.FetchCopy(COPY, is_for_rollback=True), body, "cd", ())
    assert warm.apply(fetched) == ["checkpoint_fetched"]
    assert warm.run.newest is not None and warm.run.newest.step == 40
    assert warm.run.state.proofs["step-000000040"] == "proven"
    assert warm.run.checkpoints.kept == {"step-000000040"}


def test_lost_rollbacks_come_back_before_anything_is_chosen(warm: Warm, tmp_path: Path) -> None:
    log = ChainedLog(tmp_path / "copy.jsonl")
    log.append(Timeline(1, 0, 10, (), "operator").body())
    log.close()
    found = do.MirrorListed((), ("another",), (tmp_path / "copy.jsonl").read_text(), is_awaited=True)
    assert warm.apply(found, found) == ["mirror_foreign", "timelines_restored"]
    assert read_timelines(warm.run.layout.timelines).current == 1


def test_a_trainer_is_asked_to_stop_and_a_guard_that_does_not_see_to_it_is_killed(tmp_path: Path) -> None:
    guard, events = list[str](), list[str]()
    launch = Launch("l1", 0, None, 0, tmp_path / "socket")
    trainer = Trainer(launch, ProcessId(1, 1), TrainerView.started("l1", 0.0), Stillness.started(0.0), 0.0)
    run = Run(*cast(Any, (None, RunState(phase=Phase.TRAINING, trainer=trainer), *[None] * 6)))
    told: Any = SimpleNamespace(record=lambda event, *_, **__: events.append(event))
    control = TrainerControl(cast(Any, SimpleNamespace(events=told)), run, cast(Any, None))
    words: Any = SimpleNamespace(pid=1, stop=lambda: guard.append("stop"), kill=lambda: guard.append("kill"))
    control.guard = words
    control.stop(do.StopTrainer())
    control.stop(do.StopTrainer(kill_guard=True))
    assert (guard, events) == (["stop", "kill"], ["trainer_stop_asked", "guard_stuck"])
    assert run.state.trainer is not None and run.state.trainer.stop_asked_at is not None
