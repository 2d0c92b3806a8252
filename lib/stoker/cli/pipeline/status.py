"""`stoker status`: shows the daemons' snapshots."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from stoker.cli.options import counts, json_option, one_line, pipeline_file, plural, print_json
from stoker.cli.pipeline.events import STDOUT, Daemons, state_colour
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes, format_count, format_duration
from stoker.kit.terminal import (
    BOLD,
    GREEN,
    PHRASES,
    PLAIN,
    RED,
    YELLOW,
    coloured,
    columns_of,
    cut_sums,
    fold,
    paint,
)
from stoker.observe.progress import rates
from stoker.observe.status import read_status
from stoker.observe.verdict import Facts, Verdict, verdict
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import utc_at, utc_now
from stoker.supervise.outlook import gather
from stoker.supervise.run.goodput import STEPS

RATES = ("tokens_per_second", "parquet_bytes_per_second", "tokens_per_s", "eta_s", "rate_bytes_per_second")
SILENT_S = 60.0  # a loop shows its status every few seconds
NOW_ONLY = (*RATES, "transfers", "waits", "paused", "waiting_for", "gpus")
GOING_ON = frozenset({"waiting", "running"})  # states of a run that end when its supervisor ends
STANDS_STILL = frozenset(
    {"waits", "paused", "trouble", "waiting for", "halted", "remedy"}
)  # rows that explain a pause
TITLE_WIDTH = 21
VERDICT, HAND = "verdict", "needs a hand"
PARTS = (VERDICT, "pipeline", "run", "data", "time left")
GRADE_COLOURS = {"well": GREEN, "waits": YELLOW, "needs a hand": YELLOW, "broken": RED}
ORDER = (TRAIN_SUPERVISOR, STAGE_SHARD, DOWNLOAD_WATCHDOG)  # what matters most is read first
MOST_BUCKETS = 4  # that the row of goodput names
_OF_GPUS = ("memory_used_bytes", "memory_total_bytes", "utilization_ratio", "temperature_celsius")
UNREAD = "no step recognised in its output: set train.external.step, or use the client (docs/trainers.md)"
Row = tuple[str, str]  # a title and its text; a row of data or run with an empty text is not shown


@click.command(epilog="Example: stoker status /etc/stoker/fineweb.yaml")
@pipeline_file
@click.option(
    "--check",
    is_flag=True,
    help="Exit 1 if the pipeline is broken: a halted or failed run, a dead or silent daemon.",
)
@json_option
def status(pipeline: Pipeline, as_json: bool, check: bool) -> int:
    """Show whether all is well, what needs a hand, what each daemon does, run and data, and the times left.

    A stopped daemon shows its last status. A reboot erases these; then `stoker audit` counts.
    """
    daemons = read_status(pipeline.layout)
    facts = gather(pipeline, daemons)
    judged = verdict(facts)
    if as_json:
        print_json(as_body(judged, facts, daemons))
    elif sys.stdout.isatty():
        lines = terminal_lines(facts, columns_of(STDOUT), judged, colour=coloured(STDOUT))
        click.echo("\n".join(lines), color=True)
    else:
        click.echo("\n".join(report_lines(facts, judged)))
    return int(check and judged.grade == "broken")


def as_body(judged: Verdict, facts: Facts, daemons: Daemons) -> dict[str, Any]:
    """Returns the status as JSON; docs/status.schema.json says what each field is."""
    return {
        "v": 1,
        "pipeline": facts.name,
        "time": utc_now(),
        "verdict": {"grade": judged.grade, "text": judged.text},
        "hands": [asdict(each) for each in judged.hands],
        "times_left": {work: asdict(left) for work, left in facts.times.items()},
        "daemons": daemons,
    }


def report_lines(facts: Facts, judged: Verdict | None = None) -> Iterator[str]:
    """Yields the status for a file or a pipe."""
    for title, text, _ in status_rows(facts, judged):
        yield one_line(f"{title:<{TITLE_WIDTH}}{text}".rstrip())


def terminal_lines(
    facts: Facts, columns: int, judged: Verdict | None = None, *, colour: bool
) -> Iterator[str]:
    """Yields the status for a terminal: sums cut, each row folded below itself, coloured by state."""
    for title, text, painted in status_rows(facts, judged):
        line = folded_row(title, text, columns)
        yield paint(line, painted) if colour else line


def folded_row(title: str, text: str, columns: int) -> str:
    """Returns a row for a terminal: sums cut, its text folded below itself."""
    folded = fold(cut_sums(one_line(text)), columns, TITLE_WIDTH)
    return f"{one_line(title):<{TITLE_WIDTH}}{folded}".rstrip()


def status_rows(
    facts: Facts, judged: Verdict | None, parts: Container[str] = PARTS
) -> Iterator[tuple[str, str, str]]:
    """Yields the rows of these parts of the status: title, text, colour."""
    colours = {f"  {daemon}": state_colour(about) for daemon, about in facts.daemons.items()}
    colours |= {f"  {row}": YELLOW for row in STANDS_STILL}
    if judged is not None:
        colours |= dict.fromkeys((VERDICT, HAND), GRADE_COLOURS[judged.grade])
    for part, rows in _parts(facts, judged):
        if part in parts:
            yield from ((title, text, colours.get(title, PLAIN if text else BOLD)) for title, text in rows)


def _parts(facts: Facts, judged: Verdict | None) -> Iterator[tuple[str, list[Row]]]:
    daemons = facts.daemons
    if judged is not None:
        yield VERDICT, [(VERDICT, judged.text), *((HAND, f"{hand.what}. {hand.do}") for hand in judged.hands)]
    named = [one for one in ORDER if one in daemons]
    head = f"pipeline {facts.name}", ""
    yield "pipeline", [head, *(row for one in named for row in _daemon(one, daemons[one]))]
    bodies = {daemon: _current(about) for daemon, about in daemons.items()}
    run = _run(bodies[TRAIN_SUPERVISOR], daemons[TRAIN_SUPERVISOR]["running"])
    data = [*_shards(bodies.get(STAGE_SHARD, {})), *_sources(bodies.get(DOWNLOAD_WATCHDOG, {}))]
    left = [(work, str(left)) for work, left in facts.times.items()]
    for part, rows in (("run", run), ("data", data), ("time left", left)):
        if shown := [(f"  {what}", text) for what, text in rows if text]:
            yield part, [(part, ""), *shown]


def _current(about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a daemon's status, for a stopped daemon without speeds and waits, which are out of date."""
    past = () if about["running"] else NOW_ONLY
    return {name: value for name, value in about["body"].items() if name not in past}


def _daemon(name: str, about: Mapping[str, Any]) -> Iterator[Row]:
    """Yields a daemon's state, and its process while it runs."""
    body, text = about["body"], about["state"]
    if about["running"]:
        since = f" for {format_duration(body['uptime_s'])}" if "uptime_s" in body else ""
        silent_s = about.get("silent_s", 0.0)
        silent = f", silent for {format_duration(silent_s)}, last status" if silent_s > SILENT_S else ""
        yield f"  {name}", f"{text}{since}{silent}: {body.get('text') or 'starting'}"
        metrics = f", metrics http://{about['metrics']}/metrics" if about["metrics"] else ""
        yield "", f"pid {about['pid']}, since {about['since']}{metrics}"
        return
    text += f", exit code {body['exit_code']}" if body.get("exit_code") else ""
    yield f"  {name}", text + (f"; last status: {body['text']}" if body.get("text") else "")


def _sources(body: Mapping[str, Any]) -> Iterator[Row]:
    if "files" not in body:
        return
    # Nothing vouches for what lies in a folder: its files are hashed, fetched ones verified.
    here = "hashed" if "polling" in body else "verified"
    files = counts({here if state == "verified" else state: count for state, count in body["files"].items()})
    size = f"{format_bytes(body.get('verified_bytes', 0))} {here}"
    is_listed = body.get("looked", True)
    yield "files", f"{files}; {size}{_complete(body)}" if is_listed else f"looking at the source; {size}"
    done, whole = body.get("bytes_done"), body.get("bytes_of")
    if done is not None and whole and done < whole:
        text = f"{format_bytes(done)} of {format_bytes(whole)}, {100 * done / whole:.1f} %"
        rate = body.get("rate_bytes_per_second")
        text += f"; {rate / 1e6:,.1f} MB/s" if rate else ""
        yield "fetched", text
    for each in body.get("transfers") or []:
        size = "" if each["size"] is None else f" of {format_bytes(each['size'])}"
        rate = f"{each['bytes_per_second'] / 1e6:,.1f} MB/s"
        yield "", f"{each['path']}: {format_bytes(each['bytes'])}{size}, {rate}"
    told = {body[key]: (key, body[key]) for key in ("waits", "paused", "trouble") if body.get(key)}
    yield from told.values()  # a text that is both pause and trouble appears once


def _shards(body: Mapping[str, Any]) -> Iterator[Row]:
    if "sources" not in body:
        return
    yield "sources", f"{counts(body['sources'])}{_complete(body)}"
    if part := body.get("slice"):
        yield "slice", f"{part['files']:,} files, by dataset.limit {counts(part['limit'])}"
    for what in ("documents", "tokens"):
        train, val = format_count(body[what]["train"]), format_count(body[what]["val"])
        yield what, f"{train} to train on, {val} held out"
    dropped = body.get("dropped") or {}
    yield "rows dropped", counts(dropped) if any(dropped.values()) else ""
    yield "building", ", ".join(rates(body))
    sets, disks = body.get("sets"), body.get("disks", {})
    if sets and "warm" in disks:
        text = f"{sets['hot']:,} on hot, {sets['warm']:,} copied to warm, {sets['evicted']:,} only there"
        text += f", {sets['wanted_cold']:,} waited for" if sets["wanted_cold"] else ""
        text += f", {len(sets['bringing_back'])} coming back" if sets["bringing_back"] else ""
        yield "shard sets", text
    for name, disk in disks.items():
        if "free_bytes" in disk:
            sizes = [format_bytes(disk[f"{what}_bytes"]) for what in ("free", "total", "claimed")]
            yield f"{name} disk", "{} free of {}, {} claimed".format(*sizes)
    yield "trouble", body.get("trouble") or ""


def _run(body: Mapping[str, Any], running: bool) -> Iterator[Row]:
    if "run" not in body:
        return
    state = body["run_state"]
    if not running and state in GOING_ON:
        state = f"was {state} when the supervisor ended"
    finished = PHRASES.get(body.get("finished") or "", body.get("finished"))
    whys = "".join(f" ({why})" for why in (finished, body.get("reason")) if why)
    yield "run", f"{body['run']}: {state}{whys}"
    if halted := body.get("halted"):
        yield "halted", f"{halted['reason']}, since {halted['since']}"
        yield "remedy", halted["remedy"]
    yield "trouble", body.get("trouble") or ""
    if paused := body.get("paused"):
        yield "paused", f"by {paused['by']}, since {paused['since']}; stoker resume continues it"
    if body.get("waiting_for"):
        yield "waiting for", f"{body['waiting_for']}, since {body['waiting_since']}"
    if body.get("step") is not None:
        why = f" ({body['timeline_reason']})" if body.get("timeline_reason") else ""
        fork = f", on timeline {body['timeline']}{why}" if body.get("timeline") else ""
        done = f" ({100 * body['step'] / body['steps']:.1f} %)" if body["steps"] else ""
        of = f" of {body['steps']:,}" if body["steps"] is not None else ""
        phase = f", in phase {body['train_phase']}" if body.get("train_phase") else ""
        yield "step", f"{body['step']:,}{of}{done}{phase}{fork}"
    yield "loss", losses(body)
    for kind, one in (body.get("watched") or {}).items():
        yield "watch", watched_line(kind, one)
    mfu = f", {100 * body['mfu']:.1f} % MFU" if body.get("mfu") else ""
    yield "speed", f"{format_count(body['tokens_per_s'])} tokens/s{mfu}" if body.get("tokens_per_s") else ""
    if (source := body.get("steps_from")) not in (None, "messages"):
        yield "steps", UNREAD if source == "nothing" else f"read from its output as {source}"
    if checkpoint := body.get("checkpoint"):
        unproven = "" if checkpoint.get("proven", True) else " (sealed, not proven yet)"
        unknown = "" if checkpoint.get("step", 0) is not None else ", of a step that nobody knows"
        yield "checkpoint", f"{checkpoint['name']}{unproven}{unknown}"
    yield "mirror", _mirror(body["mirror"]) if body.get("mirror") else ""
    yield "gpus", gpus_line(body.get("gpus") or {})
    if body.get("plan_windows"):
        ahead = body.get("plan_windows_ahead")
        entries = "1 entry" if body["plan_entries"] == 1 else f"{body['plan_entries']:,} entries"
        text = f"{format_count(body['plan_windows'])} windows in {entries}"
        yield "plan", text if ahead is None else f"{text}, {format_count(ahead)} ahead"
    if audit := (body.get("figures") or {}).get("audit"):
        found = int(audit["findings"])
        said = f"{plural(found, 'finding')}, which `stoker audit` names" if found else "balanced"
        yield "audit", f"{said}, at {utc_at(audit['at'])}"
    yield "launches", str(body.get("launches") or "")
    spent = body.get("goodput") or {}
    yield "goodput", spent_line(spent) if spent.get("wall_s") else ""


def spent_line(account: Mapping[str, Any]) -> str:
    """Returns the share of a run's time that became steps, and where most of the rest went."""
    seconds = {name.replace("_", " "): one for name, one in account["seconds"].items() if name != STEPS}
    seconds["not proven yet"] = account["undecided_s"]
    most = sorted((name for name in seconds if seconds[name] >= 1.0), key=lambda name: -seconds[name])
    rest = ", ".join(f"{name} {format_duration(seconds[name])}" for name in most[:MOST_BUCKETS])
    line = f"{100 * account['ratio']:.1f} % of {format_duration(account['wall_s'])}"
    return f"{line}; {rest}" if rest else line


def watched_line(kind: str, episode: Mapping[str, Any]) -> str:
    """Returns what stands of the watches over loss and speed, in a line."""
    if kind == "slow":
        speeds = [format_count(episode[name]) for name in ("tokens_per_s", "usual")]
        return "slow since {}: {} tokens/s, {} usually".format(episode["since"], *speeds)
    answer = episode.get("answer", "")
    then = {"": "", "rollback": "; the run goes back before it"}.get(answer, f"; left alone: {answer}")
    numbers = f"loss {episode['loss']:.4f} at step {episode['step']:,}, median {episode['median']:.4f}"
    return f"{kind} since step {episode['first']:,}: {numbers}{then}"


def losses(body: Mapping[str, Any]) -> str:
    """Returns the losses that the train supervisor shows, if any."""
    figures = (("training", body.get("loss")), ("held-out", body.get("val_loss")))
    text = ", ".join(f"{name} {loss:.4f}" for name, loss in figures if isinstance(loss, float))
    return text if body.get("val_step") is None else f"{text} at step {body['val_step']:,}"


def _mirror(body: Mapping[str, Any]) -> str:
    parts = ["nothing yet" if body["step"] is None else f"step {body['step']:,}"]
    if body["copying"] is not None:
        parts.append(f"copying step {body['copying']:,}")
    if body["waiting"]:
        parts.append(f"{body['waiting']} waiting")
    if body["trouble"]:
        parts.append(f"trouble: {body['trouble']}")
    return "; ".join(parts)


def gpus_line(gpus: Mapping[str, Any]) -> str:
    """Returns the cards that are there, their memory in use, work and heat; "" without any."""
    if not gpus.get("expected"):
        return ""
    if not gpus["up"]:
        return f"{gpus['expected']}, and the driver does not answer"
    known = {name: [value for value in gpus.get(name, {}).values() if value is not None] for name in _OF_GPUS}
    parts = [f"{sum(gpus['present'].values())} of {gpus['expected']}"]
    if known["memory_total_bytes"]:
        used, total = (format_bytes(sum(known[f"memory_{what}_bytes"])) for what in ("used", "total"))
        parts.append(f"{used} of {total}")
    if ratios := known["utilization_ratio"]:
        parts.append(f"{100 * sum(ratios) / len(ratios):.0f} % busy")
    if known["temperature_celsius"]:
        parts.append(f"{max(known['temperature_celsius'])} °C")
    return ", ".join(parts)


def _complete(body: Mapping[str, Any]) -> str:
    return "; complete" if body.get("complete") else ""
