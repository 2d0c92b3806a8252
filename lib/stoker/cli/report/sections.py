"""The sections of a report, in their order; each is made from disk alone."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from stoker.cli.options import plural
from stoker.cli.report.page import Missing, Part, Table
from stoker.cli.report.series import Pairs, Steps, points, read_columns, read_steps
from stoker.cli.runs.runs import HEAD, launches_of, row_of
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_count, format_duration
from stoker.corpus.quarantine.directory import read_quarantine
from stoker.observe.drawing import Panel, Points
from stoker.observe.verdict import NAMES, verdict
from stoker.plan.timelines import read_timelines
from stoker.store.errors import StokerError
from stoker.store.layout import DAEMONS, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import read_record
from stoker.supervise.outlook import gather
from stoker.supervise.run.goodput import read_account

MOST_ROWS = 50  # of a table
MOST_TIMELINES = 3  # with curves of their own
NO_SAMPLE = "no sample that can be read; each daemon writes one a minute"
GPUS = {
    "gpu_memory_used_bytes": ("Memory in use on all GPUs", format_bytes),
    "gpu_utilization_ratio": ("Mean utilisation of the GPUs", lambda share: f"{100 * share:.0f} %"),
}


class Source:
    """A pipeline, of which what several sections ask for is read once."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.run = pipeline.layout.run(pipeline.train.run)

    @cached_property
    def steps(self) -> Steps:
        return read_steps(self.run.metrics)

    @cached_property
    def samples(self) -> dict[str, dict[str, Points]]:
        return {daemon: read_columns(self.pipeline.layout.samples(daemon)) for daemon in DAEMONS}


def sections_of(pipeline: Pipeline) -> dict[str, list[Part]]:
    """Returns the sections of the report on a pipeline and its run, the verdict first."""
    source = Source(pipeline)
    return {title: [*_readable(make(source))] for title, make in SECTIONS.items()}


def _readable(parts: Iterator[Part]) -> Iterator[Part]:
    """Yields the parts up to the first that cannot be made; then says why."""
    try:
        yield from parts
    except (StokerError, OSError) as error:
        yield Missing(str(error))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Of all that other versions wrote, each file may lack a field or have another kind of value.
        yield Missing(f"what is on disk has another form than this version of Stoker writes ({error!r})")


def _outlook(source: Source) -> Iterator[Part]:
    facts = gather(source.pipeline)
    yield verdict(facts)
    for work, left in facts.times.items():
        yield f"{work}{' full' if work.endswith(' disk') else ''}: {left}"


def _loss(source: Source) -> Iterator[Part]:
    steps = source.steps
    if steps.unread:
        yield Missing(f"{plural(steps.unread, 'line')} of the training log cannot be read")
    if steps.share < 1:
        part = f"{100 * steps.share:.0f} % of the training log, in pieces spread over it,"
        yield Missing(f"the log is long: {part} are drawn; a spike between two pieces is not seen")
    together = defaultdict[str, Pairs](list)
    newest = max((timeline for timeline, _ in steps.losses), default=0)
    for (timeline, kind), pairs in sorted(steps.losses.items()):
        name = f"timeline {timeline}" if timeline > newest - MOST_TIMELINES else "older timelines"
        together[f"{name}, {kind}"] += pairs
    curves = {name: points(pairs) for name, pairs in together.items() if pairs}
    if curves:
        dots = frozenset(name for name in curves if name.endswith("held-out"))
        yield Panel("Loss by step, nats per token", curves, unit="{:.5g}".format, over="step", dots=dots)
    else:
        yield Missing("no step has been made yet")
    for fork in read_timelines(source.run.timelines).forks:
        back = f"goes back to step {fork.from_step:,} of timeline {fork.parent}"
        yield f"timeline {fork.number} {back}: {fork.reason}"


def _speed(source: Source) -> Iterator[Part]:
    if source.steps.speeds:
        at, speeds = points(source.steps.speeds)
        yield Panel("Tokens per second", {"tokens/s": (at, speeds)}, unit=format_count, over="time")
        yield f"median {format_count(float(np.median(speeds)))} tokens/s"
    else:
        yield Missing("no row of the training log has a speed and a time")


def _goodput(source: Source) -> Iterator[Part]:
    if not source.run.goodput.exists():
        yield Missing("no run has begun yet, or the account of its time (goodput.json) is not there")
        return
    account = read_account(read_record(source.run.goodput)["account"]).figures()
    if not (whole_s := account["wall_s"]):
        yield Missing("no time has been counted yet")
        return
    yield f"{100 * account['ratio']:.1f} % of {format_duration(whole_s)} became proven steps"
    spent = {**account["seconds"], "not proven yet": account["undecided_s"]}
    rows = [
        (name.replace("_", " "), format_duration(spent[name]), f"{100 * spent[name] / whole_s:.1f} %")
        for name in sorted(spent, key=lambda name: -spent[name])
        if spent[name] > 0
    ]
    yield Table(("bucket", "time", "share"), rows)


def _launches(source: Source) -> Iterator[Part]:
    books: Mapping[str, Any] = {}
    with contextlib.suppress(StokerError, OSError):  # the section before says why
        books = read_record(source.run.goodput)
    found, damage = launches_of(source.pipeline, source.pipeline.train.run, books)
    if damage:
        yield Missing(f"runs.jsonl is damaged, what else is in it is shown: {damage[0]}")
    rows = [(*row_of(one), one["detail"] if one["exit_class"] else "") for one in reversed(found)]
    yield from _newest(rows, (*HEAD, "how"), "launched", Missing("no launch has begun yet"))


def _newest(rows: Sequence[Sequence[str]], head: Sequence[str], what: str, none: Part) -> Iterator[Part]:
    """Yields a table of the first rows, which are the newest, and how many there are."""
    if rows:
        shown = f", of which {MOST_ROWS} are shown" if len(rows) > MOST_ROWS else ""
        yield f"{len(rows):,} {what}, the newest first{shown}"
        yield Table(head, rows[:MOST_ROWS])
    else:
        yield none


def _memory(source: Source) -> Iterator[Part]:
    for daemon in DAEMONS:
        title = NAMES[daemon].removeprefix("the ").capitalize()
        if roles := _columns(source, daemon, "_rss_bytes"):
            yield Panel(title, roles, over="time")
        else:
            yield Missing(f"{title}: {NO_SAMPLE}")


def _columns(source: Source, daemon: str, suffix: str) -> dict[str, Points]:
    columns = source.samples[daemon].items()
    return {name.removesuffix(suffix): points for name, points in columns if name.endswith(suffix)}


def _gpus(source: Source) -> Iterator[Part]:
    columns = source.samples[TRAIN_SUPERVISOR]
    for name, (title, unit) in GPUS.items():
        if name in columns:
            yield Panel(title, {"GPUs": columns[name]}, unit=unit, over="time")
    if not columns.keys() & GPUS.keys():
        yield Missing("no GPU was sampled")


def _disks(source: Source) -> Iterator[Part]:
    free: dict[str, Points] = {}
    for daemon in (*DAEMONS, STAGE_SHARD):  # the last knows all disks; the others the state disk
        free |= _columns(source, daemon, "_free_bytes")
    yield Panel("Bytes free", free, over="time") if free else Missing(NO_SAMPLE)


def _quarantine(source: Source) -> Iterator[Part]:
    found = read_quarantine(source.pipeline.layout.quarantine)
    kept = [one for one in found if one.things or not one.released]
    rows = [(one.path or one.name, one.kind, one.when, one.reason) for one in kept]
    what = f"in quarantine, {format_bytes(sum(one.bytes for one in kept))}"
    yield from _newest(rows, ("what", "kind", "since", "reason"), what, "nothing is in quarantine")


SECTIONS = {
    "Time left": _outlook,
    "Loss": _loss,
    "Throughput": _speed,
    "Where the time went": _goodput,
    "Launches": _launches,
    "Memory by role": _memory,
    "GPUs": _gpus,
    "Disks": _disks,
    "Quarantine": _quarantine,
}
