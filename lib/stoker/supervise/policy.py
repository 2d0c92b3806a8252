"""What follows the end of a launch: a pure function, one table (repeated in docs/runs.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from stoker.config.schema import Supervise
from stoker.plan.timelines import Timelines
from stoker.supervise.health.evidence import Evidence
from stoker.supervise.health.exits import Exit, ExitClass

NON_FINITE = "non_finite"  # the reason of a timeline that skips a step's windows begins with it
BACK = "too_often_non_finite"  # and of one that goes back because there were too many of those
SPIKE = "loss_spike"  # and of one that skips the windows of a spike
SPAN_STEPS = 1000
OTHERS_SHARE = 0.1  # of the host's memory that was free before the launch; less is noise
GPU_OTHERS_SHARE = 0.05  # of a card's memory, as the alert StokerGpuShared has it

_RESUME = "then: stoker reload FILE; stoker resume FILE"  # a resume alone would not read a changed file
REMEDIES = {
    ExitClass.BAD_DATA: "fix or abandon what its last lines name (stoker data skip-set)",
    ExitClass.HOST_MEMORY: "give the trainer more memory, or shorten train.seq_len",
    ExitClass.GPU_MEMORY: "set train.recompute: blocks, shorten train.seq_len, or free the card",
    ExitClass.NON_FINITE: "check the data of that step (stoker data batch), lower the learning rate, or go "
    "back before the loss blew up (stoker rollback)",
    ExitClass.DEVICE_LOST: "check the card (nvidia-smi, dmesg), reset or replace it",
}
REMEDIES_OF_EXTERNAL = {
    **dict.fromkeys(
        (ExitClass.HOST_MEMORY, ExitClass.GPU_MEMORY), "give the trainer more memory, or a smaller batch"
    ),
    ExitClass.NON_FINITE: "check the data of that step, or lower the learning rate",
    ExitClass.DEVICE_LOST: REMEDIES[ExitClass.DEVICE_LOST],
}


@dataclass(frozen=True)
class Tried:
    """What was tried already, over restarts. A new proven checkpoint ends all but `again`."""

    waited: bool = False  # for others to give memory back
    again: tuple[int, int] | None = None  # the timeline and step that is made once more
    unloaded: str = ""  # the checkpoint that a launch failed to load
    suspects: int = 0  # set aside


@dataclass(frozen=True)
class Facts:
    """The run as its policy sees it after a launch."""

    timeline: int = 0
    tried: Tried = Tried()
    skipped: tuple[int, ...] = ()  # steps before windows skipped as not finite, since the run last went back
    steps: tuple[int, ...] = ()  # of its checkpoints
    spikes: tuple[int, ...] = ()  # steps before windows skipped for a spike, as `skipped`
    tells_steps: bool = False  # a trainer of the user's own, as its training log shows


@dataclass(frozen=True)
class Fork:
    """A rollback to make: to the checkpoint of step `to`, without the windows of the steps in `skip`."""

    to: int
    skip: tuple[tuple[int, int], ...]
    reason: str


@dataclass(frozen=True)
class Response:
    """What is done before the next launch; the default is nothing but the usual delay."""

    tried: Tried = Tried()
    waits: bool = False  # as long as a delay may be
    micro_batch: int | None = None
    fork: Fork | None = None
    suspect: str = ""  # the checkpoint to set aside
    halt: str = ""  # the reason to launch no more
    puts_back: bool = False  # the checkpoints that were set aside: they were not the cause

    @property
    def changes_checkpoint(self) -> bool:
        return bool(self.fork or self.suspect or self.halt)


@dataclass(frozen=True)
class Case:
    """One end of a launch: its class, its evidence, and the run around it."""

    exit: Exit
    seen: Evidence
    facts: Facts
    resume: str  # the checkpoint that the launch began with, "" for none
    resume_step: int
    newest_step: int  # of the newest proven checkpoint
    fruitless: int  # launches in a row without a new proven checkpoint, this one included
    has_plan: bool = True  # else no windows can be skipped
    tells_steps: bool = True  # by which an end while loading is known

    @property
    def has_progressed(self) -> bool:
        """Whether the launch sealed a checkpoint that is proven: steps without one are made again."""
        return self.newest_step > self.resume_step


def respond(case: Case, policy: Supervise) -> Response:
    """Returns what follows an end; that of a wrong configuration ends the supervisor instead."""
    tried = case.facts.tried
    if case.has_progressed:
        tried = Tried(again=tried.again)
    elif case.fruitless >= policy.no_progress_launches:
        end = f"the last one: {case.exit.kind} ({case.exit.detail})"
        return Response(tried, halt=f"{no_progress(case.fruitless)}; {end}")
    return _RESPONSES.get(case.exit.kind, _again)(case, tried, policy)


def no_progress(launches: int) -> str:
    return f"{launches} launches in a row left no new proven checkpoint"


def answer_spike(first: int, last: int, facts: Facts, policy: Supervise) -> Fork | str:
    """Returns the rollback before a spike of these steps, or why it is left alone: a run survives most."""
    recent = [one for one in facts.spikes if first - SPAN_STEPS < one < first]
    if len(recent) >= policy.skips_in_1000_steps:
        return f"{len(recent)} spikes of the last {SPAN_STEPS:,} steps were skipped already"
    before = max((one for one in facts.steps if one < first), default=None)
    if before is None:
        return "no checkpoint is left from before it"
    return Fork(before, ((first - 1, last),), f"{SPIKE}: from step {first} to {last}")


def skipped(timelines: Timelines, why: str = NON_FINITE) -> tuple[int, ...]:
    """Returns the steps before windows skipped as not finite, since the run last went back for them.

    With SPIKE as `why`: those skipped for a spike.
    """
    found, number = list[int](), timelines.current
    while number:
        fork = timelines.forks[number - 1]
        if fork.reason.startswith(BACK):
            break
        found += [fork.from_step] if fork.reason.startswith(why) else []
        number = fork.parent
    return tuple(found)


def remedy(kind: ExitClass | None, known: Mapping[ExitClass, str] = REMEDIES) -> str:
    """Returns what an operator of a halted run can do, in one line."""
    otherwise = "read the trainer's last lines in the log, fix the cause"
    return f"{known.get(kind or ExitClass.CRASHED, otherwise)}, {_RESUME}"


def _again(case: Case, tried: Tried, policy: Supervise) -> Response:
    return Response(tried)


def _memory(case: Case, tried: Tried, policy: Supervise) -> Response:
    """Waits once where others took the memory, then halves the micro-batch; halts where it is 1."""
    if not tried.waited and _others_took_it(case.seen):
        return Response(replace(tried, waited=True), waits=True)
    size = case.seen.micro_batch
    if size is None:
        return Response(tried)
    if size == 1:
        return Response(tried, halt=f"memory ran out at a micro-batch of one window ({case.exit.detail})")
    return Response(tried, micro_batch=size // 2)


def _others_took_it(seen: Evidence) -> bool:
    before, after = seen.headroom_bytes, seen.headroom_after_bytes
    if before is not None and after is not None and after < (1 - OTHERS_SHARE) * before:
        return True
    return (seen.gpu_others_share or 0.0) > GPU_OTHERS_SHARE


def _non_finite(case: Case, tried: Tried, policy: Supervise) -> Response:
    """Makes the step once more, then skips its windows; goes back and halts where that is too often."""
    facts, step = case.facts, case.seen.step
    if tried.again != (facts.timeline, step):
        return Response(replace(tried, again=(facts.timeline, step)))
    if not case.has_plan or case.newest_step >= step:
        return Response(tried)  # its windows are behind a checkpoint: no skip can avoid them
    recent = [one for one in facts.skipped if step - SPAN_STEPS < one < step]
    if len(recent) < policy.skips_in_1000_steps:
        reason = f"{NON_FINITE}: step {step} was not finite, twice"
        return Response(tried, fork=Fork(case.newest_step, ((step - 1, step),), reason))
    first = min([*recent, step - 1])
    reason = f"{len(recent) + 1} steps of the last {SPAN_STEPS:,} were not finite"
    # The state that was sealed before a bad step may be bad itself: rather an older one.
    older = [one for one in facts.steps if one < first] or [one for one in facts.steps if one == first]
    before = max(older, default=None)
    fork = None if before is None else Fork(before, (), f"{BACK}: {reason}")
    return Response(tried, fork=fork, halt=f"{reason}, the last one step {step}")


def _unloaded(case: Case, tried: Tried, policy: Supervise) -> Response:
    """Sets a checkpoint aside that could not be loaded twice; halts where the one before cannot, either."""
    seen, name = case.seen, case.resume
    is_loading = case.tells_steps and seen.phase == "load" and seen.step <= case.resume_step
    if not name or case.has_progressed or not is_loading:
        return Response(replace(tried, unloaded=""))
    if tried.unloaded != name:
        return Response(replace(tried, unloaded=name))
    if tried.suspects:
        why = f"no checkpoint can be loaded, so they are not the cause; {case.exit.kind} ({case.exit.detail})"
        return Response(replace(tried, suspects=0), halt=why, puts_back=True)
    if not any(step < case.resume_step for step in case.facts.steps):
        return Response(tried)  # nothing to go back to
    return Response(replace(tried, suspects=1), suspect=name)


_RESPONSES: Mapping[ExitClass, Callable[[Case, Tried, Supervise], Response]] = {
    ExitClass.HOST_MEMORY: _memory,
    ExitClass.GPU_MEMORY: _memory,
    ExitClass.NON_FINITE: _non_finite,
    ExitClass.BAD_DATA: _unloaded,
    ExitClass.CRASHED: _unloaded,
}
