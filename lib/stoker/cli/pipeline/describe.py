"""`stoker describe`: what is known of one thing, what happened to it, what comes next, what you can do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from stoker.cli.complete import offer
from stoker.cli.options import did_you_mean, json_option, pipeline_file, plural, print_json
from stoker.cli.pipeline import describe_things as things
from stoker.cli.pipeline.described import Description, Question
from stoker.cli.pipeline.events import STDOUT
from stoker.cli.pipeline.status import folded_row
from stoker.config.schema import Pipeline
from stoker.kit.event_types import register
from stoker.kit.terminal import BOLD, COLOURS, PLAIN, YELLOW, coloured, columns_of, in_words, paint, sentence
from stoker.store.errors import UsageError
from stoker.store.layout import DAEMONS

LONGEST = 300  # characters shown of a fact: a reader's words may be long; --json has all

# What finds a thing of each kind, in this order: a name of several kinds is the first one's.
KINDS: dict[str, Callable[[Question], Description | None]] = {
    "daemon": things.daemon,
    "event": things.event,
    "alert": things.alert,
    "step": things.step,
    "launch": things.launch,
    "quarantine id": things.quarantined,
    "source": things.source,
    "shard set": things.shard_set,
}


@click.command(epilog="Example: stoker describe /etc/stoker/fineweb.yaml 000_00012.parquet")
@pipeline_file
@click.argument("thing", shell_complete=offer("step", "quarantined"))
@json_option
def describe(pipeline: Pipeline, thing: str, as_json: bool) -> None:
    """Show what is known of THING, what happened to it, what comes next, and what you can do.

    THING is a source file's path, a shard set's key or its first 6 digits or more, a step, a launch's id, an
    entry of the quarantine, a daemon, an event's word or an alert. A number is a step where the run has or
    plans one. Reads the state directory alone, and may run beside the daemons. Exit code 64: no such thing.
    """
    report = look(Question(pipeline, thing))
    if as_json:
        print_json(report)
        return
    columns = columns_of(STDOUT) if sys.stdout.isatty() else sys.maxsize
    for title, text, colour in rows(report):
        line = folded_row(title, text, columns)
        click.echo(paint(line, colour) if coloured(STDOUT) else line, color=True)


def look(question: Question) -> dict[str, Any]:
    """Returns the report of the thing; raises UsageError with the nearest name, or what could not be read."""
    pipeline, thing = question.pipeline, question.thing
    for kind, find in KINDS.items():
        if (found := find(question)) is not None:
            about = {"kind": kind, "name": found.name, "facts": found.facts, "next": found.next}
            about |= {"do": [*filter(None, found.do)], "history": question.history(found.words)}
            return {"v": 1, "pipeline": pipeline.name, **about, "unread": list(question.unread)}
    for problem in filter(None, question.unread.values()):  # it may be in there
        raise problem
    names = [*DAEMONS, *register(), *things.rules(), *things.launches(question), *things.entries(question)]
    names += things.listed(question)
    near = did_you_mean(thing, names, "`stoker describe --help` says what it can be")
    raise UsageError(f"{thing!r} is none of these of {pipeline.name}: {', '.join(KINDS)}; {near}")


def rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields title, text and colour of what is shown as text; what is 0, empty or unknown is no news."""
    yield f"{report['kind']} {report['name']}", "", BOLD
    for name, value in report["facts"].items():
        if (value or name == "timeline") and value != report["name"]:
            title, text = in_words(name, value)
            yield f"  {title}", text[:LONGEST], PLAIN
    yield "history", f"{plural(report['history']['count'], 'event')} in the logs", BOLD
    for event in report["history"]["events"]:
        yield event["time"], sentence(event), COLOURS.get(str(event.get("level")), PLAIN)
    yield from (("next", text, PLAIN) for text in [report["next"]] if text)
    yield from (("what you can do", text, PLAIN) for text in report["do"])
    yield from (("not readable", text, YELLOW) for text in report["unread"])
