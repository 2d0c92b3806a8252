"""The sections of a report about the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from stoker.cli.options import plural
from stoker.cli.report.parts import MOST_ROWS, Missing, Part, Source, Table, shown_of
from stoker.cli.report.series import Steps, moment, points
from stoker.cli.runs.runs import HEAD, launches_of, row_of
from stoker.config.units import format_count, format_duration
from stoker.observe.drawing import Mark, Panel, Points
from stoker.plan.timelines import read_timelines
from stoker.store.errors import StokerError
from stoker.supervise.run.goodput import read_account
from stoker.supervise.run.launch_record import read_launches

MOST_TIMELINES = 3  # with curves of their own
MOST_MARKS = 200


def loss(source: Source) -> Iterator[Part]:
    steps = source.steps
    yield from _left_out(steps)
    curves = _by_timeline(steps)
    if curves:
        dots = frozenset(name for name in curves if name.endswith("held-out"))
        yield Panel("Loss by step, nats per token", curves, unit="loss", over="step", dots=dots)
    else:
        yield Missing("no step has been made yet")
    rows = [
        (name, f"{values[-1]:.4f} at step {at[-1]:,.0f}", f"{values.min():.4f}")
        for name, (at, values) in curves.items()
    ]
    yield Table(("loss", "newest", "lowest"), rows)
    for fork in read_timelines(source.run.timelines).forks:
        back = f"goes back to step {fork.from_step:,} of timeline {fork.parent}"
        yield f"timeline {fork.number} {back}: {fork.reason}"


def _by_timeline(steps: Steps) -> dict[str, Points]:
    """Returns the curves of the newest timelines, and one of those before together."""
    numbers = sorted({*steps.trained, *steps.heldout})
    older = numbers[:-MOST_TIMELINES]
    named = {f"timelines 0 to {older[-1]}": older} if older else {}
    named |= {f"timeline {number}": [number] for number in numbers[-MOST_TIMELINES:]}
    curves = {}
    for name, of in named.items():
        for kind, found in (("training", steps.trained), ("held-out", steps.heldout)):
            if pairs := [pair for number in of for pair in found.get(number, ())]:
                curves[f"{name}, {kind}" if len(named) > 1 else kind] = points(pairs)
    return curves


def speed(source: Source) -> Iterator[Part]:
    steps = source.steps
    begun, damage = read_launches(source.run.launches)
    yield from _damaged("launches.jsonl", damage)
    if not steps.speeds:
        yield Missing("no row of the training log has a speed and a time")
        return
    at, speeds = points(steps.speeds)
    marks = []
    for one in begun:
        with contextlib.suppress(ValueError):
            marks.append(Mark(moment(one.time), "launch"))
    shown = [mark for mark in marks if at[0] <= mark.at_s <= at[-1]][-MOST_MARKS:]
    yield Panel("Tokens per second", {"tokens/s": (at, speeds)}, shown, unit="count", over="time")
    yield f"median {format_count(float(np.median(speeds)))} tokens/s, last {format_count(speeds[-1])}"


def _left_out(steps: Steps) -> Iterator[Part]:
    if steps.unread:
        yield Missing(f"{plural(steps.unread, 'line')} of the training log cannot be read")
    if steps.share < 1:
        part = f"{100 * steps.share:.0f} % of the training log, in pieces spread over it,"
        yield Missing(f"the log is long: {part} are drawn; a spike between two pieces is not seen")


def goodput(source: Source) -> Iterator[Part]:
    if (books := source.books) is None:
        yield Missing("no run has begun yet, or the account of its time (goodput.json) is not there")
        return
    account = read_account(books["account"]).figures()
    spent = {**account["seconds"], "not proven yet": account["undecided_s"]}
    most = sorted((name for name in spent if spent[name] > 0), key=lambda name: -spent[name])
    if not most:
        yield Missing("no time has been counted yet")
        return
    yield f"{100 * account['ratio']:.1f} % of {format_duration(account['wall_s'])} became proven steps"
    shares = [spent[name] / account["wall_s"] for name in most]
    rows = [
        (name.replace("_", " "), format_duration(spent[name]), f"{100 * share:.1f} %")
        for name, share in zip(most, shares, strict=True)
    ]
    yield Table(("bucket", "time", "share"), rows, shares)


def launches(source: Source) -> Iterator[Part]:
    books: Mapping[str, Any] = {}
    with contextlib.suppress(StokerError, OSError):  # the section before says why
        books = source.books or books
    found, damage = launches_of(source.pipeline, source.pipeline.train.run, books)
    yield from _damaged("runs.jsonl", damage)
    if not found:
        yield Missing("no launch has begun yet")
        return
    yield f"{len(found):,} launched, the newest first{shown_of(found)}"
    rows = [
        (*row_of(one), one["detail"] if one["exit_class"] else "") for one in found[: -MOST_ROWS - 1 : -1]
    ]
    yield Table((*HEAD, "how"), rows)


def _damaged(log: str, damage: Sequence[str]) -> Iterator[Part]:
    if damage:
        more = f"; and {len(damage) - 1:,} more" if damage[1:] else ""
        yield Missing(f"{log} is damaged, what else is in it is shown: {damage[0]}{more}")
