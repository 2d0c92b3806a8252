"""`stoker plan`: the order of training data, where the run is in it, and what it waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from stoker.cli.options import answer, json_option, pipeline_file
from stoker.cli.runs.plan_report import look
from stoker.cli.which_run import read_identity
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_count, format_duration
from stoker.kit.terminal.sentences import PHRASES

BEFORE, AFTER = 4, 12  # entries shown around the one that is being read
PLACES = {"hot": "on hot", "leaving": "about to leave hot", "warm": "on warm only"}
HEAD = ("entry", "epoch", "sets", "seq_len", "windows", "tokens", "")
LINE = "{:>5}  {:>5}  {:>5}  {:>7}  {:>11}  {:>7}  {}"


@click.command(epilog="Example: stoker plan /etc/stoker/fineweb.yaml")
@pipeline_file
@click.option("--run", help="Another run of this pipeline than the one the file names.")
@click.option("--all", "whole", is_flag=True, help="Every entry, not only those around the position.")
@json_option
def plan(pipeline: Pipeline, run: str | None, whole: bool, as_json: bool) -> None:
    """Show the plan's entries, how far they are read, which shard sets they keep hot, and what comes next.

    Reads only, and may run beside the daemons. Steps not sealed in a checkpoint yet count as read.
    """
    if run is not None and run != pipeline.train.run:
        read_identity(pipeline.layout, run)
    report = look(pipeline, run or pipeline.train.run)
    answer(report, report_lines(report, whole=whole), as_json=as_json)


def report_lines(report: Mapping[str, Any], *, whole: bool = False) -> Iterator[str]:
    """The plan for a person."""
    entries = report["entries"]
    run = f"run {report['run']} of {report['pipeline']}"
    if report["begun"]:
        entry, offset = report["position"]
        place = f"epoch {report['epoch']}, entry {entry} offset {offset:,}"
        yield f"{run}: step {report['step']:,} of {report['steps']:,}, {place}"
    else:
        yield f"{run}: no plan yet"
    figures = [*(_progress(report) if report["begun"] else ()), *_data(report)]
    yield from (f"  {name:<11} {text}" for name, text in figures)
    if entries:
        shown = entries if whole else _around(entries)
        yield from (LINE.format(*row).rstrip() for row in (HEAD, *map(_row, shown)))
        if len(shown) < len(entries):
            yield f"{len(shown)} of {len(entries)} entries; --all shows every one"


def _progress(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    windows, tokens = report["windows"], report["tokens"]
    parts = " + ".join(f"{windows[name]:,} {name}" for name in ("applied", "skipped", "remainder", "ahead"))
    yield "windows", f"{windows['planned']:,} = {parts}"
    applied, ahead, tail = (format_count(tokens[name]) for name in ("applied", "ahead", "tail"))
    yield "tokens", f"{applied} applied, {ahead} planned ahead; {tail} in tails"
    if (rate := report["windows_per_s"]) is not None:
        lasts = report["lasts_s"]
        left = "" if lasts is None else f"; what is planned lasts {format_duration(lasts)}"
        coming = next((entry for entry in report["entries"] if entry.get("due_s") is not None), None)
        due = f"; entry {coming['n']} is due in {format_duration(coming['due_s'])}" if coming else ""
        yield "pace", f"{rate:.3g} windows/s{left}{due}"
    yield "low water", "entry {} offset {:,}".format(*report["low_water"])
    for fork in report["timelines"]:
        spans = ", ".join(f"{first} to {last}" for first, last in fork["skip"])
        why = (fork["reason"] or "no reason given") + (f"; passes over {spans}" if spans else "")
        yield "timeline", f"{fork['timeline']} from step {fork['from']} of timeline {fork['parent']} ({why})"


def _data(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    sets = report["sets"]
    if sets:
        places = Counter(one["place"] for one in sets)
        told = ", ".join(f"{places[place]} {words}" for place, words in PLACES.items() if places[place])
        held, wanted = (sum(bool(one[name]) for one in sets) for name in ("planned", "wanted"))
        yield "shard sets", f"{len(sets)}: {told}; {held} planned to be read, {wanted} wanted"
        loose = [one for one in sets if one["evictable"]]
        text = f"{len(loose)} could leave hot now ({format_bytes(sum(one['bytes'] for one in loose))})"
        yield "evictable", text + (f"; {report['why_they_stay']}" if report["why_they_stay"] else "")
    waiting = sorted((one for one in sets if one["wanted"]), key=lambda one: int(one["wanted"]))
    if cold := [one["source"] for one in waiting if one["place"] != "hot"]:
        yield "wanted back", f"{len(cold)} from warm: {', '.join(cold[:3])}{', ...' if len(cold) > 3 else ''}"
    if report["finished"]:
        yield "finished", PHRASES.get(report["finished"], report["finished"])
    elif report["ended"]:
        yield "waits for", "nothing: it has ended"
    elif report["doing"]:
        yield "waits for", report["waits_for"] or "nothing: it is far enough ahead"
    yield "supervisor", report["doing"] or "not running: nothing is planned until it is started"


def _around(entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The entries around the first that is not read to its end."""
    here = next((i for i, entry in enumerate(entries) if entry.get("state") in ("reading", "ahead")), None)
    here = len(entries) - 1 if here is None else here
    first = max(0, min(here - BEFORE, len(entries) - BEFORE - AFTER))
    return entries[first : first + BEFORE + AFTER]


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    number = str(entry["n"])
    if "state" not in entry:
        said = "passed over {}: {}".format(*entry["passed"]) if "passed" in entry else None
        return (number, "", "", "", "", "", said or f"the plan's end: {entry['end']}")
    state = entry["state"]
    if state == "reading":
        state = f"being read, {entry['read'] / entry['windows']:.0%}"
    elif state == "ahead" and entry["due_s"] is not None:
        state = f"due in {format_duration(entry['due_s'])}"
    figures = (str(entry["epoch"]), str(len(entry["sets"])), str(entry["seq_len"]), f"{entry['windows']:,}")
    return (number, *figures, format_count(entry["tokens"]), state)
