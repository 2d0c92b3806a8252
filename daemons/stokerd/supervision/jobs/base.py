"""Base of the train supervisor's job kinds, and the state that they keep."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import Activity
from stoker.supervise.actions import Job
from stoker.supervise.state import Phase
from stokerd.supervision.run import Run

Message = Mapping[str, Any]
# The workers of a pool may hang together: in a dead warm disk, in a trainer's directory, in the GPUs' driver.
Pool = Literal["local", "warm", "external", "gpus", "evaluation"]
EVERY_PHASE = frozenset(Phase)
S = TypeVar("S")


@dataclass(frozen=True)
class Slice(Generic[S]):
    """State that jobs keep in `run.slices`: made by `make`, and anew on entering one of the phases `resets`.

    With `kind`, a type that pydantic reads, a reload hands it over; without, `make` reads it from disk again.
    """

    name: str
    make: Callable[[Run], S]
    kind: type[S] | None = None
    resets: Collection[Phase] = ()

    def of(self, run: Run) -> S:
        if self.name not in run.slices:
            run.slices[self.name] = self.make(run)
        found: S = run.slices[self.name]
        return found


@dataclass(frozen=True, kw_only=True)
class RunActivity(Activity):
    """A kind of job and its handlers.

    `due` are the subjects to begin on without a decision, asked for in the phases `due_in` every `every_s`
    seconds. A phase of `awaited_in` begins the due subject itself and waits for its end. Entering a phase of
    `ends_in` ends a running job, then `on_stop` follows. `on_done` gets a result, `on_end` any other end, or
    every end where `on_done` is missing; `send` yields messages to a running worker.
    """

    pool: Pool = "local"
    task: Callable[[Run, Job], Mapping[str, Any]]
    on_end: Callable[[Run, Job, WorkerExit], None]
    on_done: Callable[[Run, Job, Message], None] | None = None
    on_message: Callable[[Run, Job, Message], None] = lambda *_: None
    on_stop: Callable[[Run], None] = lambda _: None
    send: Callable[[Run], Iterable[Message]] = lambda _: ()
    due: Callable[[Run], Iterable[Any]] = lambda _: ()
    due_in: Collection[Phase] = EVERY_PHASE
    every_s: float = 0.0
    awaited_in: Collection[Phase] = ()
    ends_in: Collection[Phase] = (Phase.CLEANING,)
    slices: tuple[Slice[Any], ...] = ()

    @property
    def slot(self) -> str:
        """One job at a time has it: of its kind, or of its pool where the pool is not local."""
        return self.kind if self.pool == "local" else self.pool

    def end(self, run: Run, job: Job, end: WorkerExit) -> None:
        """Records what the end of a job makes true."""
        run.counted.ends[f"{self.kind} {end.kind}"] += 1
        if end.result is not None and self.on_done is not None:
            self.on_done(run, job, end.result)
        else:
            self.on_end(run, job, end)
