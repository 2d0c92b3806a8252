"""Decides the train supervisor's next actions: a pure function of its state and the facts it sees."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from stoker.checkpoints.mirror.layout import Mirrored, superfluous, waiting
from stoker.checkpoints.retention import History, RetentionPolicy
from stoker.config.schema import Supervise
from stoker.store.errors import ConfigError, DataError, StokerError, Transient
from stoker.supervise import actions as do
from stoker.supervise.health.exits import ExitClass, classify
from stoker.supervise.health.liveness import judge
from stoker.supervise.mirror.inventory import MirrorState
from stoker.supervise.observation import AskedRollback, Observation
from stoker.supervise.policy import Case, Response, no_progress, respond
from stoker.supervise.state import Phase, RunState
from stoker.supervise.trainer import Trainer

CLEANING_S = 0.2  # between two checks for leftovers
LOCK_GRACE_S = 10.0  # beyond the stop time, for a guard to end the processes left in its tree
READ_AGAIN_S = 10.0  # before a checkpoint that could not be read is tried again
GUARD_MARGIN_S = 30.0  # beyond the stop time: by then a working guard has killed its whole tree

# What a launch waits for; every other job that it waits for prepares the directory of a trainer.
DOING = {"evaluation_between": "evaluating the checkpoint before the next launch"}
Actions = tuple[do.Action, ...]


def decide(run: RunState, seen: Observation, policy: Supervise, now: float) -> Actions:
    """Returns the next actions; the last action is a `Wait` where the supervisor can do no more now."""
    if run.phase is Phase.TRAINING:
        return _training(run, seen, policy, now)
    if seen.is_stopping:
        return (do.End(0),)
    if now < run.retry_at:
        left = run.retry_at - now
        return (do.Wait(f"{run.retry_doing}, again in {left:.0f} s", min(1.0, left)),)
    match run.phase:
        case Phase.CLEANING:
            return _cleaning(run, seen.left, policy, now)
        case Phase.PROVING:
            return _proving(run, seen, policy)
        case _ if run.rollbacks:
            return (do.Enter(Phase.CLEANING),)
        case Phase.BACKOFF:
            return (do.Enter(Phase.WAITING),)
        case Phase.WAITING:
            return _waiting(run, seen, policy, now)
        case Phase.HALTED:
            return _halted(seen)
        case Phase.FINISHED:
            return _finished(run, seen, now)


def _cleaning(run: RunState, left: do.Leftovers | None, policy: Supervise, now: float) -> Actions:
    """Waits for a working guard, sends unguarded processes TERM, and KILL after their stop time."""
    if left is None:
        return (do.Enter(Phase.PROVING),)
    patience_s = policy.stop_time + (LOCK_GRACE_S if left.is_guarded else 0.0)
    clear = do.ClearLeftovers(left, "")
    if left.processes and now - run.since >= patience_s:
        clear = do.ClearLeftovers(left, "KILL")
    elif left.processes and not left.is_guarded and not run.is_term_sent:
        clear = do.ClearLeftovers(left, "TERM")
    return clear, do.Wait("waiting for an earlier trainer to save and end", CLEANING_S)


def _proving(run: RunState, seen: Observation, policy: Supervise) -> Actions:
    if seen.awaited is not None:
        return _start(seen, seen.awaited, "looking for checkpoints that the trainer has left")
    if seen.rollback is not None:
        return _rolling_back(run, seen, seen.rollback)
    if not run.is_settled:
        return _selecting(run, seen)
    return _answer(run, seen, policy)


def _rolling_back(run: RunState, seen: Observation, asked: AskedRollback) -> Actions:
    """Fetches and proves the rollback's checkpoint first: a rollback gives up newer ones."""
    doing = f"rolling back to step {asked.to}"
    if not asked.target or asked.target in run.proofs or run.look == "failed":
        return (do.MakeRollback(asked.request),)
    if asked.is_here:
        return _start(seen, do.Job("checkpoint", asked.target), doing)
    if seen.look != "no" and not run.look:
        return _start(seen, do.Job("sync", need="try"), doing)
    if asked.copy is not None:
        return _start(seen, do.Job("fetch", asked.copy, need="try"), doing)
    return (do.MakeRollback(asked.request),)


def _selecting(run: RunState, seen: Observation) -> Actions:
    """Selects the newest checkpoint that is proven whole, here or in the mirror.

    Waits for an unreadable checkpoint: an older one would silently undo the training since.
    """
    name = seen.candidate
    verdict = run.proofs.get(name, "")
    if name and not verdict:
        return _start(seen, do.Job("checkpoint", name), f"proving checkpoint {name}")
    if verdict == "unreadable":
        return (do.Pause(READ_AGAIN_S, f"checkpoint {name} cannot be read now; trying"),)
    if seen.look != "no" and not run.look:
        return _start(seen, do.Job("sync", need=seen.look), "looking at the mirror of the checkpoints")
    if seen.newer is not None and run.look != "failed":
        fetch = do.Job("fetch", seen.newer, need="wait")
        return _start(seen, fetch, f"fetching checkpoint {seen.newer.name} from the mirror")
    if not seen.is_on_history:
        return (do.Enter(Phase.CLEANING),)  # its proof shows that it is past a fork: proving moves it away
    if not name and seen.why_not_from_start:
        return (do.End(DataError.exit_code, seen.why_not_from_start),)
    return (do.Settle(),)


def _start(seen: Observation, job: do.Job, doing: str) -> Actions:
    """Starts a job unless it runs; it replaces another one of its slot."""
    return (do.Wait(doing),) if job in seen.jobs else (do.Start(job, doing), do.Wait(doing))


def _answer(run: RunState, seen: Observation, policy: Supervise) -> Actions:
    """Answers the end of the last launch: another launch, now or after a delay, or none."""
    trainer, exit_ = run.trainer, run.exit
    if trainer is None or exit_ is None:
        return (do.Enter(Phase.WAITING),)
    launch, best = trainer.launch, max(seen.best_step, trainer.step, seen.step)
    fruitful = seen.step > launch.resume_step
    fruitless = 0 if fruitful else max(0, seen.fruitless - exit_.is_blameless)  # `launching` counted it
    answer = do.AnswerEnd(fruitless, best, fruitful, kind=exit_.kind, response=Response(seen.facts.tried))
    is_part = exit_.kind is ExitClass.FINISHED and launch.until is not None
    if seen.over is not None or is_part or seen.held:
        return answer, do.Enter(Phase.WAITING)
    answer = replace(answer, doubts_data=exit_.doubts_data)
    if exit_.kind is ExitClass.WRONG_CONFIG:
        why = f"the trainer refuses its configuration ({exit_.detail})"
        return answer, do.End(ConfigError.exit_code, why)
    resume = launch.resume_from.name if launch.resume_from else ""
    case = Case(
        exit_,
        trainer.evidence,
        seen.facts,
        resume,
        launch.resume_step,
        seen.step,
        fruitless,
        has_plan=seen.kind.follows_plan,
        # One beyond the newest checkpoint shows it, too.
        tells_steps=seen.kind.follows_plan or seen.facts.tells_steps or best > seen.step,
    )
    response = respond(case, policy)
    answer = replace(answer, response=response)
    if response.changes_checkpoint:
        return answer, do.Enter(Phase.CLEANING)
    failures, backoff = 0 if fruitful else run.failures, policy.backoff
    seconds = backoff.most if response.waits else min(backoff.most, backoff.first * 2.0 ** min(failures, 60))
    words = f"the trainer ended ({exit_.detail}); starting"
    return answer, do.Enter(Phase.BACKOFF), do.Pause(seconds, words)


def _waiting(run: RunState, seen: Observation, policy: Supervise, now: float) -> Actions:
    if seen.newest != run.resume:
        return (do.Enter(Phase.CLEANING),)  # the checkpoint to resume from is gone, or in doubt
    if seen.over == "steps":
        return (do.Finish(seen.over),)
    if seen.until is not None and seen.step >= seen.until:
        return (do.End(0),)
    if seen.held:
        return (do.Enter(Phase.HALTED),)
    if seen.over is None and seen.fruitless >= policy.no_progress_launches:
        return (do.Halt(no_progress(seen.fruitless)),)  # the supervisor ended with each of them
    if now >= run.keep_at:
        return (do.KeepBooks(),)  # also at the data's end: an operator may have raised the cap on epochs
    if seen.over is not None:
        return (do.Finish(seen.over),)
    if seen.gate is not None:
        if seen.gate.state == "hopeless":
            return (do.End(DataError.exit_code, seen.gate.why),)
        return (do.Wait(seen.gate.why),)
    if seen.awaited is not None:
        return _start(seen, seen.awaited, DOING.get(seen.awaited.kind, "preparing the trainer's directory"))
    return (do.LaunchTrainer(),)


def _halted(seen: Observation) -> Actions:
    if not seen.held:
        return (do.Enter(Phase.CLEANING),)
    if seen.is_once:
        return (do.End(StokerError.exit_code if seen.is_halted else Transient.exit_code),)
    return (do.Wait(seen.held),)


def _finished(run: RunState, seen: Observation, now: float) -> Actions:
    if seen.goes_on:
        return (do.Enter(Phase.CLEANING),)
    if run.is_at_rest:
        return (do.End(0),) if seen.is_once else (do.Wait(run.doing),)
    if now >= run.keep_at:
        return (do.KeepBooks(),)
    return (do.Rest(),) if seen.awaited is None else (do.Wait(run.doing),)


def _training(run: RunState, seen: Observation, policy: Supervise, now: float) -> Actions:
    trainer = run.trainer
    if trainer is None:
        return (do.Enter(Phase.CLEANING),)
    if (end := seen.end) is not None:
        # A service manager's stop asks the trainer together with the supervisor.
        is_asked = trainer.stop_asked_at is not None or seen.is_stopping
        exit_ = classify(
            end,
            trainer.evidence,
            is_asked=is_asked,
            is_hung=trainer.is_hung,
            meaning=seen.kind.exit_meaning,
            last_words=trainer.view.error,
        )
        following: do.Action = do.End(0) if seen.is_stopping else do.Enter(Phase.CLEANING)
        return do.EndLaunch(exit_, seen.is_stopping, end.exit_code), following
    if (asked_at := trainer.stop_asked_at) is not None:
        is_stuck = now - asked_at > max(policy.stop_time, trainer.stop_time_s) + GUARD_MARGIN_S
        return (do.StopTrainer(kill_guard=True),) if is_stuck else (do.Wait(""),)
    if seen.is_stopping or seen.held or seen.is_forking or seen.is_outdated or run.rollbacks:
        return (do.StopTrainer(),)
    return health(trainer, policy, now) or ((do.KeepBooks(),) if now >= run.keep_at else (do.Wait(""),))


def health(trainer: Trainer, policy: Supervise, now: float) -> Actions:
    """Suspects a trainer that shows no progress, and stops it once its silence exceeds the limit."""
    view, still_s = trainer.view, now - trainer.stillness.worked_at
    quiet_s = view.quiet_s(now)
    if trainer.is_read and view.step is None:  # nobody knows what it does: to be at work is all there is
        quiet_s = min(quiet_s, still_s)
    verdict, why = judge(
        view.phase,
        quiet_s=quiet_s,
        still_s=still_s,
        p99_s=trainer.step_times.p99_s(),
        policy=policy,
        is_read=trainer.is_read,
    )
    if verdict == "stop":
        return (do.StopTrainer(hung=why),)
    return (do.Suspect(why),) if (verdict == "suspect") != trainer.is_suspected else ()


def mirror_job(
    mirror: MirrorState, local: Collection[Mirrored], history: History, policy: RetentionPolicy, now: float
) -> do.Job | None:
    """Returns the mirror's next job that no launch waits for, None where none is due.

    Each lists the mirror: the first does no more, the next copies the newest missing one, the last prunes.
    `local` are the copies that the checkpoints proven here would make.
    """
    if now < mirror.retry_at:
        return None
    if now >= mirror.look_at:
        return do.Job("sync")
    if queue := waiting(local, mirror.copies, history, policy):
        return do.Job("sync", queue[0])
    if now < mirror.prune_at:
        return None
    names = tuple(one.name for one in superfluous(mirror.copies, history, policy, mirror.proven))
    return do.Job("sync", names) if names else None
