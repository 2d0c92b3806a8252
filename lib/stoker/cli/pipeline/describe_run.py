"""What `stoker describe` knows of a step and a launch of the pipeline's run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stoker.checkpoints.format import checkpoint_name
from stoker.checkpoints.retention import CheckpointEntry, counts, find_checkpoints
from stoker.cli.pipeline.described import Description, Question
from stoker.cli.pipeline.events import MUTED, ROUTINE
from stoker.observe.status import read_status
from stoker.plan.timelines import Timelines, ancestry, read_timelines
from stoker.store.layout import TRAIN_SUPERVISOR, RunLayout
from stoker.store.record import read_record
from stoker.supervise.run.launch_ends import LaunchEnd, parse_end, read_ends
from stoker.supervise.run.launch_record import Launched, Makers, read_launches
from stoker.supervise.run.step_rows import rows_at
from stoker.supervise.trainer_kind import kind_of

MOST_DIGITS = 12  # of a step
FIGURES = ("loss", "val_loss", "lr", "grad_norm", "tokens", "tokens_per_s", "position", "micro_batch", "time")
NUMERICS = ("steps", "global_batch", "micro_batch", "precision")  # of a launch's settings


@dataclass(frozen=True)
class Books:
    """What is on disk about a run; each part is read when it is first asked for."""

    question: Question

    @property
    def layout(self) -> RunLayout:
        return self.question.pipeline.layout.run(self.question.pipeline.train.run)

    @cached_property
    def timelines(self) -> Timelines:
        return self.question.read(read_timelines, self.layout.timelines) or Timelines()

    @cached_property
    def launches(self) -> list[Launched]:
        found, damage = self.question.read(read_launches, self.layout.launches) or ([], ())
        self.question.damaged(self.layout.launches, damage)
        return found

    @cached_property
    def ends(self) -> list[LaunchEnd]:
        """The launches that ended, and the one that has no line yet."""
        found, damage = self.question.read(read_ends, self.layout.runs) or ([], ())
        self.question.damaged(self.layout.runs, damage)
        last = self.question.record(
            lambda body: body.get("launch") and parse_end(body["launch"]), self.layout.goodput
        )
        return found if not last or last.launch in {one.launch for one in found} else [*found, last]

    @cached_property
    def record(self) -> Mapping[str, Any]:
        return self.question.read(read_record, self.layout.record) or {}

    @cached_property
    def status(self) -> Mapping[str, Any]:
        """The last status of the train supervisor; {} where it does not run."""
        about = (self.question.read(read_status, self.question.pipeline.layout) or {}).get(
            TRAIN_SUPERVISOR, {}
        )
        body: Mapping[str, Any] = about["body"] if about.get("running") else {}
        return body

    @cached_property
    def checkpoints(self) -> Sequence[CheckpointEntry]:
        return self.question.read(find_checkpoints, self.layout.checkpoints) or ()

    @property
    def proven_step(self) -> int:
        """The step of the newest proven checkpoint; 0 without one."""
        return int((self.question.read(read_record, self.layout.consumed) or {}).get("step") or 0)

    def state(self) -> str:
        """Returns what the run does now, or waits for."""
        record = self.record
        if halted := record.get("halted"):
            return f"the run is halted: {halted['reason']}; {halted['remedy']}"
        if record.get("state") in ("finished", "failed"):
            return f"nothing: the run is {record['state']} ({record.get('finished') or record.get('reason')})"
        if paused := record.get("paused"):
            return f"the run is paused by {paused['by']}, until it is resumed"
        doing = self.status.get("waiting_for") or self.status.get("doing")
        return (
            f"the train supervisor: {doing}"
            if doing
            else "the next start of the train supervisor launches it"
        )


def step(question: Question) -> Description | None:
    """Describes a step of the run: on which timeline it was made, by whom, and whether it counts."""
    thing, books = question.thing, Books(question)
    if not (thing.isascii() and thing.isdigit() and len(thing) <= MOST_DIGITS):
        return None
    number, proven = int(thing), books.proven_step
    logged = {
        timeline: rows
        for timeline in range(books.timelines.current, -1, -1)
        if (rows := question.read(rows_at, books.layout.metrics, timeline, number))
    }
    train = question.pipeline.train
    last = books.status.get("steps") or (train.horizon if train.follows_plan else train.steps) or 0
    if not logged and number > max(proven, last):
        return None
    history = ancestry(books.timelines)
    of = next((each for each in logged if counts(each, number, history)), None)
    timeline = of if of is not None else next(iter(logged), books.timelines.current)
    is_made, is_kept = bool(logged) or number <= proven, of is not None or not logged
    state = "planned" if not is_made else "committed" if number <= proven else "made, not proven yet"
    state = state if is_kept else "rolled back"
    row = {name: value for each in logged.get(timeline, ()) for name, value in each.items()}
    maker = Makers(books.launches, books.timelines, timeline).of(number) if is_made else None
    there = sorted(one.step for one in books.checkpoints if _is_of(one, books.timelines, timeline))
    before = max((each for each in there if each < number), default=None)
    after = min((each for each in there if each >= number), default=None)
    facts = {
        "run": train.run,
        "state": state,
        "timeline": timeline if is_made else None,
        "also_on_timelines": [each for each in logged if each != timeline],
        "rolled_back_by": "" if is_kept else _fork(books.timelines, timeline, number),
        "launch": maker and maker.launch,
        **{name: row.get(name) for name in FIGURES},
        "checkpoint_before": None if before is None else checkpoint_name(before),
        "checkpoint_after": None if after is None else checkpoint_name(after),
        "newest_proven_step": proven,
    }
    then = {
        "planned": f"the run comes to it; {books.state()}",
        "committed": "nothing: a proven checkpoint holds it",
        "made, not proven yet": "the next proven checkpoint holds it; a kill before has it made again",
        "rolled back": "nothing: the run trains on without it",
    }[state]
    file, name = question.pipeline.file, checkpoint_name(number)
    do = [f"`stoker rollback {file} {before}` goes back before it"] if is_made and is_kept and before else []
    if is_made and train.follows_plan:
        do.append(f"`stoker data batch {file} {train.run} {number}` shows its documents")
    seen = question.history(
        lambda each: (
            number in (each.get("step"), each.get("resume_step")) or str(each.get("path")).endswith(name)
        ),
        [TRAIN_SUPERVISOR],
    )
    return Description(thing, facts, then, tuple(do), seen)


def _is_of(one: CheckpointEntry, timelines: Timelines, timeline: int) -> bool:
    return one.timeline is not None and counts(one.timeline, one.step, ancestry(timelines, timeline))


def _fork(timelines: Timelines, timeline: int, number: int) -> str:
    """Returns the rollback that gave up a step of a timeline."""
    found = (one for one in timelines.forks if one.number > timeline and one.from_step < number)
    return next((f"timeline {one.number}, from step {one.from_step:,}: {one.reason}" for one in found), "")


def launches(question: Question) -> Iterable[str]:
    return [one.launch for one in Books(Question(question.pipeline, "")).launches]


def launch(question: Question) -> Description | None:
    """Describes a launch: what it began with, how it ended, and what followed."""
    books, name = Books(question), question.thing
    begun = [one for one in books.launches if one.launch == name]
    end = next((one for one in books.ends if one.launch == name), None)
    if not begun and end is None:
        return None
    order = list(dict.fromkeys([one.launch for one in books.launches] + [one.launch for one in books.ends]))
    after = next((one for one in books.launches if one.launch in order[order.index(name) + 1 :]), None)
    is_running = books.status.get("launch") == name
    settings = begun[-1].settings if begun else {}
    output = books.layout.output(name)
    facts = {
        "run": question.pipeline.train.run,
        "state": "running"
        if is_running
        else "ended"
        if end and end.exit_class
        else "ended, how is not known",
        "timeline": begun[0].timeline if begun else end and end.timeline,
        "resumed_from_step": begun[0].resume_step if begun else end and end.resume_step,
        "begin": begun[0].time if begun else end and end.begin,
        "end": end and end.end,
        "class": end and end.exit_class,
        "detail": end.detail if end and not is_running else None,
        "last_step": books.status.get("step") if is_running else end and end.last_step,
        "proven_step": end and end.proven_step,
        "wall_s": end and end.wall_s,
        "goodput": end and end.goodput,
        "evidence": dict(end.evidence) if end else {},
        "settings": {key: settings[key] for key in NUMERICS if settings.get(key) is not None},
        "followed_by": after and f"{after.launch}, from step {after.resume_step:,}",
        "output": str(output) if question.read(output.exists) else None,
    }
    until = after.time if after else ""
    seen = question.history(
        lambda each: (
            (not facts["begin"] or str(facts["begin"]) <= each["time"])
            and (not until or each["time"] <= until)
            and each.get("launch", name) == name
            and each.get("event") not in ROUTINE | MUTED
        ),
        [TRAIN_SUPERVISOR],
    )
    then = f"{after.launch} went on from step {after.resume_step:,}" if after else books.state()
    remedy = kind_of(question.pipeline).remedies.get(end.exit_class or "") if end else None  # type: ignore[call-overload]
    do = [remedy] if remedy else []
    do += [f"`less {output}` has what it printed"] if facts["output"] else []
    return Description(name, facts, then, tuple(do), seen)
