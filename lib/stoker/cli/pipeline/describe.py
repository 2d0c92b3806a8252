"""`stoker describe`: what is known of one thing, what happened to it, what comes next, what you can do."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import click

from stoker.cli.options import counts, did_you_mean, json_option, one_line, pipeline_file, plural, print_json
from stoker.cli.pipeline import describe_data, describe_run, describe_words
from stoker.cli.pipeline.described import SHOWN, Description, Question
from stoker.cli.pipeline.events import STDOUT
from stoker.config.schema import Pipeline
from stoker.kit.events import format_fields
from stoker.kit.terminal import (
    BOLD,
    COLOURS,
    PLAIN,
    coloured,
    columns_of,
    cut_sums,
    fold,
    in_words,
    paint,
    sentence,
)
from stoker.store.errors import UsageError

WIDTH = 23  # of titles: a time and its indent
OF_NOTE = ("timeline", "resume_step")  # also where it is 0; what else is 0, empty or not known is no news
LONGEST = 300  # characters of one fact in text: a reader's words may be long
Row = tuple[str, str, str]  # title, text, colour


@dataclass(frozen=True)
class Kind:
    """A kind of things: its name, what finds one, and the names to suggest one of."""

    name: str
    find: Callable[[Question], Description | None]
    names: Callable[[Question], Iterable[str]] = lambda _: ()


# In this order: a name of several kinds is the first one's.
KINDS = (
    Kind("daemon", describe_words.daemon),
    Kind("event", describe_words.event),
    Kind("alert", describe_words.alert, describe_words.names),
    Kind("launch", describe_run.launch, describe_run.names),
    Kind("step", describe_run.step),
    Kind("quarantine id", describe_data.quarantined, describe_data.entries),
    Kind("source", describe_data.source, describe_data.listed),
    Kind("shard set", describe_data.shard_set),
)


@click.command(epilog="Example: stoker describe /etc/stoker/fineweb.yaml 000_00012.parquet")
@pipeline_file
@click.argument("thing")
@json_option
def describe(pipeline: Pipeline, thing: str, as_json: bool) -> None:
    """Show what is known of THING, what happened to it, what comes next, and what you can do.

    THING is a source file's path, a shard set's key or its first 6 digits or more, a step, a launch's id, an
    entry of the quarantine, a daemon, an event's word or an alert. A number is a step where the run has or
    plans one. Reads the state directory alone, and may run beside the daemons. Exit code 64: no such thing.
    """
    question = Question(pipeline, thing)
    kind, described = find(question)
    if as_json:
        print_json(as_body(question, kind, described))
        return
    columns = columns_of(STDOUT) if sys.stdout.isatty() else 0
    for title, text, colour in rows(question, kind, described):
        folded = fold(cut_sums(one_line(text)), columns, WIDTH) if columns else one_line(text)
        line = f"{one_line(title):<{WIDTH}}{folded}".rstrip()
        click.echo(paint(line, colour) if coloured(STDOUT) else line, color=True)


def find(question: Question) -> tuple[str, Description]:
    """Returns the kind and the description of the thing; raises UsageError with the nearest name."""
    for kind in KINDS:
        if (found := kind.find(question)) is not None:
            return kind.name, found
    if question.problem is not None:  # it may be in there
        raise question.problem
    thing, pipeline = question.thing, question.pipeline
    there = f"`stoker status {pipeline.file}` and `stoker events {pipeline.file}` show what there is"
    if thing.isdigit():
        there = f"run {pipeline.train.run} has and plans no such step"
    elif re.fullmatch("[0-9a-f]+", thing):
        there = f"of a shard set's key give at least {describe_data.LEAST_DIGITS} digits"
    names = [name for kind in KINDS for name in kind.names(question)]
    names = [name for name in names if name.endswith(f"/{thing}")] or names
    what = f"{', '.join(kind.name for kind in KINDS[:-1])} or {KINDS[-1].name}"
    raise UsageError(f"{thing!r} is no {what} of {pipeline.name}; {did_you_mean(thing, names, there)}")


def as_body(question: Question, kind: str, described: Description) -> dict[str, Any]:
    """Returns what is shown as JSON."""
    return {
        "v": 1,
        "pipeline": question.pipeline.name,
        "kind": kind,
        "name": described.name,
        "facts": described.facts,
        "history": asdict(described.history),
        "next": described.next,
        "do": list(described.do),
        "unread": list(dict.fromkeys(question.unread)),
    }


def rows(question: Question, kind: str, described: Description) -> Iterator[Row]:
    """Yields what is shown as text."""
    yield f"{kind} {described.name}", "", BOLD
    for name, value in described.facts.items():
        if (value or (name in OF_NOTE and value is not None)) and value != described.name:
            title, text = in_words(name, value)
            text = _pairs(value) if isinstance(value, Mapping) else text
            yield f"  {title}", text if len(text) <= LONGEST else f"{text[:LONGEST]}...", PLAIN
    history = described.history
    told = f"{plural(history.count, 'event')}, {history.in_24_h:,} in the last 24 h"
    told += f"; the newest {SHOWN}:" if history.count > SHOWN else ""
    yield "history", told if history.count else "no event in the logs is about it", BOLD
    for each in history.events:
        yield f"  {each['time']}", sentence(each), COLOURS.get(str(each.get("level")), PLAIN)
    yield from (("next", text, PLAIN) for text in (described.next,) if text)
    yield from (("what you can do", text, PLAIN) for text in described.do)
    yield from (("not readable", text, COLOURS["warning"]) for text in dict.fromkeys(question.unread))


def _pairs(value: Mapping[str, Any]) -> str:
    """Returns counts, or key=value; what is nested is left to --json."""
    if all(type(each) is int for each in value.values()):
        return counts(value)
    return format_fields({name: each for name, each in value.items() if isinstance(each, str | int | float)})
