"""The history of a run, step by step, from its plan, timelines, training log and checkpoints.

The positions decide: the windows of a step are those between the position of the step before and its own
position on the ancestry, without skipped windows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Literal

from stoker.checkpoints.retention import counts, find_checkpoints
from stoker.config.schema import Pipeline
from stoker.plan.log import DATA_EXHAUSTED, read_plan
from stoker.plan.positions import START, Accounts, Position, after, linear, take
from stoker.plan.timelines import ancestry, read_timelines, skips
from stoker.store.errors import DataError, UsageError
from stoker.store.record import read_whole
from stoker.supervise.audit.audit_rows import read_rows
from stoker.supervise.run.launch_record import read_launches


@dataclass(frozen=True)
class Mark:
    """A known position: after `step`, `windows` of the plan are before the position."""

    step: int
    position: Position
    windows: int


@dataclass(frozen=True)
class Step:
    """A step: its windows in order, whether it was made, and whether a checkpoint with it is sealed."""

    step: int
    timeline: int
    begins: Position
    ends: Position
    pieces: list[tuple[int, range]]  # (entry, offsets in it)
    sealed: bool
    made: bool = True


@dataclass(frozen=True)
class Use:
    """The fate of a window; `step` is the step that read it, if any, and `beyond` is after the run's end."""

    state: Literal["applied", "planned", "skipped", "beyond"]
    step: int | None = None
    timeline: int | None = None
    sealed: bool = False


class History:
    """A timeline of a run with its ancestors; `timeline` None means the run's current timeline.

    With `run_id` the plan of another run is refused. `steps`, the run's horizon, comes from the pipeline file
    if it names this run, else from the last launch. Raises UsageError for a timeline that
    does not exist, DataError where the run's files contradict each other.
    """

    def __init__(
        self, pipeline: Pipeline, name: str, timeline: int | None = None, *, run_id: str | None = None
    ) -> None:
        self.run = run = pipeline.layout.run(name)
        # The plan is read last: the supervisor writes an entry before a row can name it.
        rows = [(row.step, row.timeline, row.position) for row in read_rows(run.metrics)[0] if row.position]
        self.timelines = read_timelines(run.timelines)
        self.plan = read_plan(run.plan, run_id)
        latest = self.timelines.current
        self.timeline = latest if timeline is None else timeline
        if not 0 <= self.timeline <= latest:
            raise UsageError(f"timeline {timeline} is not there; the run has 0 to {latest}")
        self._line = ancestry(self.timelines, self.timeline)
        self.skips = skips(self.timelines, self.timeline)
        self._accounts = Accounts(self.plan, self.skips)
        self._given_up = [(number, step) for step, number, _ in rows if not counts(number, step, self._line)]
        # Positions by the checkpoints' own records, abandoned checkpoints included; none is proven here.
        folders = [run.checkpoints, *sorted(run.abandoned.glob("t*"))]
        bodies = [found.body for folder in folders for found in find_checkpoints(folder) if found.body]
        sealed = {
            body.step: Position(*body.position)
            for body in bodies
            if counts(body.timeline, body.step, self._line)
        }
        self.sealed = max(sealed, default=0)
        made = {step: place for step, number, place in rows if counts(number, step, self._line)}
        for step in made.keys() & sealed.keys():
            if linear(self.plan, made[step]) != linear(self.plan, sealed[step]):
                raise DataError(
                    f"{run.metrics}: step {step} has position {made[step].as_list()}, its checkpoint at "
                    f"{sealed[step].as_list()}; run `stoker audit` and restore the log"
                )
        known = sorted({**sealed, **made, 0: START}.items())
        self.marks = [Mark(step, place, linear(self.plan, place)) for step, place in known]
        launches = read_launches(run.launches)[0]
        settings = launches[-1].settings if launches else {}
        self.steps = int(settings.get("steps") or 0)
        self._batch = int(settings.get("global_batch") or pipeline.train.global_batch)
        if pipeline.train.run == name and (pipeline.train.steps or not self.steps):
            self.steps = pipeline.train.horizon
        self.finished = self._finished()

    @property
    def last(self) -> Mark:
        """Returns the mark of the newest step."""
        return self.marks[-1]

    def step(self, number: int) -> Step:
        """Returns a step that was made, or the next one, which may have failed; else raises UsageError."""
        if number < 1:
            raise UsageError(f"step {number}: steps count from 1")
        found = bisect_left(self.marks, number, key=lambda mark: mark.step)
        if found == len(self.marks):
            return self._next(number)
        before, mark = self._step_at(found)
        begins, ends = before.position, mark.position
        windows = self._accounts.applied(ends) - self._accounts.applied(begins)
        pieces = take(self.plan, begins, windows, self.skips)
        assert pieces is not None  # `linear` found the mark's position inside the plan
        return Step(
            number, self._made_on(number), begins, after(pieces, begins), pieces, number <= self.sealed
        )

    def _next(self, number: int) -> Step:
        begins, others = self.last.position, [line for line, step in self._given_up if step >= number]
        is_next = number == self.last.step + 1 and not others
        pieces = take(self.plan, begins, self._batch, self.skips) if is_next else None
        if pieces is None:
            raise UsageError(self._not_made(number, others))
        return Step(number, self.timeline, begins, after(pieces, begins), pieces, sealed=False, made=False)

    def use(self, entry: int, offset: int) -> Use:
        """Returns the fate of the window at an offset of a plan entry in this history."""
        position = Position(entry, offset)
        place = linear(self.plan, position)
        if self._accounts.applied(Position(entry, offset + 1)) == self._accounts.applied(position):
            return Use("skipped")
        if place < self.last.windows:
            _, mark = self._step_at(bisect_right(self.marks, place, key=lambda mark: mark.windows))
            step = mark.step
            return Use("applied", step, self._made_on(step), step <= self.sealed)
        return Use("beyond" if self.finished else "planned")

    def _made_on(self, step: int) -> int:
        """Returns the timeline that made a step of this history: the oldest not given up before it."""
        return min(number for number, upto in self._line if upto is None or step <= upto)

    def _step_at(self, found: int) -> tuple[Mark, Mark]:
        """Returns the marks before and after the step of `marks[found]`; raises DataError for lost rows."""
        before, mark = self.marks[found - 1], self.marks[found]
        if mark.step != before.step + 1:
            raise DataError(
                f"{self.run.metrics}: no row between steps {before.step} and {mark.step}; "
                "`stoker audit` says what is missing"
            )
        return before, mark

    def _not_made(self, number: int, others: list[int]) -> str:
        told = f"run {self.run.root.name} has come to step {self.last.step} of timeline {self.timeline}"
        if others:
            return f"{told}; step {number} was made on timeline {max(others)}: add --timeline {max(others)}"
        return f"{told}; step {number} is not trained yet, ask again when it is"

    def _finished(self) -> str | None:
        """Returns why the run is over; None while it continues, or if more steps were requested since."""
        found = (read_whole(self.run.consumed) or {}).get("finished")
        over = self.plan.ended if found == DATA_EXHAUSTED else self.last.step >= self.steps
        return str(found) if found is not None and over else None
