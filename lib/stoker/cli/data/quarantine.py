"""`stoker quarantine`: lists, releases and drops the contents of quarantine."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from stoker.cli.ask_daemon import ask
from stoker.cli.complete import offer
from stoker.cli.options import did_you_mean, json_option, one_line, pipeline_file, print_json
from stoker.cli.worker_jobs import WorkerFailed, Workers
from stoker.config.schema import Pipeline
from stoker.corpus.quarantine.directory import (
    DROP,
    KINDS,
    RELEASE,
    QuarantineEntry,
    due,
    read_quarantine,
    refusal,
)
from stoker.corpus.readers.finding import Finding
from stoker.corpus.records.receipts import read_receipts
from stoker.corpus.records.sources import read_sources
from stoker.kit.workers.pool import Activity
from stoker.shards.audit.recheck import GONE, MODULE, recheck_task
from stoker.store.errors import UsageError
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR

EXIT_FINDING, EXIT_REFUSED, EXIT_AGAIN = 1, 65, 75
SEE = "`stoker quarantine list` shows what there is"
IDS = click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=offer("quarantined"))
MARKS = ("released", "dropping", "dropped")  # shown as its state
YES = click.option("--yes", is_flag=True, help="Do it for all that a pattern stands for.")


@click.group(epilog="Example: stoker quarantine list /etc/stoker/fineweb.yaml")
def quarantine() -> None:
    """Show the contents of quarantine, give a source another try, or delete quarantined files.

    ID is the name that `list` shows, a source's path, or a pattern such as 'parquet-*'. A daemon that is not
    running handles the request at its next start; what it would refuse is refused at once.
    """


@quarantine.command("list", epilog="Example: stoker quarantine list /etc/stoker/fineweb.yaml --kind parquet")
@pipeline_file
@click.option("--kind", type=click.Choice(KINDS), help="Only this kind of thing.")
@click.option("--all", "settled", is_flag=True, help="Also reasons of sources that are built by now.")
@json_option
def list_(pipeline: Pipeline, kind: str | None, settled: bool, as_json: bool) -> None:
    """List the contents of quarantine, newest first."""
    chosen = [
        kept
        for kept in read_quarantine(pipeline.layout.quarantine)
        if kind in (None, kept.kind) and (settled or kept.things or kept.released is None)
    ]
    if as_json:
        print_json([_facts(kept) for kept in chosen])
        return
    for kept in chosen:
        named = {"row group": kept.body.get("row_group"), "column": kept.body.get("column")}
        place = ", ".join(f"{what} {value}" for what, value in named.items() if value is not None)
        reason = kept.reason + (f" ({place})" if place else "")
        click.echo(f"{one_line(kept.name)}\n    {one_line(kept.path) or 'unknown'}: {one_line(reason)}")
        click.echo(f"    {kept.kind}, {kept.when or 'time unknown'}, {_state(kept)}")
    files, size = sum(1 for kept in chosen if kept.things), sum(kept.bytes for kept in chosen)
    click.echo(f"{len(chosen)} in quarantine; {files} kept, {size:,} bytes")


@quarantine.command(epilog="Example: stoker quarantine show /etc/stoker/fineweb.yaml 000_00012.parquet")
@pipeline_file
@IDS
@json_option
def show(pipeline: Pipeline, ids: tuple[str, ...], as_json: bool) -> None:
    """Show the whole reason of each ID, and the place of its files."""
    for kept in _chosen(pipeline, ids):
        folder = pipeline.layout.quarantine / kept.name
        things = [str(folder / thing) for thing in kept.things]
        if as_json:
            print_json({**_facts(kept), "folder": str(folder), "things": things})
            continue
        click.echo(f"{one_line(kept.name)} ({_state(kept)})")
        places = (("lies", thing) for thing in things or ["nothing is kept of it"])
        for name, value in (*kept.body.items(), *places):
            if value is not None and name not in MARKS:
                click.echo(f"  {name:<14} {one_line(value)}")


@quarantine.command(epilog="Example: stoker quarantine release /etc/stoker/fineweb.yaml 000_00012.parquet")
@pipeline_file
@IDS
@click.option("--force", is_flag=True, help="Without a check now; it is checked again when staged.")
@YES
@json_option
def release(pipeline: Pipeline, ids: tuple[str, ...], *, force: bool, yes: bool, as_json: bool) -> int:
    """Give quarantined sources another try.

    Each file is decoded wholly and hashed first: a file that is still bad is refused with the reader's
    message (exit code 1); a file that could not be fetched is fetched again.
    """
    return _ask_each(pipeline, _several(pipeline, ids, yes), RELEASE, {"force": force}, as_json=as_json)


@quarantine.command(epilog="Example: stoker quarantine drop /etc/stoker/fineweb.yaml 'shards-*' --yes")
@pipeline_file
@IDS
@click.option("--reason-too", is_flag=True, help="The reason as well, which else stays.")
@YES
@json_option
def drop(pipeline: Pipeline, ids: tuple[str, ...], *, reason_too: bool, yes: bool, as_json: bool) -> int:
    """Delete the files kept in quarantine.

    A checkpoint's reason is deleted with it.
    """
    return _ask_each(
        pipeline, _several(pipeline, ids, yes), DROP, {"reason_too": reason_too}, as_json=as_json
    )


@quarantine.command(epilog="Example: stoker quarantine revalidate /etc/stoker/fineweb.yaml")
@pipeline_file
@json_option
def revalidate(pipeline: Pipeline, as_json: bool) -> int:
    """Release every quarantined source that is good by now.

    The stage-shard loop does this by itself every `quarantine.revalidate`. Exit code 1: some are still bad.
    """
    sources = read_sources(pipeline.layout, pipeline.dataset.name).values()
    chosen = due(read_quarantine(pipeline.layout.quarantine), sources, now=time.time(), every=0.0)
    return _ask_each(pipeline, chosen, RELEASE, {"force": False}, as_json=as_json)


def _chosen(pipeline: Pipeline, ids: Sequence[str]) -> list[QuarantineEntry]:
    """Returns the entries that the ids name, each once; UsageError for an id that names no entry."""
    things, found = read_quarantine(pipeline.layout.quarantine), dict[str, QuarantineEntry]()
    for one in ids:
        # Of a source's findings the newest; findings not released before released findings.
        of_path = sorted((kept for kept in things if kept.path == one), key=lambda kept: bool(kept.released))
        matches = [kept for kept in things if kept.name == one] or of_path[:1]
        matches = matches or [kept for kept in things if fnmatch.fnmatchcase(kept.name, one)]
        if not matches:
            hint = did_you_mean(one, [kept.name for kept in things], SEE)
            raise UsageError(f"nothing in quarantine is called {one!r}; {hint}")
        found |= {kept.name: kept for kept in matches}
    return list(found.values())


def _several(pipeline: Pipeline, ids: Sequence[str], yes: bool) -> list[QuarantineEntry]:
    """Returns the entries that the ids name; requires --yes unless each was named."""
    chosen = _chosen(pipeline, ids)
    if not yes and not {kept.name for kept in chosen} | {kept.path for kept in chosen} >= set(ids):
        listed = "".join(f"\n  {kept.name}" for kept in chosen)
        raise UsageError(f"this stands for {len(chosen)}; say --yes to do it for all of them:{listed}")
    return chosen


def _ask_each(
    pipeline: Pipeline,
    chosen: Sequence[QuarantineEntry],
    verb: str,
    args: Mapping[str, Any],
    *,
    as_json: bool,
) -> int:
    """Sends the request for each entry in turn; returns the worst exit code."""
    codes, outcomes = [0], []
    for kept in chosen:
        daemon = TRAIN_SUPERVISOR if kept.kind == "checkpoint" and verb.startswith("drop") else STAGE_SHARD
        condition = {"sha256": kept.sha256} if kept.sha256 else None
        judge = partial(_judged, pipeline, kept, verb, args)
        body = {"name": kept.name, **args}
        outcome = ask(pipeline, daemon, verb, body, condition, quiet=as_json, judge=judge)
        outcomes.append({"name": kept.name, "kind": kept.kind, "path": kept.path, **outcome})
        name = one_line(kept.path or kept.name)
        if "refused" in outcome:
            refused = EXIT_AGAIN if outcome.get("again") else EXIT_REFUSED
            codes.append(EXIT_FINDING if outcome.get("finding") else refused)
            if not as_json:
                click.echo(f"stoker: {name} is refused: {one_line(outcome['refused'])}", err=True)
        elif not as_json and "filed" not in outcome:
            done = (
                f"dropped, {outcome['bytes']:,} bytes"
                if "dropped" in outcome
                else f"released: {outcome['why']}"
            )
            click.echo(f"{name}: {outcome['why'] if 'fetching' in outcome else done}")
    if as_json:
        print_json(outcomes)
    return EXIT_FINDING if EXIT_FINDING in codes else max(codes)


def _judged(
    pipeline: Pipeline, kept: QuarantineEntry, verb: str, args: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Returns the refusal of a release; None for what may be released, or cannot be judged here."""
    if verb != RELEASE:
        return None
    source = read_sources(pipeline.layout, pipeline.dataset.name).get(kept.path)
    if kept.released is not None:
        return {"released": kept.path, "why": kept.released.get("why"), "already": True}
    if (no := refusal(kept, source)) is not None:
        return {"refused": no}
    if args["force"] or source is None or source.never_came:
        return None
    receipt = read_receipts(pipeline.layout, pipeline.dataset.name).get(kept.path)
    click.echo("the stage-shard loop is not running: the file is checked here", err=True)
    try:
        with Workers() as workers:
            task = recheck_task(pipeline, kept, source, receipt)
            result = workers.run(Activity("revalidate", MODULE), task, "it could not be checked")
    except WorkerFailed:
        return None
    words = {"bad": str(Finding.of(result)), "gone": GONE}.get(result["status"])
    return {"refused": words, "finding": True} if words else None


def _facts(kept: QuarantineEntry) -> dict[str, Any]:
    """Returns an entry with its whole reason, for JSON."""
    found = {"name": kept.name, "kind": kept.kind, "bytes": kept.bytes, "kept": bool(kept.things)}
    return {**found, "revalidations": 0, **kept.body, "path": kept.path, "reason": kept.reason}


def _state(kept: QuarantineEntry) -> str:
    """Returns the state of an entry in a few words."""
    words = [f"{kept.bytes:,} bytes kept" if kept.things else "nothing kept"]
    marks = {"released": kept.released, "being dropped": kept.dropping, "dropped": kept.dropped}
    words += [f"{what} {mark.get('time', 'now')}: {mark.get('why')}" for what, mark in marks.items() if mark]
    if (last := kept.body.get("revalidated")) is not None:
        words.append(f"still bad {last}, checked {kept.body.get('revalidations')} times")
    return "; ".join(words)
