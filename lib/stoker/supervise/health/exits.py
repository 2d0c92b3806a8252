"""The class of a launch's end: how the process ended, and the evidence around it."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from stoker.kit.process import signal_name
from stoker.supervise.health.evidence import Evidence
from stoker.supervise.health.output import uncaught


@dataclass(frozen=True)
class GuardedEnd:
    """The trainer's end as its guard reported it; `code` and `signum` are None when the guard was lost."""

    code: int | None
    signum: int | None
    peak_bytes: int = 0  # resident, of the largest process that the guard has reaped
    left: int = 0  # processes that outlived the trainer, before its guard ended them

    @property
    def exit_code(self) -> int | None:
        """The exit code as a shell has it; None when the guard was lost."""
        return self.code if self.signum is None else 128 + self.signum


class ExitClass(StrEnum):
    """The class of a launch's end, which decides about the next launch and labels the restart metric."""

    FINISHED = "finished"
    STOPPED = "stopped_as_asked"
    FINISHED_SHORT = "finished_short"
    BAD_DATA = "bad_data"
    HOST_MEMORY = "host_memory"
    GPU_MEMORY = "gpu_memory"
    NON_FINITE = "non_finite"
    DEVICE_LOST = "device_lost"
    STORAGE = "storage"
    TRY_AGAIN = "try_again"
    WRONG_CONFIG = "wrong_config"
    KILLED = "killed"
    CRASHED = "crashed"
    HUNG = "hung"
    GUARD_LOST = "guard_lost"


_BY_CODE = {
    0: ExitClass.FINISHED,
    65: ExitClass.BAD_DATA,
    71: ExitClass.GPU_MEMORY,
    74: ExitClass.STORAGE,
    75: ExitClass.TRY_AGAIN,
    76: ExitClass.NON_FINITE,
    78: ExitClass.WRONG_CONFIG,
}
# A process brings these upon itself; any other signal was sent to it.
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP}
# Words of torch's, CUDA's and Python's errors. Code 71 is of any memory.
_CPU_MEMORY = ("DefaultCPUAllocator", "MemoryError", "Cannot allocate memory")
_GPU_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_CARD = ("CUDA error", "CUDA driver error", "cuDNN error", "CUBLAS_STATUS_")
# What a program did wrong, which it will do again: no card is lost.
_OWN_MISTAKES = ("device-side assert", "illegal memory access", "misaligned address", "invalid ")
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
IN_A_PIPE = (
    "but its output ends with an error that nobody caught; the exit code of a pipe is its last command's: "
    "start it with bash -o pipefail -c"
)
TOLD_LINES = 20  # of the output, for a trainer that does not say why it ends
LAUNCHER, NOT_STARTED = "stoker.kit.exec: ", (126, 127)  # what it says, and its exit codes
_FIRST_SIGNAL = 128  # a shell adds it to a signal's number
FULL_BYTES = 16 << 20  # a disk with less room has no place for a checkpoint


@dataclass(frozen=True)
class Exit:
    kind: ExitClass
    detail: str  # half a sentence for log and status
    doubts_data: bool = False  # the sets that the trainer read must be proven before the next launch
    code: int | None = field(default=None, compare=False)  # as a shell has it

    @property
    def is_clean(self) -> bool:
        """It was done, or stopped as asked: what it saved last is whole."""
        return self.code == 0 and self.kind in (ExitClass.FINISHED, ExitClass.STOPPED)

    @property
    def is_by_itself(self) -> bool:
        """No signal ended it, nor any of its processes as far as its code tells."""
        return self.code is not None and self.code < _FIRST_SIGNAL and self.kind is not ExitClass.HUNG

    @property
    def is_blameless(self) -> bool:
        """A full disk, exit code 75 (try again) and an asked stop are no evidence against the run."""
        return self.kind in (ExitClass.STORAGE, ExitClass.TRY_AGAIN, ExitClass.STOPPED)


Meaning = Callable[[GuardedEnd, Evidence, bool], Exit | None]


def classify(
    end: GuardedEnd,
    evidence: Evidence | None = None,
    *,
    is_asked: bool,
    is_hung: bool,
    meaning: Meaning | None = None,
    last_words: str | None = None,
) -> Exit:
    """Returns the class of an end; `finished` stands only if the newest checkpoint agrees.

    `is_asked`: the supervisor sent a stop; `is_hung`: it did so because the trainer showed no progress. A
    stop that was asked for is kept by the sealed checkpoint, whatever code a launcher makes of it. `meaning`
    knows what other ends mean of this kind of trainer.
    """
    seen = evidence or Evidence()
    exit_ = Exit(ExitClass.HUNG, "nothing moved in it any more, so it was stopped")
    if not is_hung:
        exit_ = _classify(end, seen, is_asked=is_asked, meaning=meaning, last_words=last_words)
    return replace(exit_, code=end.exit_code)


def _classify(
    end: GuardedEnd, seen: Evidence, *, is_asked: bool, meaning: Meaning | None, last_words: str | None
) -> Exit:
    if is_asked and (end.code == 0 or seen.is_sealed):
        how = "" if end.code == 0 else f" ({_how(end)})"
        return Exit(ExitClass.STOPPED, f"saved and stopped as asked{how}")
    if end.code == end.signum is None:
        return Exit(ExitClass.GUARD_LOST, "its guard ended before it could say how the trainer did")
    if meaning is not None and (other := meaning(end, seen, is_asked)) is not None:
        return other
    how = _how(end)
    words = f": {last_words}" if last_words else _not_started(end, seen)
    kind, why = _judged(end, seen, words or "\n".join(seen.lines[-TOLD_LINES:]))
    is_unreadable = kind is ExitClass.STORAGE and os.strerror(errno.EIO) in words
    doubts_data = is_unreadable or kind in (ExitClass.BAD_DATA, ExitClass.NON_FINITE)
    return Exit(kind, f"{how}{why and ', '}{why}{words}", doubts_data)


def meaning_of_external(end: GuardedEnd, seen: Evidence, is_asked: bool) -> Exit | None:
    """Returns what ends of an external trainer mean that may do no more than die of a stop."""
    if is_asked and end.signum != signal.SIGKILL:
        return Exit(ExitClass.STOPPED, f"stopped as asked ({_how(end)}); what it did not save is lost")
    if end.code == 0 and end.left and _has_done_nothing(seen):
        text = f"before its first step, and {end.left} of its processes continued"
        return Exit(ExitClass.CRASHED, f"{_how(end)}, {text}: it must stay in the foreground")
    return None


def _how(end: GuardedEnd) -> str:
    return f"killed by {signal_name(end.signum)}" if end.signum is not None else f"exit code {end.code}"


def _has_done_nothing(seen: Evidence) -> bool:
    """Whether no step is known of a launch, and no checkpoint."""
    return seen.phase == "load" and (seen.sealed_step or 0) <= seen.step


def _not_started(end: GuardedEnd, seen: Evidence) -> str:
    """Returns why a command could not be started, as the exec launcher has told it; "" where it could."""
    told = [line.partition(LAUNCHER)[2] for line in seen.lines if line.startswith(LAUNCHER)]
    if end.code not in NOT_STARTED or not told:
        return ""
    return f": {told[-1]}; train.command names the program, train.external.directory where it runs"


def _judged(end: GuardedEnd, seen: Evidence, words: str) -> tuple[ExitClass, str]:
    """Returns the class of an end that was not asked for, and what of the evidence speaks for it."""
    code, signum = end.code, end.signum
    kind = _BY_CODE.get(code, ExitClass.CRASHED) if code is not None else ExitClass.KILLED
    if signum in _CRASHES:
        kind = ExitClass.CRASHED
    is_unclear = kind is ExitClass.CRASHED  # a launcher's own code tells nothing of its ranks
    if signum == signal.SIGBUS:
        return ExitClass.BAD_DATA, "a mapped file is not all there"
    if seen.is_out_of_memory and (is_unclear or signal.SIGKILL in (signum, (code or 0) - 128)):
        return ExitClass.HOST_MEMORY, "the kernel's OOM killer was at work"
    if kind is ExitClass.GPU_MEMORY and _told(words) is ExitClass.HOST_MEMORY:
        return ExitClass.HOST_MEMORY, ""
    if (is_unclear or kind is ExitClass.TRY_AGAIN) and seen.xids:
        return ExitClass.DEVICE_LOST, f"after Xid {', '.join(map(str, seen.xids))}"
    if (is_unclear or kind is ExitClass.TRY_AGAIN) and (told := _told(words)):
        return told, ""
    if is_unclear and seen.free_bytes is not None and seen.free_bytes < FULL_BYTES:
        return ExitClass.STORAGE, "the disk of its checkpoints is full"
    if kind is ExitClass.FINISHED and seen.is_short:
        return (
            ExitClass.FINISHED_SHORT,
            f"after step {seen.step} of {seen.last_step}, and nobody asked it to stop",
        )
    is_done = seen.last_step is not None or seen.ending is not None
    if kind is ExitClass.FINISHED and not is_done and (error := uncaught(seen.lines)):
        return ExitClass.FINISHED_SHORT, f"{IN_A_PIPE} ({error})"
    return kind, ""


def tells_card_lost(words: str) -> bool:
    """Returns whether the words of an error tell that a GPU or its driver failed."""
    return any(word in words for word in _CARD) and not any(word in words for word in _OWN_MISTAKES)


def _told(words: str) -> ExitClass | None:
    """Returns the class that a trainer's own words tell where its exit code tells none."""
    for kind, known in (
        (ExitClass.GPU_MEMORY, _GPU_MEMORY),  # first: torch.OutOfMemoryError is a card's
        (ExitClass.HOST_MEMORY, _CPU_MEMORY),
        (ExitClass.STORAGE, _FULL),
    ):
        if any(word in words for word in known):
            return kind
    return ExitClass.DEVICE_LOST if tells_card_lost(words) else None
