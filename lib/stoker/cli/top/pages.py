"""The pages of `stoker top` as rows, and what they are read from."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from stoker.checkpoints.retention import counts
from stoker.cli.pipeline.events import LABELS, ROUTINE
from stoker.cli.pipeline.status import ORDER, status_rows
from stoker.cli.runs.runs import launches_of, row_of
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_count
from stoker.kit.terminal import BOLD, COLOURS, GREEN, PLAIN, RED, YELLOW, sentence
from stoker.observe.status import read_status
from stoker.observe.verdict import verdict
from stoker.plan.timelines import ancestry, read_timelines
from stoker.store.errors import StokerError, storage_errors
from stoker.store.layout import DAEMONS, TRAIN_SUPERVISOR
from stoker.store.log import read_log
from stoker.store.record import read_whole
from stoker.supervise.outlook import gather, run_record
from stoker.supervise.run import step_rows

T = TypeVar("T")
Row = tuple[str, str, str]  # title, text, colour

REST = 500  # what is slow to read waits so many times as long as reading took: a five-hundredth of a core
TAIL_BYTES = 32 << 10  # of each log of events
STEPS_BYTES = 256 << 10  # of the training log: some 800 steps
MOST_ROWS, MOST_DAMAGE = 100, 3
SIZES = ("rss", "pss", "swap")
UTF_8 = getattr(sys.__stderr__, "encoding", "").lower().startswith("utf")  # or the terminal shows ASCII alone
BARS = "▁▂▃▄▅▆▇█" if UTF_8 else "_.-=+*%#"  # from low to high
ANOTHER_VERSION = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class Reading:
    """The facts of a pipeline; what is slow to read is kept."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._kept: dict[Callable[[Pipeline], Any], tuple[float, Any]] = {}
        self.facts = self.kept(gather)

    def renew(self) -> None:
        facts, daemons = self.kept(gather), read_status(self.pipeline.layout)
        needed = {daemon: daemons[daemon] for daemon in facts.daemons}
        self.facts = replace(facts, daemons=needed, record=run_record(self.pipeline))

    def kept(self, read: Callable[[Pipeline], T]) -> T:
        """Returns what `read` returned last; reads anew once REST times as long has passed as that took."""
        due, value = self._kept.get(read, (0.0, None))
        if time.monotonic() >= due:
            begin = time.thread_time()
            value = read(self.pipeline)
            self._kept[read] = time.monotonic() + REST * (time.thread_time() - begin), value
        found: T = value
        return found


Part = Callable[[Reading, int], Iterator[Row]]


def _renewed(reading: Reading, _: int) -> Iterator[Row]:
    reading.renew()
    yield from ()


def _status(*parts: str) -> Part:
    return lambda reading, _: status_rows(reading.facts, verdict(reading.facts), parts)


def _curves(reading: Reading, width: int) -> Iterator[Row]:
    curves = (("loss", "loss", "{:.4f}".format, ""), ("speed", "tokens_per_s", format_count, " tokens/s"))
    rows = reading.kept(last_steps)
    for title, column, shown, unit in curves:
        points = {row["step"]: row[column] for row in rows if isinstance(row.get(column), int | float)}
        if len(points) > 1:
            values = [*points.values()]
            yield title, spark(values, width), BOLD
            span = f"steps {min(points):,} to {max(points):,}"
            yield "", f"{shown(min(values))} to {shown(max(values))}{unit}, {span}", PLAIN


def _launches(reading: Reading, _: int) -> Iterator[Row]:
    launches, damage = reading.kept(all_launches)
    yield from (("damaged", f"runs.jsonl: {what}", YELLOW) for what in damage[:MOST_DAMAGE])
    for one in launches[: -MOST_ROWS - 1 : -1]:
        lasted, steps, good, end = row_of(one)[1:]
        how = f": {one['detail']}" if one["detail"] and not one["is_running"] else ""
        figures = ", ".join(filter(None, [f"steps {steps}", lasted, good and f"{good} good"]))
        colour = GREEN if one["is_running"] else PLAIN
        yield one["begin"][:16].replace("T", " "), f"{end.replace('_', ' ')}{how}; {figures}", colour


def _events(reading: Reading, _: int) -> Iterator[Row]:
    events, troubles = reading.kept(last_events)
    yield from (("cannot be read", trouble, YELLOW) for trouble in troubles)
    for event in events:
        at = str(event.get("time"))[5:16].replace("T", " ")
        yield f"{at} {LABELS[event['daemon']]}", sentence(event), COLOURS.get(str(event.get("level")), PLAIN)


def _processes(reading: Reading, _: int) -> Iterator[Row]:
    for daemon in (one for one in ORDER if reading.facts.body(one)):
        body = reading.facts.body(daemon)
        yield daemon, f"{format_bytes(body['headroom_bytes'])} to spare", BOLD
        for role, each in body["processes"].items():
            if count := each["count"]:
                sizes = (f"{format_bytes(each[f'{what}_bytes'])} {what.upper()}" for what in SIZES)
                yield f"  {role}", f"{', '.join(sizes)}, {count:,} process{'es' * (count != 1)}", PLAIN


CARD: Mapping[str, Callable[[Any], str]] = {
    "memory_used_bytes": lambda size: f"{format_bytes(size)} used",
    "memory_total_bytes": lambda size: f"{format_bytes(size)} in all",
    "utilization_ratio": "{:.0%} busy".format,
    "temperature_celsius": "{} °C".format,
    "power_watts": "{:.0f} W".format,
}


def _cards(reading: Reading, _: int) -> Iterator[Row]:
    gpus = reading.facts.body(TRAIN_SUPERVISOR).get("gpus") or {}
    for card, is_present in gpus.get("present", {}).items():
        known = {name: gpus[name][card] for name in CARD if gpus.get(name, {}).get(card) is not None}
        figures = ", ".join(CARD[name](value) for name, value in known.items())
        yield f"gpu {card}", figures if is_present else "is gone from the bus", PLAIN if is_present else RED


NO_STATUS = "no status tells of it: none was left, or a reboot erased it; `stoker audit` counts"
PAGES: Mapping[str, tuple[Sequence[Part], str]] = {  # and what a page says that has no row
    "Overview": ([_status("verdict", "pipeline", "time left")], ""),
    "Data": ([_status("data")], NO_STATUS),
    "Training": ([_curves, _status("run")], NO_STATUS),
    "Launches": ([_launches], "none has ended, and none is in the books"),
    "Events": ([_events], "none is kept"),
    "Memory": ([_processes, _cards], "no daemon runs"),
}


def rows_of(page: str, reading: Reading, width: int) -> list[Row]:
    """Returns a page's rows, its curves at most `width` characters wide; a row says what cannot be shown."""
    rows = list[Row]()
    parts, otherwise = PAGES[page]
    for part in (_renewed, *parts):
        try:
            rows += part(reading, width)
        except (OSError, StokerError) as error:
            rows.append(("cannot be read", str(error), YELLOW))
        except ANOTHER_VERSION as error:
            why = f"a daemon of another version wrote it, or it is damaged ({error!r})"
            then = f"`stoker reload {reading.pipeline.file}` brings the daemons to this version"
            rows.append(("cannot be shown", f"{why}; {then}", YELLOW))
    return rows or [(page.lower(), otherwise, PLAIN)]


def spark(values: Sequence[float], width: int) -> str:
    """Returns a curve in a line of at most `width` characters, each the mean of its share of the values."""
    least, width = min(values), min(width, len(values))
    ends = [len(values) * number // width for number in range(width + 1)]
    means = [fmean(values[begin:end]) for begin, end in pairwise(ends)]
    per_bar = (max(values) - least) / (len(BARS) - 1) or 1.0
    return "".join(BARS[round((mean - least) / per_bar)] for mean in means)


def all_launches(pipeline: Pipeline) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Returns the launches as `stoker runs` knows them, oldest first, and the damage of their log."""
    run = pipeline.train.run
    return launches_of(pipeline, run, read_whole(pipeline.layout.run(run).goodput) or {})


def last_steps(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Returns the rows of the last steps that count, in order."""
    run = pipeline.layout.run(pipeline.train.run)
    history = ancestry(read_timelines(run.timelines))
    rows = step_rows.rows_of(run.metrics, b'"loss"', tail_bytes=STEPS_BYTES)
    return [row for row in rows if counts(row["timeline"], row["step"], history)]


def last_events(pipeline: Pipeline) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns every daemon's last events but routine ones, newest first, and which logs cannot be read."""
    events, troubles = list[dict[str, Any]](), list[str]()
    for daemon in DAEMONS:
        log = pipeline.layout.events(daemon)
        try:
            lines = _end_of(log)
            if len(lines) < TAIL_BYTES:  # it was just rotated
                lines = _end_of(log.with_name(f"{log.name}.1")) + lines
            told = (entry for entry in read_log(lines).entries if entry.get("event") not in ROUTINE)
            events += ({**entry, "daemon": daemon} for entry in told)
        except StokerError as error:
            troubles.append(str(error))
    events.sort(key=lambda event: str(event.get("time")))
    return events[: -MOST_ROWS - 1 : -1], troubles


def _end_of(log: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError), storage_errors("read", log), log.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES))
        return stream.read(TAIL_BYTES)
    return b""
