"""Which checkpoints are due for which suites: a pure function of the pipeline's entries and what there is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stoker.config.schema_evaluation import SuiteSchedule


@dataclass(frozen=True)
class Course:
    """The steps of the checkpoints of the run's history.

    `made` were proven, pruned ones too, in order; `here` can be read now. `is_over`: the run ends at the last.
    """

    made: Sequence[int]
    here: Collection[int]
    milestones: Collection[int] = ()
    is_over: bool = False

    def upto(self, step: int) -> Course:
        """Returns the course as it was when the checkpoint of a step was the newest."""
        here = [one for one in self.here if one <= step]
        is_over = self.is_over and len(here) == len(self.here)
        return replace(self, made=[one for one in self.made if one <= step], here=here, is_over=is_over)


def due(
    entries: Sequence[SuiteSchedule], course: Course, done: Mapping[str, Collection[int]]
) -> Iterator[tuple[SuiteSchedule, int]]:
    """Yields the entries that are due, each with a step; `done` are the evaluated steps by suite.

    First the checkpoint that another suite was evaluated on: a promotion needs all suites of one checkpoint,
    which none would have if each took the newest as its turn comes.
    """
    begun = max((step for steps in done.values() for step in steps), default=0)
    for seen in (course.upto(begun), course):
        for entry in entries:
            if (step := _step(entry, seen, done.get(entry.name, ()), begun)) is not None:
                yield entry, step


def _step(entry: SuiteSchedule, course: Course, done: Collection[int], begun: int) -> int | None:
    """Returns the newest step that an entry is due for."""
    here, last = sorted(course.here), max(done, default=0)
    if not here:
        return None
    wanted = set[int]()
    if "milestones" in entry.at:
        wanted.update(step for step in here if step in course.milestones)
    if "finish" in entry.at and course.is_over:
        wanted.add(here[-1])
    if entry.every_steps:
        mark = here[-1] // entry.every_steps * entry.every_steps
        wanted.update([step for step in here if last < mark <= step][:1])
    if entry.every_checkpoints:
        since = [step for step in course.made if step > last][entry.every_checkpoints - 1 :]
        wanted.update([step for step in since if step in course.here][:1])
    if not entry.has_time:
        wanted.update({begun} & set(here))  # it goes with the others
    return max(wanted - set(done), default=None)


def next_stop(entries: Sequence[SuiteSchedule], step: int, milestones: Collection[int]) -> int | None:
    """Returns the step where a launch from `step` ends for an evaluation between launches; None: nowhere."""
    between = [entry for entry in entries if entry.where == "between"]
    stops = [(step // each.every_steps + 1) * each.every_steps for each in between if each.every_steps]
    stops += [at for each in between if "milestones" in each.at for at in milestones if at > step]
    return min(stops, default=None)
