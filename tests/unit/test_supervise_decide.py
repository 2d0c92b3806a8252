"""What the train supervisor does next, phase by phase; each decision is the same after the state was JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.config.schema import BackoffPolicy, Supervise
from stoker.kit.process import ProcessId
from stoker.supervise import actions as do
from stoker.supervise.actions import Leftovers
from stoker.supervise.decide import GUARD_MARGIN_S, READ_AGAIN_S, decide
from stoker.supervise.health.evidence import Evidence
from stoker.supervise.health.exits import Exit, ExitClass, GuardedEnd
from stoker.supervise.health.liveness import StepTimes, Stillness
from stoker.supervise.health.trainer_protocol import TrainerView
from stoker.supervise.observation import AskedRollback, Observation
from stoker.supervise.policy import Facts, Response, Tried
from stoker.supervise.run.gates import Gate
from stoker.supervise.run.launch_record import Launch
from stoker.supervise.state import Phase, RunState, read_state
from stoker.supervise.trainer import Trainer

NOW = 1000.0
POLICY = Supervise(
    stop_time=60.0, no_progress_launches=3, hang_limit=900.0, backoff=BackoffPolicy(first=10.0, most=300.0)
)
NEWEST, OLDER = "step-000000030", "step-000000020"
COPY = Mirrored(0, 40, "00000040", run_id="r")
ALIVE = (ProcessId(7, 70),)
SOURCE = Exit(ExitClass.KILLED, "killed by SIGKILL")


def trainer(**changes: Any) -> Trainer:
    """A trainer that resumed from step 30 and has made step 35 five seconds ago."""
    launch = Launch("l1", 0, Path("/s") / NEWEST, 30, Path("/run/x.sock"))
    since = {"spent_s": {"eval": 1.0}, "done": {"eval": 3}, "announced": {0: (6, 12)}}
    view = TrainerView("l1", NOW - 5, NOW - 5, phase="train", step=35, position=(0, 140), **since)
    times = StepTimes((1.0, 1.0), (35, NOW - 5))
    usual = Trainer(launch, ProcessId(5, 50), view, Stillness(NOW, NOW), NOW, 6, times)
    return replace(usual, **changes)


def quiet(seconds: float, still_s: float = 0.0, **changes: Any) -> Trainer:
    """A trainer that says nothing, and whose processes do nothing."""
    view = replace(trainer().view, heard_at=NOW - seconds, moved_at=NOW - seconds)
    return trainer(view=view, stillness=Stillness(NOW, NOW - still_s), **changes)


def decided(run: RunState, seen: Observation, now: float = NOW) -> tuple[do.Action, ...]:
    """The decision, which the state as JSON leads to, too."""
    actions = decide(run, seen, POLICY, now)
    assert decide(read_state(json.loads(json.dumps(run.record()))), seen, POLICY, now) == actions
    return actions


def begun(phase: Phase, **changes: Any) -> RunState:
    return replace(RunState(phase, NOW - 1), **changes)


WAIT = do.Wait("waiting for an earlier trainer to save and end", 0.2)


GUARDED, ORPHANS = Leftovers(True, True, ALIVE), Leftovers(False, True, ALIVE)
HELD = Leftovers(False, True, ())
ASKED = {"is_term_sent": True}


@pytest.mark.parametrize(
    ("left", "changes", "signal"),
    [
        (GUARDED, {}, ""),
        (GUARDED, {"since": NOW - 65}, ""),
        (GUARDED, {"since": NOW - 71}, "KILL"),
        (ORPHANS, {}, "TERM"),
        (ORPHANS, ASKED, ""),
        (ORPHANS, ASKED | {"since": NOW - 60}, "KILL"),
        (HELD, ASKED | {"since": NOW - 999}, ""),
    ],
)
def test_leftovers_are_waited_for_then_asked_then_killed(
    left: Leftovers, changes: dict[str, Any], signal: Any
) -> None:
    assert decided(begun(Phase.CLEANING, **changes), Observation(left=left)) == (
        do.ClearLeftovers(left, signal),
        WAIT,
    )


def test_no_checkpoint_is_looked_at_before_nothing_of_an_earlier_trainer_is_left() -> None:
    assert decided(begun(Phase.CLEANING), Observation()) == (do.Enter(Phase.PROVING),)


def proving(**changes: Any) -> RunState:
    return begun(Phase.PROVING, **changes)


PROVEN = {"proofs": {NEWEST: "proven"}}
LOOK, MUST = do.Job("sync", need="try"), do.Job("sync", need="wait")


@pytest.mark.parametrize(
    ("run", "seen", "first"),
    [
        (proving(), {"candidate": NEWEST},
         do.Start(do.Job("checkpoint", NEWEST), f"proving checkpoint {NEWEST}")),
        # proven again before each launch, whatever was known; the next one where it was moved away
        (proving(proofs={NEWEST: "invalid"}), {"candidate": OLDER, "newest": OLDER},
         do.Start(do.Job("checkpoint", OLDER), f"proving checkpoint {OLDER}")),
        (proving(proofs={NEWEST: "unreadable"}), {"candidate": NEWEST},
         do.Pause(READ_AGAIN_S, f"checkpoint {NEWEST} cannot be read now; trying")),
        (proving(**PROVEN), {"candidate": NEWEST}, do.Settle()),
        (proving(), {}, do.Settle()),
        (proving(), {"why_not_from_start": "none is left"}, do.End(65, "none is left")),
        (proving(**PROVEN), {"candidate": NEWEST, "is_on_history": False}, do.Enter(Phase.CLEANING)),
        # the mirror: a look that may be tried, one that must succeed, a newer copy
        (proving(**PROVEN), {"candidate": NEWEST, "look": "try"},
         do.Start(LOOK, "looking at the mirror of the checkpoints")),
        (proving(**PROVEN), {"candidate": NEWEST, "look": "wait"},
         do.Start(MUST, "looking at the mirror of the checkpoints")),
        (proving(**PROVEN, look="failed"), {"candidate": NEWEST, "look": "try"}, do.Settle()),
        (proving(**PROVEN, look="done"), {"candidate": NEWEST, "look": "wait", "newer": COPY},
         do.Start(do.Job("fetch", COPY, need="wait"), f"fetching checkpoint {COPY.name} from the mirror")),
        (proving(**PROVEN, is_settled=True), {}, do.Enter(Phase.WAITING)),
    ],
)  # fmt: skip
def test_a_run_goes_on_from_the_newest_checkpoint_that_is_whole_here_or_in_the_mirror(
    run: RunState, seen: dict[str, Any], first: do.Action
) -> None:
    assert decided(run, Observation(**seen))[0] == first


def test_a_job_is_started_once_and_the_mirrors_worker_leaves_what_no_launch_waits_for() -> None:
    proof = do.Job("checkpoint", NEWEST)
    (waits,) = decided(proving(), Observation(candidate=NEWEST, jobs=(proof,)))
    assert waits == do.Wait(f"proving checkpoint {NEWEST}")
    looking = Observation(candidate=NEWEST, look="wait")
    beside, same = replace(looking, jobs=(do.Job("sync"),)), replace(looking, jobs=(MUST,))
    assert isinstance(decided(proving(**PROVEN), beside)[0], do.Start)
    assert isinstance(decided(proving(**PROVEN), same)[0], do.Wait)


@pytest.mark.parametrize(
    ("run", "asked", "first"),
    [
        (proving(), AskedRollback("r", 0), do.MakeRollback("r")),
        (proving(), AskedRollback("r", 20, OLDER),
         do.Start(do.Job("checkpoint", OLDER), "rolling back to step 20")),
        (proving(proofs={OLDER: "proven"}), AskedRollback("r", 20, OLDER), do.MakeRollback("r")),
        (proving(proofs={OLDER: "invalid"}), AskedRollback("r", 20, OLDER, False), do.MakeRollback("r")),
        (proving(), AskedRollback("r", 20, OLDER, False), do.Start(LOOK, "rolling back to step 20")),
        (proving(look="failed"), AskedRollback("r", 20, OLDER, False), do.MakeRollback("r")),
        (proving(look="done"), AskedRollback("r", 20, OLDER, False), do.MakeRollback("r")),
        (proving(look="done"), AskedRollback("r", 40, "step-000000040", False, COPY),
         do.Start(do.Job("fetch", COPY, need="try"), "rolling back to step 40")),
        # a longer horizon, once the newest checkpoint is known
        (proving(is_settled=True, look="done"), AskedRollback("", 40, "step-000000040", False, COPY),
         do.Start(do.Job("fetch", COPY, need="try"), "rolling back to step 40")),
        (proving(is_settled=True, proofs={OLDER: "proven"}), AskedRollback("", 20, OLDER),
         do.MakeRollback("")),
    ],
)  # fmt: skip
def test_a_rollback_is_made_once_its_checkpoint_is_here_and_proven_or_cannot_be(
    run: RunState, asked: AskedRollback, first: do.Action
) -> None:
    assert decided(run, Observation(rollback=asked, look="try"))[0] == first


def ended(exit_: Exit = SOURCE, until: int | None = None, **changes: Any) -> RunState:
    one = trainer()
    launched = replace(one, launch=replace(one.launch, until=until))
    facts = {"is_settled": True, "trainer": launched, "exit": exit_, **PROVEN}
    return proving(**facts | changes)


SAVED = Exit(ExitClass.FINISHED, "exit code 0")
BAD = Exit(ExitClass.BAD_DATA, "exit code 65: a set is bad", doubts_data=True)
FULL, WRONG = Exit(ExitClass.STORAGE, "full"), Exit(ExitClass.WRONG_CONFIG, "exit code 78")
DELAY = do.Pause(10.0, "the trainer ended (killed by SIGKILL); starting")


@pytest.mark.parametrize(
    ("run", "seen", "expected"),
    [
        (ended(), {"step": 30, "fruitless": 1, "best_step": 40}, (do.AnswerEnd(1, 40, False), DELAY)),
        (ended(failures=2), {"step": 30, "fruitless": 2, "best_step": 40},
         (do.AnswerEnd(2, 40, False), replace(DELAY, seconds=40.0))),
        (ended(), {"step": 34, "fruitless": 3, "best_step": 30}, (do.AnswerEnd(0, 35, True), DELAY)),
        (ended(), {"step": 30, "fruitless": 2, "best_step": 30},  # steps without a checkpoint lead nowhere
         (do.AnswerEnd(2, 35, False), DELAY)),
        (ended(), {"step": 30, "fruitless": 2, "best_step": 40, "held": "paused"},
         (do.AnswerEnd(2, 40, False), do.Enter(Phase.WAITING))),
        (ended(), {"step": 30, "fruitless": 3, "best_step": 40, "over": "steps"},
         (do.AnswerEnd(3, 40, False), do.Enter(Phase.WAITING))),
        (ended(SAVED, until=34), {"step": 34, "best_step": 30},
         (do.AnswerEnd(0, 35, True), do.Enter(Phase.WAITING))),
        (ended(FULL), {"step": 30, "fruitless": 3, "best_step": 40},
         (do.AnswerEnd(2, 40, False), replace(DELAY, doing="the trainer ended (full); starting"))),
        (ended(WRONG), {"step": 34, "best_step": 30},
         (do.AnswerEnd(0, 35, True), do.End(78, "the trainer refuses"))),
        (ended(BAD), {"step": 34, "best_step": 30},
         (do.AnswerEnd(0, 35, True, doubts_data=True),
          replace(DELAY, doing="the trainer ended (exit code 65: a set is bad); starting"))),
    ],
)  # fmt: skip
def test_a_launchs_end_is_answered_once_the_newest_checkpoint_is_known(
    run: RunState, seen: dict[str, Any], expected: tuple[do.Action, ...]
) -> None:
    actions = decided(run, Observation(**seen))
    if isinstance(expected[-1], do.End):
        assert isinstance(actions[-1], do.End) and actions[-1].exit_code == expected[-1].exit_code
    else:
        assert actions[-1] == expected[-1]
    assert isinstance(actions[0], do.AnswerEnd) and run.exit is not None
    assert actions[0].kind == run.exit.kind
    assert replace(actions[0], kind="", response=Response()) == expected[0]


def test_memory_that_others_took_is_waited_for_as_long_as_a_delay_may_be() -> None:
    full = replace(Evidence(phase="train", headroom_bytes=100), headroom_after_bytes=10, micro_batch=8)
    run = ended(Exit(ExitClass.HOST_MEMORY, "OOM"), trainer=trainer(evidence=full))
    answer, _, pause = decided(run, Observation(step=30, fruitless=1))
    assert isinstance(answer, do.AnswerEnd) and answer.response == Response(Tried(waited=True), waits=True)
    assert isinstance(pause, do.Pause) and pause.seconds == 300.0
    answer, *_ = decided(run, Observation(step=30, fruitless=1, facts=Facts(tried=Tried(waited=True))))
    assert isinstance(answer, do.AnswerEnd) and answer.response.micro_batch == 4


@pytest.mark.parametrize("exit_", [SOURCE, BAD])
def test_launches_without_a_new_proven_checkpoint_halt_the_run(exit_: Exit) -> None:
    answer, after = decided(ended(exit_), Observation(step=30, fruitless=3, best_step=30))
    assert isinstance(answer, do.AnswerEnd) and after == do.Enter(Phase.CLEANING)
    assert (answer.fruitless, answer.kind, answer.doubts_data) == (3, exit_.kind, exit_.doubts_data)
    halt = "3 launches in a row left no new proven checkpoint; the last one: "
    assert answer.response.halt.startswith(halt)
    again = decided(waiting(), Observation(newest=NEWEST, fruitless=3))
    assert again == (do.Halt("3 launches in a row left no new proven checkpoint"),)


def test_a_halted_run_waits_for_an_operator_and_a_paused_one_too() -> None:
    run, seen = begun(Phase.HALTED), Observation(held="halted: why", is_halted=True)
    assert decided(run, seen) == (do.Wait("halted: why"),)
    assert decided(run, replace(seen, is_once=True)) == (do.End(70),)
    assert decided(run, replace(seen, is_once=True, is_halted=False)) == (do.End(75),)
    assert decided(run, replace(seen, held="")) == (do.Enter(Phase.CLEANING),)
    assert decided(replace(run, rollbacks=("r",)), seen) == (do.Enter(Phase.CLEANING),)
    assert decided(begun(Phase.TRAINING, trainer=trainer()), seen) == (do.StopTrainer(),)


def test_a_delay_is_waited_for_unless_a_stop_or_a_rollback_is_asked() -> None:
    run = begun(Phase.BACKOFF, retry_at=NOW + 7.4, retry_doing="starting")
    assert decided(run, Observation()) == (do.Wait("starting, again in 7 s", 1.0),)
    assert decided(run, Observation(is_stopping=True)) == (do.End(0),)
    assert decided(replace(run, retry_at=0.0), Observation()) == (do.Enter(Phase.WAITING),)
    assert decided(replace(run, retry_at=0.0, rollbacks=("r",)), Observation()) == (do.Enter(Phase.CLEANING),)


def waiting(**changes: Any) -> RunState:
    return begun(Phase.WAITING, **{"resume": NEWEST, "keep_at": NOW + 1} | changes)


@pytest.mark.parametrize(
    ("run", "seen", "expected"),
    [
        (waiting(), {}, do.LaunchTrainer()),
        (waiting(keep_at=NOW), {}, do.KeepBooks()),
        (waiting(), {"gate": Gate("closed", "proving shard sets")}, do.Wait("proving shard sets")),
        (waiting(), {"gate": Gate("hopeless", "a set is lost")}, do.End(65, "a set is lost")),
        (waiting(keep_at=NOW), {"over": "steps"}, do.Finish("steps")),
        (waiting(keep_at=NOW), {"over": "steps", "held": "paused"}, do.Finish("steps")),
        (waiting(keep_at=NOW), {"held": "paused"}, do.Enter(Phase.HALTED)),
        (waiting(), {"fruitless": 2}, do.LaunchTrainer()),
        (waiting(), {"fruitless": 3, "over": "data_exhausted"}, do.Finish("data_exhausted")),
        (waiting(keep_at=NOW), {"over": "data_exhausted"}, do.KeepBooks()),  # more epochs may be allowed now
        (waiting(), {"over": "data_exhausted", "gate": Gate("closed", "x")}, do.Finish("data_exhausted")),
        (waiting(rollbacks=("r",)), {}, do.Enter(Phase.CLEANING)),
        (waiting(), {"newest": OLDER}, do.Enter(Phase.CLEANING)),  # never from an older one in silence
        (waiting(), {"is_stopping": True}, do.End(0)),
        (waiting(keep_at=NOW), {"until": 30, "step": 30}, do.End(0)),
        (waiting(), {"until": 31, "step": 30}, do.LaunchTrainer()),
        (waiting(), {"until": 30, "step": 30, "over": "steps"}, do.Finish("steps")),
    ],
)
def test_a_launch_waits_for_the_first_gate_that_is_closed(
    run: RunState, seen: dict[str, Any], expected: do.Action
) -> None:
    assert decided(run, Observation(**{"newest": NEWEST} | seen)) == (expected,)


@pytest.mark.parametrize(
    ("run", "seen", "expected"),
    [
        (trainer(), {}, do.KeepBooks()),
        (trainer(), {"is_stopping": True}, do.StopTrainer()),
        (trainer(), {"is_forking": True}, do.StopTrainer()),
        (trainer(), {"is_outdated": True}, do.StopTrainer()),
        (trainer(stop_asked_at=NOW - 5), {"is_stopping": True}, do.Wait("")),
        (trainer(stop_asked_at=NOW - 60 - GUARD_MARGIN_S), {}, do.Wait("")),
        (trainer(stop_asked_at=NOW - 61 - GUARD_MARGIN_S), {}, do.StopTrainer(kill_guard=True)),
        (trainer(stop_asked_at=NOW - 61 - GUARD_MARGIN_S, stop_time_s=90), {}, do.Wait("")),
        (quiet(25), {}, do.Suspect("no step for 25 s; the slowest of a hundred takes 1.0 s")),
        (quiet(25, is_suspected=True), {}, do.KeepBooks()),
        (trainer(is_suspected=True), {}, do.Suspect("")),
        (quiet(70, 70), {},
         do.StopTrainer("no step for 70 s, and no CPU time or I/O in its tree for 70 s")),
    ],
)  # fmt: skip
def test_a_trainer_is_watched_asked_once_to_stop_and_its_guard_killed_long_after(
    run: Trainer, seen: dict[str, Any], expected: do.Action
) -> None:
    assert decided(begun(Phase.TRAINING, trainer=run), Observation(**seen)) == (expected,)


def test_a_rollback_stops_the_trainer_and_its_end_leads_to_the_next_round() -> None:
    run = begun(Phase.TRAINING, trainer=trainer(), rollbacks=("r",))
    assert decided(run, Observation()) == (do.StopTrainer(),)
    killed = Observation(end=GuardedEnd(None, 9))
    assert decided(run, killed) == (do.EndLaunch(SOURCE, False, 137), do.Enter(Phase.CLEANING))
    asked = replace(run, trainer=trainer(stop_asked_at=NOW - 1))
    saved = Exit(ExitClass.STOPPED, "saved and stopped as asked")
    stopped = Observation(end=GuardedEnd(0, None), is_stopping=True)
    assert decided(asked, stopped) == (do.EndLaunch(saved, True, 0), do.End(0))
    # A service manager asks the whole control group: an end may come before the supervisor has asked.
    assert decided(begun(Phase.TRAINING, trainer=trainer()), stopped) == (
        do.EndLaunch(saved, True, 0),
        do.End(0),
    )
    hung = replace(run, trainer=trainer(stop_asked_at=NOW - 1, is_hung=True))
    (told, _) = decided(hung, Observation(end=GuardedEnd(0, None)))
    assert isinstance(told, do.EndLaunch) and told.exit.kind is ExitClass.HUNG


@pytest.mark.parametrize(
    ("run", "seen", "expected"),
    [
        ({}, {}, do.KeepBooks()),
        ({"keep_at": NOW + 1}, {"awaited": do.Job("checkpoint", NEWEST)}, do.Wait("finished: steps")),
        ({"keep_at": NOW + 1}, {}, do.Rest()),
        ({"is_at_rest": True}, {}, do.Wait("finished: steps")),
        ({"is_at_rest": True}, {"is_once": True}, do.End(0)),
        ({"is_at_rest": True}, {"goes_on": True}, do.Enter(Phase.CLEANING)),
        ({"is_at_rest": True, "rollbacks": ("r",)}, {}, do.Enter(Phase.CLEANING)),
    ],
)
def test_a_finished_run_rests_once_all_is_proven_and_mirrored(
    run: dict[str, Any], seen: dict[str, Any], expected: do.Action
) -> None:
    assert decided(begun(Phase.FINISHED, doing="finished: steps", **run), Observation(**seen)) == (expected,)


def test_a_new_round_forgets_what_the_last_one_found_and_keeps_what_is_not_answered_yet() -> None:
    run = ended(look="done", rollbacks=("r",), failures=2, resume=NEWEST)
    fresh = run.entered(Phase.CLEANING, NOW)
    assert (fresh.proofs, fresh.look, fresh.is_settled, fresh.resume) == ({}, "", False, "")
    assert (fresh.exit, fresh.trainer, fresh.rollbacks, fresh.failures) == (run.exit, run.trainer, ("r",), 2)


def test_after_a_pause_what_could_not_be_read_is_read_again() -> None:
    run = proving(proofs={NEWEST: "unreadable", OLDER: "proven"}).paused(10.0, "x", NOW)
    assert (run.proofs, run.retry_at) == ({OLDER: "proven"}, NOW + 10.0)


def test_no_kill_of_the_kernels_met_a_trainer_that_ended_with_0() -> None:
    def kills(code: int | None, signum: int | None) -> int:
        return trainer(oom_kills=(3,)).ended(GuardedEnd(code, signum), 4).evidence.oom_kills

    assert (kills(0, None), kills(None, 9), kills(1, None)) == (0, 1, 1)
