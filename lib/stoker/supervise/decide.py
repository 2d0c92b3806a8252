"""What the train supervisor does next: a pure function of where it is and what it sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.checkpoints.mirror.layout import Mirrored
from stoker.config.schema import BackoffPolicy, Supervise
from stoker.store.errors import DataError
from stoker.supervise import actions as do
from stoker.supervise.health.exit_class import Ending, ExitClass, classify
from stoker.supervise.health.guarded import GuardedEnd
from stoker.supervise.health.leftovers import Leftovers
from stoker.supervise.health.leftovers import decide as clean
from stoker.supervise.health.liveness import Silence, judge
from stoker.supervise.health.restart_policy import after_exit
from stoker.supervise.mirror.state import Look
from stoker.supervise.run.gates import Gate
from stoker.supervise.state import Phase, RunState, Trainer

CLEANING_S = 0.2  # between two looks at leftovers
READ_AGAIN_S = 10.0  # before a checkpoint that could not be read is tried again
GUARD_MARGIN_S = 30.0  # beyond the stop time, in which a guard that runs has killed what is left


def delay_s(backoff: BackoffPolicy, failures: int, jitter: float) -> float:
    """A delay that doubles with each failure in a row; `jitter` lies between a half and 1."""
    return jitter * min(backoff.most, backoff.first * 2.0 ** min(failures, 60))


@dataclass(frozen=True)
class AskedRollback:
    """The next rollback to make. `target` is the checkpoint it goes back to, "" for the beginning;
    `copy` is the copy of it to fetch where it is not here."""

    request: str
    to: int
    target: str = ""
    is_here: bool = True
    copy: Mirrored | None = None


@dataclass(frozen=True)
class Seen:
    """What was found at this look; what the phase does not ask for is left out."""

    is_stopping: bool = False
    is_once: bool = False
    jitter: float = 1.0
    jobs: Mapping[str, do.Job] = field(default_factory=dict)  # under way, by slot
    fruitless: int = 0  # by run.json
    best_step: int = 0
    over: str | None = None  # why the run is over at its newest checkpoint

    left: Leftovers | None = None

    rollback: AskedRollback | None = None
    newest: str = ""  # the newest proven checkpoint
    candidate: str = ""  # the newest sealed checkpoint of the history
    is_on_history: bool = True  # the proven candidate, by what its proof says
    step: int = 0  # of the newest proven checkpoint
    has_mirror: bool = False
    look: Look = "no"  # whether a launch from the candidate must look at the mirror first
    newer: Mirrored | None = None  # a copy that is newer than the candidate
    lost_heldout: str = ""  # sha256 of the held-out windows, where they are not whole here
    why_not_from_start: str = ""  # why the run cannot begin at step 0

    gate: Gate | None = None  # the first that is not open

    end: GuardedEnd | None = None
    is_settled: bool = False  # no checkpoint is left to prove or to mirror


Actions = tuple[do.Action, ...]


def decide(run: RunState, seen: Seen, policy: Supervise, now: float) -> Actions:
    """The next actions; the last one is a `Wait` where nothing further can be done now."""
    if run.phase is Phase.TRAINING:
        return _training(run, seen, policy, now)
    if seen.is_stopping:
        return (do.End(0),)
    if now < run.retry_at:
        left = run.retry_at - now
        return (do.Wait(f"{run.retry_doing}, again in {left:.0f} s", min(1.0, left)),)
    match run.phase:
        case Phase.CLEANING:
            return _cleaning(run, seen, policy, now)
        case Phase.PROVING:
            return _proving(run, seen, policy)
        case _ if run.rollbacks:
            return (do.Enter(Phase.CLEANING),)
        case Phase.BACKOFF:
            return (do.Enter(Phase.WAITING),)
        case Phase.WAITING:
            return _waiting(run, seen, now)
        case Phase.FINISHED:
            return _finished(run, seen, now)


def _cleaning(run: RunState, seen: Seen, policy: Supervise, now: float) -> Actions:
    left = seen.left or Leftovers(False, False, ())
    waited_s, asked = now - run.since, run.is_term_sent
    cleaning = clean(left, waited_s=waited_s, asked=asked, stop_time_s=policy.stop_time)
    if cleaning == "clear":
        return (do.Enter(Phase.PROVING),)
    clear = do.ClearLeftovers("" if cleaning == "wait" else cleaning)
    return clear, do.Wait("waiting for an earlier trainer to save and end", CLEANING_S)


def _proving(run: RunState, seen: Seen, policy: Supervise) -> Actions:
    if not run.is_taken_up:
        return (do.TakeUpRollbacks(),)
    if seen.rollback is not None:
        return _rolling_back(run, seen, seen.rollback)
    if not run.is_settled:
        return _selecting(run, seen)
    if seen.lost_heldout and not run.is_heldout_seen:
        job = do.RestoreHeldout(seen.lost_heldout)
        return _start(seen, job, "fetching the held-out windows from the mirror")
    return _answer(run, seen, policy)


def _rolling_back(run: RunState, seen: Seen, asked: AskedRollback) -> Actions:
    """Bring back what the rollback needs, and prove it: nothing is given up for less."""
    doing = f"rolling back to step {asked.to}"
    if not asked.target or asked.target in run.proofs or run.look == "failed":
        return (do.MakeRollback(asked.request),)
    if asked.is_here:
        return _start(seen, do.ProveCheckpoint(asked.target), doing)
    if seen.has_mirror and not run.look:
        return _start(seen, do.ListMirror(is_awaited=True), doing)
    if asked.copy is not None:
        return _start(seen, do.FetchCopy(asked.copy, is_for_rollback=True), doing)
    return (do.MakeRollback(asked.request),)


def _selecting(run: RunState, seen: Seen) -> Actions:
    """The newest checkpoint that is proven whole, here or in the mirror.

    One that cannot be read is waited for: an older one would silently undo what was trained since.
    """
    name = seen.candidate
    verdict = run.proofs.get(name, "")
    if name and not verdict:
        return _start(seen, do.ProveCheckpoint(name), f"proving checkpoint {name}")
    if verdict == "unreadable":
        return (do.Pause(READ_AGAIN_S, f"checkpoint {name} cannot be read now; trying"),)
    if seen.look != "no" and not run.look:
        look = do.ListMirror(is_awaited=True, must=seen.look == "wait")
        return _start(seen, look, "looking at the mirror of the checkpoints")
    if seen.newer is not None and run.look != "failed":
        fetch = do.FetchCopy(seen.newer)
        return _start(seen, fetch, f"fetching checkpoint {seen.newer.name} from the mirror")
    if not seen.is_on_history:
        return (do.Enter(Phase.CLEANING),)  # only its proof could tell: it is past a fork, and is moved away
    if not name and seen.why_not_from_start:
        return (do.End(DataError.exit_code, seen.why_not_from_start),)
    return (do.Settle(),)


def _start(seen: Seen, job: do.Job, doing: str) -> Actions:
    """Start a job unless it runs; the mirror's worker leaves for it whatever else it does."""
    running = seen.jobs.get(job.slot)
    if running is None or (job.slot == "mirror" and running != job):
        return (do.Start(job, doing), do.Wait(doing))
    return (do.Wait(doing),)


def _answer(run: RunState, seen: Seen, policy: Supervise) -> Actions:
    """What follows the end of the last launch: another one, now or after a delay, or giving up."""
    trainer, exit_ = run.trainer, run.exit
    if trainer is None or exit_ is None:
        return (do.Enter(Phase.WAITING),)
    progressed = seen.step > trainer.launch.resume_step or trainer.step > seen.best_step
    following = after_exit(
        exit_,
        progressed=progressed,
        fruitless=max(0, seen.fruitless - 1),  # it was counted when it began
        most_fruitless=policy.no_progress_launches,
    )
    best = max(seen.best_step, trainer.step, seen.step)
    is_part = exit_.kind is ExitClass.FINISHED and trainer.launch.until is not None
    is_retried = seen.over is None and not is_part and following.exit_code is None
    doubts = is_retried and following.prove_data
    answer = do.AnswerEnd(following.fruitless, best, progressed, doubts)
    if seen.over is None and following.exit_code is not None:
        return answer, do.End(following.exit_code, following.reason)
    if not is_retried:
        return answer, do.Enter(Phase.WAITING)
    seconds = delay_s(policy.backoff, 0 if progressed else run.failures, seen.jitter)
    words = f"the trainer ended ({following.reason}); starting"
    return answer, do.Enter(Phase.BACKOFF), do.Pause(seconds, words, is_failure=True)


def _waiting(run: RunState, seen: Seen, now: float) -> Actions:
    if seen.newest != run.resume:
        return (do.Enter(Phase.CLEANING),)  # what was to be resumed from is gone, or in doubt
    if seen.over == "steps":
        return (do.Finish(seen.over),)
    if now >= run.keep_at:
        return (do.KeepBooks(),)  # at the data's end, too: the cap on epochs may have been raised
    if seen.over is not None:
        return (do.Finish(seen.over),)
    if seen.gate is not None:
        if seen.gate.state == "hopeless":
            return (do.End(DataError.exit_code, seen.gate.why),)
        return (do.Wait(seen.gate.why),)
    return (do.LaunchTrainer(),)


def _finished(run: RunState, seen: Seen, now: float) -> Actions:
    if run.is_at_rest:
        return (do.End(0),) if seen.is_once else (do.Wait(run.doing),)
    if now >= run.keep_at:
        return (do.KeepBooks(),)
    return (do.Rest(),) if seen.is_settled else (do.Wait(run.doing),)


def _training(run: RunState, seen: Seen, policy: Supervise, now: float) -> Actions:
    trainer = run.trainer
    if trainer is None:
        return (do.Enter(Phase.CLEANING),)
    if (end := seen.end) is not None:
        asked = trainer.stop_asked_at is not None
        exit_ = classify(Ending(end.code, end.signum, asked, trainer.is_hung, trainer.view.error))
        following: do.Action = do.End(0) if seen.is_stopping else do.Enter(Phase.CLEANING)
        return do.EndLaunch(exit_, is_forgiven=seen.is_stopping), following
    if (asked_at := trainer.stop_asked_at) is not None:
        is_stuck = now - asked_at > policy.stop_time + GUARD_MARGIN_S
        return (do.StopTrainer(kill_guard=True),) if is_stuck else (do.Wait(""),)
    if seen.is_stopping or run.rollbacks:
        return (do.StopTrainer(),)
    return health(trainer, policy.hang_limit, now) or (
        (do.KeepBooks(),) if now >= run.keep_at else (do.Wait(""),)
    )


def health(trainer: Trainer, hang_s: float, now: float) -> Actions:
    """A trainer that shows no progress is suspected, and stopped once its silence is beyond its limit."""
    view = trainer.view
    silence = Silence(now - view.heard_at, now - view.moved_at, now - trainer.stillness.worked_at)
    verdict = judge(view.phase, silence, trainer.step_times.p99_s(), hang_s)
    if verdict.state == "stop":
        return (do.StopTrainer(hung=verdict.why),)
    if (verdict.state == "suspect") != trainer.is_suspected:
        return (do.Suspect(verdict.why),)
    return ()
