"""What each kind of job of the stage-shard loop is: how it runs, how it begins, what its end makes true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.config.schema import Pipeline
from stoker.corpus.schedule.outcome import Outcome
from stoker.corpus.staging.disk_full import Place
from stoker.kit.workers.activity import Activity
from stoker.kit.workers.pool import Job
from stoker.shards.format.pinned import filters_asked
from stokerd.sharding.activities.transitions import failed
from stokerd.sharding.effects import Effect
from stokerd.sharding.facts.disks import Disk
from stokerd.sharding.state import State

Message = Mapping[str, Any]
# With neither a message nor CPU time; for what writes to hot: an fsync to a slow warm disk may take longer.
STALL_S = 120.0


def no_effects(_state: State, _job: Job[Any], _message: Message) -> Iterator[Effect]:
    """The effects of a message that only tells that the work goes on: none."""
    return iter(())


def nothing_due(_state: State) -> Iterable[str]:
    return ()


@dataclass(frozen=True, kw_only=True)
class ShardActivity(Activity):
    """All there is to know of one kind of job.

    `due` are the subjects that it is to begin on now and no decision names. `begin` starts it on a subject,
    `on_message` takes what its worker says, `on_done` its result,
    `on_end` any other end, and all where there is no `on_done`. `writes_to` is what a full disk is.
    """

    begin: Callable[[State, str], Iterator[Effect]]
    on_done: Callable[[State, Job[Any], Message], Iterator[Effect]] | None = None
    on_end: Callable[[State, Job[Any], Outcome], Iterator[Effect]] = failed
    on_message: Callable[[State, Job[Any], Message], Iterator[Effect]] = no_effects
    due: Callable[[State], Iterable[str]] = nothing_due
    writes_to: Place | None = None

    def start_due(self, state: State) -> Iterator[Effect]:
        """Begin on what is due, unless that is worked on, or waits after a failure."""
        for subject in self.due(state):
            if subject not in state.pool and state.retries.allows(subject):
                yield from self.begin(state, subject)

    def end(self, state: State, job: Job[Any], outcome: Outcome) -> Iterator[Effect]:
        """What the end of a job makes true; it may have taken room, or given some."""
        state.progress.ends[self.kind][outcome.kind] += 1
        for disk in state.disks:
            disk.measure_soon()
        if outcome.kind in ("done", "recycled"):
            state.pauses.disk_works(self.writes_to)
        if outcome.kind == "done" and self.on_done is not None:
            return self.on_done(state, job, outcome.result)
        return self.on_end(state, job, outcome)


def columns(pipeline: Pipeline) -> dict[str, str]:
    """The columns that are read beside the text, and what each must hold."""
    return filters_asked(pipeline).columns()


def marks(*disks: Disk | None) -> list[dict[str, Any]]:
    """By what a worker knows that these disks are the ones it is to work on."""
    return [dict(disk.mark) for disk in disks if disk is not None and disk.mark]
