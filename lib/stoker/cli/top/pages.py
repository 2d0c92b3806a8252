"""The pages of `stoker top` as rows: pure functions of what was read and of the width."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from stoker.cli.pipeline.events import LABELS
from stoker.cli.pipeline.status import ORDER, current, row_colours, sections, verdict_rows
from stoker.cli.top.reading import Reading
from stoker.config.units import format_bytes, format_count, format_duration
from stoker.kit.terminal import BOLD, COLOURS, GREEN, PLAIN, RED, YELLOW, sentence
from stoker.observe.verdict import verdict
from stoker.store.errors import StokerError
from stoker.store.layout import TRAIN_SUPERVISOR

Row = tuple[str, str, str]  # title, text, colour
Part = Callable[[Reading, int], Iterator[Row]]

UTF_8 = getattr(sys.__stderr__, "encoding", "").lower().startswith("utf")  # or the terminal shows ASCII alone
BARS = "▁▂▃▄▅▆▇█" if UTF_8 else "_.-=+*%#"  # from low to high
ANOTHER_VERSION = (AttributeError, IndexError, KeyError, TypeError, ValueError)
CARD = {"utilization_ratio": "{:.0%} busy", "temperature_celsius": "{} °C", "power_watts": "{:.0f} W"}


def _verdict(reading: Reading, _: int) -> Iterator[Row]:
    judged = verdict(reading.facts)
    colours = row_colours(reading.facts, judged)
    yield from ((title, text, colours[title]) for title, text in verdict_rows(judged))


def _section(name: str, otherwise: str = "") -> Part:
    """Returns the part that shows a section of the status; `otherwise` where there is none."""

    def part(reading: Reading, _: int) -> Iterator[Row]:
        colours = row_colours(reading.facts, None)
        for title, rows in sections(reading.facts):
            if title.startswith(name):
                yield title, "", BOLD
                yield from ((row, text, colours.get(row, PLAIN)) for row, text in rows)
                return
        if otherwise:
            is_data_less = name == "data" and not reading.pipeline.has_data
            yield name, "the pipeline prepares no dataset" if is_data_less else otherwise, PLAIN

    return part


def _curves(reading: Reading, width: int) -> Iterator[Row]:
    curves = (("loss", "loss", "{:.4f}".format, ""), ("speed", "tokens_per_s", format_count, " tokens/s"))
    for title, column, shown, unit in curves:
        points = [(row["step"], row[column]) for row in reading.steps() if _is_number(row[column])]
        if len(points) > 1:
            values = [value for _, value in points]
            yield title, spark(values, width), BOLD
            span = f"steps {points[0][0]:,} to {points[-1][0]:,}"
            yield "", f"{shown(min(values))} to {shown(max(values))}{unit}, {span}", PLAIN


def _launches(reading: Reading, _: int) -> Iterator[Row]:
    launches, troubles = reading.launches()
    yield from (("damaged", trouble, YELLOW) for trouble in troubles)
    if not launches:
        yield "launches", "none has ended, and none is in the books", PLAIN
    for one in launches:
        is_running = one["exit_class"] is None and one["launch"] == reading.launch()
        yield one["begin"][:16].replace("T", " "), _launch(one, is_running), GREEN if is_running else PLAIN


def _launch(one: Mapping[str, Any], is_running: bool) -> str:
    steps = f"steps {one['resume_step']:,} to {one['last_step']:,}"
    if one["goodput"] is not None:
        steps += f", {format_duration(one['wall_s'])}, {100 * one['goodput']:.0f} % good"
    end = (one["exit_class"] or "end not known").replace("_", " ")
    end += f": {one['detail']}" if one["detail"] else ""
    proven, lost = one["proven_step"], ""
    if proven is not None and proven < one["last_step"]:
        lost = f"; proven to step {proven:,}"
    return f"{'running' if is_running else end}; {steps}{lost}"


def _events(reading: Reading, _: int) -> Iterator[Row]:
    events, troubles = reading.events()
    yield from (("damaged", trouble, YELLOW) for trouble in troubles)
    if not events:
        yield "events", "none is kept", PLAIN
    for event in events:
        at = str(event.get("time"))[5:16].replace("T", " ")
        yield f"{at} {LABELS[event['daemon']]}", sentence(event), COLOURS.get(str(event.get("level")), PLAIN)


def _processes(reading: Reading, _: int) -> Iterator[Row]:
    for daemon in (one for one in ORDER if one in reading.facts.daemons):
        about = reading.facts.daemons[daemon]
        if not about["running"]:
            yield daemon, about["state"], PLAIN
            continue
        body = about["body"]
        yield daemon, f"{format_bytes(body['headroom_bytes'])} to spare", BOLD
        for role, each in body["processes"].items():
            if each["count"]:
                parts = (f"{format_bytes(each[f'{what}_bytes'])} {what.upper()}" for what in ("rss", "pss"))
                swap = f", {format_bytes(each['swap_bytes'])} swapped" if each["swap_bytes"] else ""
                count = f"{each['count']:,} process{'es' * (each['count'] != 1)}"
                yield f"  {role}", f"{', '.join(parts)}{swap}, {count}", PLAIN


def _cards(reading: Reading, _: int) -> Iterator[Row]:
    gpus = current(reading.facts.daemons[TRAIN_SUPERVISOR]).get("gpus") or {}
    for card, is_present in gpus.get("present", {}).items():
        by_card = {name: each for name, each in gpus.items() if isinstance(each, Mapping)}
        known = {name: each[card] for name, each in by_card.items() if card in each}
        models = ", ".join(name for one in (known.get("info") or {}).values() for name in one)
        text, colour = (models, BOLD) if is_present else ("is gone from the bus", RED)
        yield f"gpu {card}", text, colour
        if known.get("memory_total_bytes"):
            used, total = (format_bytes(known[f"memory_{what}_bytes"]) for what in ("used", "total"))
            yield "  memory", f"{used} of {total}", PLAIN
        if figures := [
            shown.format(known[name]) for name, shown in CARD.items() if known.get(name) is not None
        ]:
            yield "  work", ", ".join(figures), PLAIN


NO_STATUS = "no daemon has left a status; after a reboot, which erases them, `stoker audit` counts"
PAGES: Mapping[str, Sequence[Part]] = {
    "Overview": (_verdict, _section("pipeline"), _section("time left")),
    "Data": (_section("data", NO_STATUS),),
    "Training": (_curves, _section("run", NO_STATUS)),
    "Launches": (_launches,),
    "Events": (_events,),
    "Memory": (_processes, _cards),
}


def rows_of(page: str, reading: Reading, width: int) -> Iterator[Row]:
    """Yields a page's rows, its curves at most `width` characters wide; a row says what cannot be shown."""
    for part in PAGES[page]:
        try:
            yield from part(reading, width)
        except (OSError, StokerError) as error:
            yield "cannot be read", str(error), YELLOW
        except ANOTHER_VERSION as error:
            why = f"a daemon of another version wrote it, or it is damaged ({error!r})"
            then = f"`stoker reload {reading.pipeline.file}` brings the daemons to this version"
            yield "cannot be shown", f"{why}; {then}", YELLOW


def spark(values: Sequence[float], width: int) -> str:
    """Returns a curve in a line of at most `width` characters, each the mean of its share of the values."""
    least, width = min(values), min(width, len(values))
    ends = [len(values) * number // width for number in range(width + 1)]
    means = [fmean(values[begin:end]) for begin, end in pairwise(ends)]
    per_bar = (max(values) - least) / (len(BARS) - 1) or 1.0
    return "".join(BARS[round((mean - least) / per_bar)] for mean in means)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
