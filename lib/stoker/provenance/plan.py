"""`stoker data plan`: shows the order of training data, the run's position in it, and why it waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from stoker.cli.complete import run_option
from stoker.cli.options import answer, json_option, planned_file
from stoker.cli.which_run import read_identity, run_names
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_count, format_duration
from stoker.corpus.records.dataset import DatasetPin, read_pin
from stoker.corpus.records.sources import PUBLISHED, Source, read_sources, tokens_of
from stoker.corpus.staging.disk_contents import set_bytes
from stoker.kit.terminal import PHRASES
from stoker.observe.status import read_status
from stoker.plan.consumption import Holdings, read_holdings
from stoker.plan.log import DATA_EXHAUSTED, Segment
from stoker.plan.positions import Accounts, at, books
from stoker.plan.residency import ShardSet, due_s, next_use, planned, to_evict, urgency
from stoker.provenance.step_history import History
from stoker.store.layout import TRAIN_SUPERVISOR

ACCOUNTED = ("applied", "skipped", "remainder", "ahead")
WITHOUT_WARM = "without a warm store nothing leaves hot"
BEFORE, AFTER = 4, 12  # entries shown around the entry that is being read
PLACES = {"hot": "on hot", "leaving": "about to leave hot", "warm": "on warm only"}
HEAD = ("entry", "epoch", "sets", "seq_len", "windows", "tokens", "")
LINE = "{:>5}  {:>5}  {:>5}  {:>7}  {:>11}  {:>7}  {}"


@click.command(epilog="Example: stoker data plan /etc/stoker/fineweb.yaml")
@planned_file
@run_option
@click.option("--all", "whole", is_flag=True, help="Every entry, not only those around the position.")
@json_option
def plan(pipeline: Pipeline, run: str | None, whole: bool, as_json: bool) -> None:
    """Show the plan's entries, their progress, the shard sets that they keep hot, and the next due entry.

    Reads only, and may run beside the daemons. Steps not sealed in a checkpoint yet count as read.
    """
    if run is not None and run != pipeline.train.run:
        read_identity(pipeline.layout, run)
    report = look(pipeline, run or pipeline.train.run)
    answer(report, report_lines(report, whole=whole), as_json=as_json)


def report_lines(report: Mapping[str, Any], *, whole: bool = False) -> Iterator[str]:
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
        why = (fork["reason"] or "no reason given") + (f"; skips {spans}" if spans else "")
        yield "timeline", f"{fork['timeline']} from step {fork['from']} of timeline {fork['parent']} ({why})"


def _data(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    sets = report["sets"]
    if sets:
        places = Counter(one["place"] for one in sets)
        counts = ", ".join(f"{places[place]} {words}" for place, words in PLACES.items() if places[place])
        held, wanted = (sum(bool(one[name]) for one in sets) for name in ("planned", "wanted"))
        yield "shard sets", f"{len(sets)}: {counts}; {held} planned to be read, {wanted} wanted"
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
    """Returns the entries around the first entry that is not read to its end."""
    here = next((i for i, entry in enumerate(entries) if entry.get("state") in ("reading", "ahead")), None)
    here = len(entries) - 1 if here is None else here
    first = max(0, min(here - BEFORE, len(entries) - BEFORE - AFTER))
    return entries[first : first + BEFORE + AFTER]


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    number = str(entry["n"])
    if "state" not in entry:
        said = "skipped {}: {}".format(*entry["passed"]) if "passed" in entry else None
        if "closed" in entry:
            said = "epoch {1} of {0} ends".format(*entry["closed"])
            said += f", {entry['tail_tokens']:,} tokens are left"
        return (number, "", "", "", "", "", said or f"the plan's end: {entry['end']}")
    state = entry["state"]
    if state == "reading":
        state = f"being read, {entry['read'] / entry['windows']:.0%}"
    elif state == "ahead" and entry["due_s"] is not None:
        state = f"due in {format_duration(entry['due_s'])}"
    figures = (str(entry["epoch"]), str(len(entry["sets"])), str(entry["seq_len"]), f"{entry['windows']:,}")
    return (number, *figures, format_count(entry["tokens"]), state)


def look(pipeline: Pipeline, run: str) -> dict[str, Any]:
    """Returns the report, from the state directory alone; raises DataError for a damaged plan."""
    sources = read_sources(pipeline.layout, pipeline.dataset.name)
    pin = read_pin(pipeline.layout, pipeline.dataset.name)
    run_id = read_identity(pipeline.layout, run).run_id if run in run_names(pipeline.layout) else None
    history = History(pipeline, run, run_id=run_id)
    holdings = read_holdings(pipeline.layout)
    mine = next((one for one in holdings if one.run == run), Holdings(run, history.plan))
    return {
        "v": 1,
        "pipeline": pipeline.name,
        "run": run,
        "begun": bool(history.plan.entries),
        "finished": history.finished,
        **_supervisor(pipeline, run),
        **_position(history, mine),
        "timelines": [fork.body() for fork in history.timelines.forks],
        "entries": list(_entries(history, mine.windows_per_s)),
        **_sets(pipeline, pin, sources, holdings),
    }


def _supervisor(pipeline: Pipeline, run: str) -> dict[str, Any]:
    """Returns the supervisor's status of the run; None values if it does not run, or is on another run."""
    status = read_status(pipeline.layout)[TRAIN_SUPERVISOR]
    body = status["body"] if status["running"] and status["body"].get("run") == run else {}
    return {"doing": body.get("doing"), "waits_for": body.get("waiting_for") or body.get("plan_waits_for")}


def _position(history: History, mine: Holdings) -> dict[str, Any]:
    """Returns the run's position, and the used and the remaining windows of the plan."""
    plan, last = history.plan, history.last
    account = books(plan, last.position, history.skips, exhausted=history.finished == DATA_EXHAUSTED)
    tokens = Accounts(plan, history.skips).tokens(at(plan, plan.windows)) if plan.entries else 0
    here = (entry.epoch for entry in plan.entries[last.position.entry :] if isinstance(entry, Segment))
    return {
        "step": last.step,
        "steps": history.steps,
        "sealed_step": history.sealed,
        "timeline": history.timeline,
        "position": last.position.as_list(),
        "epoch": next(here, 0),
        "windows": {"planned": account.windows, **{name: getattr(account, name) for name in ACCOUNTED}},
        "tokens": {"applied": account.tokens, "ahead": tokens - account.tokens, "tail": account.tail_tokens},
        "ended": plan.ended,
        "windows_per_s": mine.windows_per_s,
        "lasts_s": due_s(plan, last.position, len(plan.entries), mine.windows_per_s, history.skips),
        "low_water": mine.low_water.as_list(),
    }


def _entries(history: History, windows_per_s: float | None) -> Iterator[dict[str, Any]]:
    """Yields each entry, how much of it is read, and in how many seconds its first window is due."""
    plan, last = history.plan, history.last
    for entry in plan.entries:
        if isinstance(entry, Segment):
            read = min(max(0, last.windows - plan.starts[entry.n]), entry.windows)
            due = due_s(plan, last.position, entry.n, windows_per_s, history.skips)
            names = ("n", "epoch", "seq_len", "windows", "tail_tokens")
            yield {
                **{name: getattr(entry, name) for name in names},
                "sets": [key for key, _ in entry.sets],
                "read": read,
                "tokens": entry.windows * entry.seq_len,
                "state": "read" if read == entry.windows else "reading" if read else "ahead",
                "due_s": None if read else due,
            }
        else:
            yield {name: value for name, value in entry.body().items() if name not in {"v", "dataset"}}


def _sets(
    pipeline: Pipeline, pin: DatasetPin | None, sources: Mapping[str, Source], holdings: list[Holdings]
) -> dict[str, Any]:
    """Returns every published shard set: its disk, whether a run needs it hot, whether it may leave now."""
    published = {one.key: one for one in sources.values() if one.state in PUBLISHED and one.key}
    token_bytes = 4 if pin is not None and pin.tokenizer.vocab_size > 1 << 16 else 2
    sets = [
        ShardSet(key, set_bytes(one.books, token_bytes), tokens_of(one.books, "train"), one.hot, one.on_warm)
        for key, one in published.items()
    ]
    listed = [sources[path].key for path in (pin.listing if pin else ()) if path in sources]
    leave: list[str] = []
    why = WITHOUT_WARM
    if pipeline.warm is not None:
        leave, why = to_evict(
            sets,
            holdings,
            next_use(holdings, [key for key in listed if key]),
            free_bytes=0,
            wanted_free_bytes=1 << 62,
            keep_sets=pipeline.evict.keep_hot_sets,
        )
        why = why.partition("; ")[2]
    kept, wants = planned(holdings), urgency(holdings)
    return {
        "sets": [
            {
                "set": one.key,
                "source": published[one.key].path,
                "bytes": one.bytes,
                "place": "hot" if one.hot else "warm" if published[one.key].evicted else "leaving",
                "on_warm": one.warm,
                "planned": one.key in kept,
                "wanted": wants.index(one.key) + 1 if one.key in wants else None,
                "evictable": one.key in leave,
            }
            for one in sets
        ],
        "why_they_stay": why,
    }
