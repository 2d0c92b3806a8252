"""Which checkpoints are due for which suites: a pure function of the pipeline's entries and what there is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stoker.config.schema_evaluation import SuiteSchedule


@dataclass(frozen=True)
class Course:
    """The steps of the checkpoints of a run's history.

    `made` were proven, pruned ones too, in order; `here` are there. `is_over`: the run ends at the newest.
    """

    made: Sequence[int]
    here: Collection[int]
    milestones: Collection[int] = ()
    is_over: bool = False


def due(
    entries: Sequence[SuiteSchedule], course: Course, done: Mapping[str, Collection[int]]
) -> Iterator[tuple[SuiteSchedule, int]]:
    """Yields the entries that are due, each with a step; `done` are the evaluated steps by suite.

    First the checkpoint that another suite was evaluated on: a promotion needs all suites of one checkpoint,
    which none would have if each took the newest as its turn comes.
    """
    begun = max((step for steps in done.values() for step in steps), default=0)
    made, here = ([step for step in steps if step <= begun] for steps in (course.made, course.here))
    for seen in (replace(course, made=made, here=here, is_over=False), course):
        for entry in entries:
            steps = done.get(entry.name, ())
            wanted = {*_wanted(entry, seen, max(steps, default=0), begun)} & {*seen.here} - {*steps}
            if wanted:
                yield entry, max(wanted)


def _wanted(entry: SuiteSchedule, course: Course, last: int, begun: int) -> Iterator[int]:
    """Yields the steps that an entry is due for, whose last evaluated step was `last`."""
    here = sorted(course.here)
    if "milestones" in entry.at:
        yield from course.milestones
    if "finish" in entry.at and course.is_over:
        yield from here[-1:]
    if every := entry.every_steps:  # the first checkpoint past the last multiple
        mark = max(here, default=0) // every * every
        yield from [step for step in here if last < mark <= step][:1]
    if entry.every_checkpoints:
        since = [step for step in course.made if step > last][entry.every_checkpoints - 1 :]
        yield from [step for step in since if step in here][-1:]  # a slow suite falls no further behind
    if not entry.has_time:  # it goes with the others
        yield begun


def next_stop(entries: Sequence[SuiteSchedule], step: int, milestones: Collection[int]) -> int | None:
    """Returns the step where a launch from `step` ends for an evaluation between launches; None: nowhere."""
    between = [entry for entry in entries if entry.where == "between"]
    stops = [(step // each.every_steps + 1) * each.every_steps for each in between if each.every_steps]
    stops += [at for each in between if "milestones" in each.at for at in milestones if at > step]
    return min(stops, default=None)
