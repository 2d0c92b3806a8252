"""What `stoker describe` knows of a step and a launch of the pipeline's run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict
from typing import Any

from stoker.checkpoints.retention import History, counts, find_checkpoints
from stoker.cli.pipeline.described import Description, Question
from stoker.cli.pipeline.events import MUTED, ROUTINE
from stoker.plan.timelines import Timelines, ancestry, read_timelines
from stoker.store.layout import TRAIN_SUPERVISOR, RunLayout
from stoker.supervise.run.launch_ends import read_ends
from stoker.supervise.run.launch_record import Launched, Makers, read_launches
from stoker.supervise.run.step_rows import rows_at
from stoker.supervise.trainer_kind import kind_of

MOST_DIGITS = 12  # of a step
SETTINGS = ("steps", "global_batch", "micro_batch", "seq_len", "precision")  # of all, those most asked for
PLANNED, COMMITTED, MADE, BACK = "planned", "committed", "made, not proven yet", "rolled back"
THEN = {
    COMMITTED: "nothing: a proven checkpoint holds it",
    MADE: "the next proven checkpoint holds it; after a kill before that it is made again",
    BACK: "nothing: the run trains on without it",
}


def step(question: Question) -> Description | None:
    """Describes a step of the run: on which timeline it was made, by which launch, and whether it counts."""
    thing, pipeline, run = question.thing, question.pipeline, _run(question)
    if not (thing.isascii() and thing.isdigit() and len(thing) <= MOST_DIGITS):
        return None
    number, unread = int(thing), len(question.unread)
    timelines = question.read(read_timelines, run.timelines) or Timelines()
    newest_first = range(timelines.current, -1, -1)
    logged = {one: rows for one in newest_first if (rows := question.read(rows_at, run.metrics, one, number))}
    proven = question.record(lambda body: int(body["step"]), run.consumed) or 0
    is_known = logged or len(question.unread) == unread  # else it may be in what could not be read
    if not is_known or (not logged and number > max(proven, kind_of(pipeline).horizon(pipeline.train) or 0)):
        return None
    timeline, state = standing(number, logged, ancestry(timelines), proven)
    facts: dict[str, Any] = {"run": pipeline.train.run, "state": state}
    row = {name: value for each in logged.get(timeline, ()) for name, value in each.items()}
    there = question.read(_checkpoints, run, ancestry(timelines, timeline)) or []
    facts |= {name: row.pop(name, None) for name in ("timeline", "time", "loss", "val_loss")}
    facts |= {
        "figures": row,
        "logged_on_timelines": list(logged),
        "launch": _maker(question, timelines, timeline, number) if state != PLANNED else None,
        "given_up_by": _given_up_by(timelines, timeline, number) if state == BACK else None,
        "checkpoint_before": (before := max((one for one in there if one < number), default=None)),
        "checkpoint_after": min((one for one in there if one >= number), default=None),
        "newest_proven_step": proven,
    }
    do = [f"`stoker rollback {pipeline.file} {before}` goes back before it"] * bool(
        before and state in (COMMITTED, MADE)
    )
    if state != PLANNED and pipeline.train.follows_plan:
        do.append(f"`stoker data batch {pipeline.file} {pipeline.train.run} {number}` shows its documents")
    history = question.history(
        lambda each: number in (each.get("step"), each.get("resume_step")), [TRAIN_SUPERVISOR]
    )
    then = THEN.get(state) or f"the run comes to it; {question.judged(TRAIN_SUPERVISOR).text}"
    return Description(thing, facts, then, tuple(do), history)


def standing(number: int, logged: Collection[int], history: History, proven: int) -> tuple[int, str]:
    """Returns the timeline of a step that counts, else the newest that made it, and how the step stands.

    `logged` are the timelines with rows of it, newest first; `proven` is the newest proven checkpoint's step.
    """
    counting = [one for one in logged if counts(one, number, history)]
    if logged and not counting:
        return next(iter(logged)), BACK
    timeline = counting[0] if counting else next(one for one, _ in history if counts(one, number, history))
    return timeline, COMMITTED if number <= proven else MADE if logged else PLANNED


def _maker(question: Question, timelines: Timelines, timeline: int, number: int) -> str | None:
    found = Makers(_launched(question), timelines, timeline).of(number)
    return found.launch if found else None


def _given_up_by(timelines: Timelines, timeline: int, number: int) -> str | None:
    later = (one for one in timelines.forks if one.number > timeline and one.from_step < number)
    return next((f"timeline {one.number}, from step {one.from_step:,}: {one.reason}" for one in later), None)


def _checkpoints(run: RunLayout, history: History) -> list[int]:
    """Returns the steps of the checkpoints of a timeline's history."""
    found = find_checkpoints(run.checkpoints)
    return [one.step for one in found if one.timeline is not None and counts(one.timeline, one.step, history)]


def launch(question: Question) -> Description | None:
    """Describes a launch: what it began with, how it ended, and what followed."""
    name, run, launched = question.thing, _run(question), _launched(question)
    ended = {one.launch: one for one in question.log(read_ends, run.runs)}.get(name)
    places = [place for place, one in enumerate(launched) if one.launch == name]
    if not places and ended is None:
        return None
    after = next(iter(launched[places[-1] + 1 :]), None) if places else None
    judged = question.judged(TRAIN_SUPERVISOR)
    is_running = question.facts is not None and question.facts.body(TRAIN_SUPERVISOR).get("launch") == name
    state = "ended" if ended or after else "running" if is_running else "ended, not settled yet"
    facts: dict[str, Any] = {"run": question.pipeline.train.run, "state": state}
    if places:
        first, last = launched[places[0]], launched[places[-1]]
        facts |= {"begin": first.time, "timeline": first.timeline, "resume_step": first.resume_step}
        facts["settings"] = {name: last.settings[name] for name in SETTINGS if name in last.settings}
    facts |= asdict(ended) | {"wall_s": ended.wall_s, "goodput": ended.goodput} if ended else {}
    facts |= {"followed_by": after and after.launch, "output": _there(question, run, name)}
    begin, until = str(facts["begin"]), after.time if after else "~"
    history = question.history(
        lambda each: (
            (begin <= each["time"] <= until and each.get("launch", name) == name)
            and each.get("event") not in ROUTINE | MUTED
        ),
        [TRAIN_SUPERVISOR],
    )
    then = f"{after.launch} went on from step {after.resume_step:,}" if after else judged.text
    remedies = {str(kind): remedy for kind, remedy in kind_of(question.pipeline).remedies.items()}
    do = [remedies.get(str(facts.get("exit_class"))), *(one.do for one in judged.hands if not after)]
    do += [f"`less {facts['output']}` has what it printed"] if facts["output"] else []
    return Description(name, facts, then, tuple(filter(None, do)), history)


def _there(question: Question, run: RunLayout, name: str) -> str | None:
    output = run.output(name)
    return str(output) if question.read(output.exists) else None


def names(question: Question) -> Iterable[str]:
    """Returns the ids of the launches."""
    return [one.launch for one in _launched(question)]


def _launched(question: Question) -> list[Launched]:
    return question.log(read_launches, _run(question).launches)


def _run(question: Question) -> RunLayout:
    return question.pipeline.layout.run(question.pipeline.train.run)
