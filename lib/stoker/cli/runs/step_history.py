"""What one run has read, step by step: its plan, timelines, training log and checkpoints put side by side.

The positions decide: the windows of a step are those between the position of the step before and its own on
the ancestry, less the skipped. A global batch that changed, a rollback or a skip needs no care of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Literal

from stoker.checkpoints.format import BODY, CheckpointBody, read_body
from stoker.checkpoints.select import find_checkpoints
from stoker.config.schema import Pipeline
from stoker.plan.log import DATA_EXHAUSTED, read_plan
from stoker.plan.positions import START, Accounts, Position, after, left_after, linear, take
from stoker.plan.timelines import Timelines, ancestry, on_history, read_timelines, skips
from stoker.store.errors import DataError, UsageError
from stoker.store.layout import RunLayout
from stoker.store.record import RecordDamaged, read_record
from stoker.supervise.audit.audit_rows import read_rows
from stoker.supervise.run.launch_log import Makers, read_launches

Pieces = list[tuple[int, range]]  # (entry, offsets in it)


@dataclass(frozen=True)
class Mark:
    """A known place: after `step`, made on `timeline`, `windows` of the plan lay before the position."""

    step: int
    timeline: int
    position: Position
    windows: int


@dataclass(frozen=True)
class Step:
    """A step that was made: its windows in order, and whether a checkpoint that holds it has been sealed."""

    step: int
    timeline: int
    begins: Position
    ends: Position
    pieces: Pieces
    sealed: bool


@dataclass(frozen=True)
class Use:
    """What became of a window; `step` is the one that read it, or the earliest that can, else None.

    A `remainder` is too little for a batch at the plan's end; what is `beyond` lies behind the run's end.
    """

    state: Literal["applied", "planned", "skipped", "remainder", "beyond"]
    step: int | None = None
    timeline: int | None = None
    sealed: bool = False


class History:
    """One timeline of a run with its ancestors; `timeline` None is the one the run is on.

    With `run_id` another run's plan is refused. `steps` and `global_batch` of what is to come are those of
    the pipeline file, where it is about this run, else of the last launch. Raises UsageError for a timeline
    that is not there, DataError where the run's files contradict each other.
    """

    def __init__(
        self, pipeline: Pipeline, name: str, timeline: int | None = None, *, run_id: str | None = None
    ) -> None:
        self.run = run = pipeline.layout.run(name)
        # The plan last: it is written before a row can speak of it.
        rows = [(row.step, row.timeline, row.position) for row in read_rows(run.metrics)[0] if row.position]
        self.timelines = read_timelines(run.timelines)
        self.plan = read_plan(run.plan, run_id)
        self.timeline = _known(self.timelines, timeline)
        self._line = ancestry(self.timelines, self.timeline)
        self.skips = skips(self.timelines, self.timeline)
        self._launches = read_launches(run.launches)[0]
        on_line = partial(on_history, self._line)
        self.sealed, sealed = 0, dict[int, tuple[int, Position]]()
        for body in read_checkpoints(run):
            if on_line(body.timeline, body.step):
                sealed[body.step] = (body.timeline, Position(*body.position))
                self.sealed = max(self.sealed, body.step)
        made = {step: (number, place) for step, number, place in rows if on_line(number, step)}
        self.marks = self._marks(made, sealed)
        self._reached: dict[int, int] = {}
        for step, number, _ in rows:
            self._reached[number] = max(step, self._reached.get(number, 0))
        launched = self._launches[-1].settings if self._launches else {}
        self.global_batch = int(launched.get("global_batch") or 1)
        self.steps = int(launched.get("steps") or 0)
        if pipeline.train.run == name:
            self.global_batch, self.steps = pipeline.train.global_batch, pipeline.train.horizon
        self.finished = self._finished()
        self._accounts: dict[int, Accounts] = {}

    @property
    def last(self) -> Mark:
        """The newest step there is."""
        return self.marks[-1]

    def step(self, number: int) -> Step:
        """A step that was made; raises UsageError for one that was not."""
        if number < 1:
            raise UsageError(f"step {number}: steps count from 1")
        place = bisect_left(self.marks, number, key=lambda mark: mark.step)
        if place == len(self.marks):
            raise UsageError(self._not_made(number))
        before, mark = self.marks[place - 1], self.marks[place]
        sizes = self._sizes(before, mark)
        earlier = sum(sizes[: number - before.step - 1])
        passed = skips(self.timelines, mark.timeline)
        begins = after(take(self.plan, before.position, earlier, passed) or [], before.position)
        pieces = take(self.plan, begins, sizes[number - before.step - 1], passed)
        assert pieces is not None  # `linear` found the mark's position inside the plan
        return Step(number, mark.timeline, begins, after(pieces, begins), pieces, number <= self.sealed)

    def use(self, entry: int, offset: int) -> Use:
        """What became of the window at an offset of a plan entry on this history."""
        position = Position(entry, offset)
        place = linear(self.plan, position)
        accounts = self._accounts_on(self.timeline)
        if accounts.applied(Position(entry, offset + 1)) == accounts.applied(position):
            return Use("skipped")
        if place < self.last.windows:
            return self._applied(position, place)
        ahead = left_after(self.plan, self.last.position, self.skips)
        before = ahead - left_after(self.plan, position, self.skips)
        if self.plan.ended and before >= ahead - ahead % self.global_batch:
            return Use("remainder")
        step = self.last.step + before // self.global_batch + 1
        if self.finished or 0 < self.steps < step:
            return Use("beyond")
        return Use("planned", step)

    def _applied(self, position: Position, place: int) -> Use:
        found = bisect_right(self.marks, place, key=lambda mark: mark.windows)
        before, mark = self.marks[found - 1], self.marks[found]
        accounts = self._accounts_on(mark.timeline)
        index = accounts.applied(position) - accounts.applied(before.position)
        step = before.step + 1 + bisect_right(list(accumulate(self._sizes(before, mark))), index)
        return Use("applied", step, mark.timeline, step <= self.sealed)

    def _sizes(self, before: Mark, mark: Mark) -> list[int]:
        """The windows of each step after one mark, up to and with another that is the next in the log."""
        accounts = self._accounts_on(mark.timeline)
        windows = accounts.applied(mark.position) - accounts.applied(before.position)
        steps = range(before.step + 1, mark.step + 1)
        if len(steps) == 1:
            return [windows]
        launches = map(Makers(self._launches, self.timelines, mark.timeline).of, steps)
        told = [int(launch.settings["global_batch"]) for launch in launches if launch is not None]
        if len(told) == len(steps) and sum(told) == windows:
            return told
        if windows % len(steps) == 0:
            return [windows // len(steps)] * len(steps)
        raise DataError(
            f"{self.run.metrics}: {windows} windows between steps {before.step} and {mark.step}, no row in "
            "between, and no record of how many each step took; `stoker audit` says what is missing"
        )

    def _marks(
        self, made: Mapping[int, tuple[int, Position]], sealed: Mapping[int, tuple[int, Position]]
    ) -> list[Mark]:
        """Every known place in the order of steps, the start first; log and checkpoints must agree."""
        marks = [Mark(0, 0, START, 0)]
        for step, (timeline, position) in sorted({**sealed, **made}.items()):
            windows = linear(self.plan, position)
            if step in sealed and linear(self.plan, sealed[step][1]) != windows:
                raise DataError(
                    f"{self.run.metrics}: step {step} stands at {position.as_list()}, its checkpoint at "
                    f"{sealed[step][1].as_list()}; run `stoker audit` and restore the log"
                )
            if step and windows <= marks[-1].windows:
                raise DataError(
                    f"{self.run.metrics}: step {step} at {position.as_list()} is not ahead of step "
                    f"{marks[-1].step}; run `stoker audit` and restore the log"
                )
            marks += [Mark(step, timeline, position, windows)] if step else []
        return marks

    def _not_made(self, number: int) -> str:
        told = f"run {self.run.root.name} has come to step {self.last.step} of timeline {self.timeline}"
        others = [
            timeline
            for timeline, step in sorted(self._reached.items())
            if step >= number and not on_history(self._line, timeline, number)
        ]
        if others:
            return f"{told}; step {number} was made on timeline {others[-1]}: add --timeline {others[-1]}"
        return f"{told}; step {number} is not trained yet, ask again when it is"

    def _finished(self) -> str | None:
        """Why the run is over, None while it goes on or is to go on since more steps were asked for."""
        try:
            found = read_record(self.run.consumed).get("finished")
        except (FileNotFoundError, RecordDamaged):
            return None
        over = self.plan.ended if found == DATA_EXHAUSTED else self.last.step >= self.steps
        return str(found) if found is not None and over else None

    def _accounts_on(self, timeline: int) -> Accounts:
        if timeline not in self._accounts:
            self._accounts[timeline] = Accounts(self.plan, skips(self.timelines, timeline))
        return self._accounts[timeline]


def read_checkpoints(run: RunLayout) -> Iterator[CheckpointBody]:
    """What the run's checkpoints say of themselves, abandoned ones included; none is proven here."""
    for folder in (run.checkpoints, *sorted(run.abandoned.glob("t*"))):
        for found in find_checkpoints(folder):
            try:
                yield read_body((found.path / BODY).read_bytes(), found.path / BODY)
            except (OSError, DataError):
                continue  # pruned just now, or damaged: `stoker verify` and the supervisor tell which


def _known(timelines: Timelines, timeline: int | None) -> int:
    if timeline is None:
        return timelines.current
    if not 0 <= timeline <= timelines.current:
        raise UsageError(f"timeline {timeline} is not there; the run has 0 to {timelines.current}")
    return timeline
