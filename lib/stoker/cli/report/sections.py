"""The sections of a report, each made from disk alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from stoker.cli.options import plural
from stoker.cli.pipeline.status import gpus_line
from stoker.cli.report.parts import Missing, Part, Report, Section, Source, Table, judged
from stoker.cli.report.samples import moment
from stoker.cli.report.steps import Pairs, Steps
from stoker.cli.runs.runs import HEAD, launches, row_of
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_count, format_duration
from stoker.corpus.quarantine.directory import read_quarantine
from stoker.observe.drawing import MOST_COLOURS, Mark, Panel, Points
from stoker.observe.verdict import NAMES
from stoker.plan.timelines import read_timelines
from stoker.store.errors import StokerError
from stoker.store.layout import DAEMONS, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import utc_now
from stoker.supervise.run.goodput import read_account
from stoker.supervise.run.launch_record import read_launches

MOST_ROWS = 50  # of a table
MOST_TIMELINES = 3  # with curves of their own
MOST_MARKS = 200
ROLE, FREE = "_rss_bytes", "_free_bytes"
GPUS = {
    "gpu_memory_used_bytes": ("Memory in use on all GPUs", "bytes"),
    "gpu_utilization_ratio": ("Mean utilisation of the GPUs", "share"),
}


def report_of(pipeline: Pipeline) -> Report:
    """Returns the report on a pipeline and its run."""
    source, sections = Source(pipeline), list[Section]()
    for title, make in SECTIONS.items():
        sections.append(Section(title))
        sections[-1].take(make(source))
    judgement, left = judged(source)
    run = pipeline.train.run
    return Report(pipeline.name, str(pipeline.file), run, utc_now(), judgement, left, sections)


def _loss(source: Source) -> Iterator[Part]:
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
                curves[f"{name}, {kind}" if len(named) > 1 else kind] = _points(pairs)
    return curves


def _speed(source: Source) -> Iterator[Part]:
    steps = source.steps
    begun, damage = read_launches(source.run.launches)
    yield from _damaged("launches.jsonl", damage)
    if not steps.speeds:
        yield Missing("no row of the training log has a speed and a time")
        return
    at, speeds = _points(steps.speeds)
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


def _goodput(source: Source) -> Iterator[Part]:
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


def _launches(source: Source) -> Iterator[Part]:
    books: Mapping[str, Any] = {}
    with contextlib.suppress(StokerError, OSError):  # the section before says why
        books = source.books or books
    found, damage = launches(source.pipeline, source.pipeline.train.run, books)
    yield from _damaged("runs.jsonl", damage)
    if not found:
        yield Missing("no launch has begun yet")
        return
    yield f"{len(found):,} launched, the newest first{_cut(found)}"
    rows = [
        (*row_of(one), one["detail"] if one["exit_class"] else "") for one in found[: -MOST_ROWS - 1 : -1]
    ]
    yield Table((*HEAD, "how"), rows)


def _memory(source: Source) -> Iterator[Part]:
    for daemon in DAEMONS:
        columns = source.samples[daemon]
        roles = {name.removesuffix(ROLE): one for name, one in columns.items() if name.endswith(ROLE)}
        most = sorted(roles, key=lambda role: -roles[role][1].max())[:MOST_COLOURS]
        title = NAMES[daemon].removeprefix("the ").capitalize()
        if most:
            yield Panel(title, {role: roles[role] for role in most}, over="time")
            peaks = [f"{role} {format_bytes(roles[role][1].max())}" for role in most]
            yield f"{title}, most of each role: {', '.join(peaks)}"
        else:
            yield Missing(f"{title}: no sample that can be read; it writes one a minute")


def _gpus(source: Source) -> Iterator[Part]:
    columns = source.samples[TRAIN_SUPERVISOR]
    known = [name for name in GPUS if name in columns]
    for name in known:
        title, unit = GPUS[name]
        yield Panel(title, {"GPUs": columns[name]}, unit=unit, over="time")
    now = gpus_line(source.body(TRAIN_SUPERVISOR).get("gpus") or {})
    if now or not known:
        yield f"now: {now}" if now else Missing("no GPU was sampled")


def _disks(source: Source) -> Iterator[Part]:
    free: dict[str, Points] = {}
    for daemon in (STAGE_SHARD, *DAEMONS):  # which knows all disks; the others the state disk
        for name, points in source.samples[daemon].items():
            if name.endswith(FREE):
                free.setdefault(name.removesuffix(FREE), points)
    if free:
        yield Panel("Bytes free", free, over="time")
        yield (
            ", ".join(f"{disk} {format_bytes(sizes[-1])}" for disk, (_, sizes) in free.items()) + " free last"
        )
    else:
        yield Missing("no sample of a disk that can be read; the daemons write one a minute")
    full = {work: left for work, left in source.facts.times.items() if work.endswith(" disk")}
    yield from (f"{work}: full {left}" for work, left in full.items())


def _quarantine(source: Source) -> Iterator[Part]:
    found = [
        one for one in read_quarantine(source.pipeline.layout.quarantine) if one.things or not one.released
    ]
    if not found:
        yield "nothing is in quarantine"
        return
    size = format_bytes(sum(one.bytes for one in found))
    yield f"{len(found):,} in quarantine, {size}, the newest first{_cut(found)}"
    rows = [(one.path or one.name, one.kind, one.when, one.reason) for one in found[:MOST_ROWS]]
    yield Table(("what", "kind", "since", "reason"), rows)


def _damaged(log: str, damage: Sequence[str]) -> Iterator[Part]:
    if damage:
        more = f"; and {len(damage) - 1:,} more" if damage[1:] else ""
        yield Missing(f"{log} is damaged, what else is in it is shown: {damage[0]}{more}")


def _cut(found: Sequence[object]) -> str:
    return f", of which {MOST_ROWS} are shown" if len(found) > MOST_ROWS else ""


def _points(pairs: Pairs) -> Points:
    table = np.array(sorted(pairs), dtype=float)
    return table[:, 0], table[:, 1]


SECTIONS = {
    "Loss": _loss,
    "Throughput": _speed,
    "Where the time went": _goodput,
    "Launches": _launches,
    "Memory by role": _memory,
    "GPUs": _gpus,
    "Disks": _disks,
    "Quarantine": _quarantine,
}
