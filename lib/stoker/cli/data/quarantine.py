"""`stoker quarantine`: what was set aside, why, and what becomes of it."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from stoker.cli.ask_daemon import see_to
from stoker.cli.options import did_you_mean, json_option, one_line, pipeline_file, print_json
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.corpus.quarantine.directory import KINDS, Kept, QuarantineDir
from stoker.store.errors import UsageError
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.record import RecordDamaged, read_record

EXIT_FINDING, EXIT_REFUSED, EXIT_AGAIN = 1, 65, 75
YES = click.option("--yes", is_flag=True, help="Do it for all that a pattern or --all stands for.")


@click.group(epilog="Example: stoker quarantine list /etc/stoker/fineweb.yaml")
def quarantine() -> None:
    """Show what was set aside, give a source another try, or give up what is kept.

    ID is the name that `list` shows, a source's path, or a pattern such as 'parquet-*'.
    """


@quarantine.command("list", epilog="Example: stoker quarantine list /etc/stoker/fineweb.yaml --kind parquet")
@pipeline_file
@click.option("--kind", type=click.Choice(KINDS), help="Only this kind of thing.")
@json_option
def list_(file: Path, kind: str | None, as_json: bool) -> None:
    """List what lies in quarantine, newest first."""
    pipeline = load_pipeline(file)
    chosen = [kept for kept in _everything(pipeline) if kind is None or kept.kind == kind]
    if as_json:
        print_json([{**_facts(kept), "source": _source_state(pipeline, kept)} for kept in chosen])
        return
    for kept in chosen:
        named = {"row group": kept.body.get("row_group"), "column": kept.body.get("column")}
        place = ", ".join(f"{what} {value}" for what, value in named.items() if value is not None)
        what = kept.reason + (f" ({place})" if place else "")
        state = _source_state(pipeline, kept)
        now = f"; its source is {state}" if state not in (None, "quarantined") else ""
        click.echo(f"{one_line(kept.name)}\n    {one_line(kept.path) or 'unknown'}: {one_line(what)}")
        click.echo(f"    {kept.kind}, {kept.when or 'time unknown'}, {_state(kept)}{now}")
    files, size = sum(1 for kept in chosen if kept.things), sum(kept.bytes for kept in chosen)
    click.echo(f"{len(chosen)} in quarantine; {files} kept, {size:,} bytes")


@quarantine.command(epilog="Example: stoker quarantine show /etc/stoker/fineweb.yaml 000_00012.parquet")
@pipeline_file
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_option
def show(file: Path, ids: tuple[str, ...], as_json: bool) -> None:
    """Show the whole reason of each ID, and where the thing lies."""
    pipeline = load_pipeline(file)
    for kept in _chosen(_everything(pipeline), ids):
        where = pipeline.layout.quarantine / kept.name
        things = [str(where / thing) for thing in kept.things]
        if as_json:
            print_json({**_facts(kept), "folder": str(where), "things": things, "body": kept.body})
            continue
        click.echo(f"{one_line(kept.name)} ({_state(kept)})")
        lines = [*(kept.body.items() or [("problem", kept.problem)])]
        for name, value in [*lines, *(("lies", thing) for thing in things or ["nothing is kept of it"])]:
            click.echo(f"  {name:<14} {one_line(value)}")


@quarantine.command(epilog="Example: stoker quarantine release /etc/stoker/fineweb.yaml 000_00012.parquet")
@pipeline_file
@click.argument("ids", metavar="ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every parquet file in quarantine.")
@click.option("--force", is_flag=True, help="Without looking at it first; it is judged again when staged.")
@YES
@json_option
def release(
    file: Path, ids: tuple[str, ...], *, everything: bool, force: bool, yes: bool, as_json: bool
) -> int:
    """Give quarantined sources another try.

    Each is decoded wholly and hashed first: one that is still bad is refused with the reader's words (exit
    code 1); one that could not be fetched is fetched again. With the stage-shard loop down it is done at
    once, and goes on at its next start.
    """
    pipeline = load_pipeline(file)
    return _release(
        pipeline, _several(_everything(pipeline), ids, everything, yes, _releasable), force, as_json
    )


@quarantine.command(epilog="Example: stoker quarantine drop /etc/stoker/fineweb.yaml 'shards-*' --yes")
@pipeline_file
@click.argument("ids", metavar="ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that is kept, of every kind.")
@click.option("--reason-too", is_flag=True, help="The reason as well, which else stays.")
@YES
@json_option
def drop(
    file: Path, ids: tuple[str, ...], *, everything: bool, reason_too: bool, yes: bool, as_json: bool
) -> int:
    """Delete what is kept of things in quarantine; of a checkpoint its reason goes with it."""
    from stoker.cli.data import quarantine_acts
    from stoker.shards.audit.recheck import DROP

    pipeline = load_pipeline(file)
    chosen = _several(
        _everything(pipeline), ids, everything, yes, lambda kept: bool(kept.things) and kept.kind in KINDS
    )
    args = {"reason_too": reason_too}
    return _ask_each(
        pipeline, chosen, DROP, args, act=quarantine_acts.drop, words=_drop_words, as_json=as_json
    )


@quarantine.command(epilog="Example: stoker quarantine revalidate /etc/stoker/fineweb.yaml")
@pipeline_file
@json_option
def revalidate(file: Path, as_json: bool) -> int:
    """Look at every quarantined source again now, and release those that are good.

    The stage-shard loop does so by itself every `quarantine.revalidate`.
    """
    pipeline = load_pipeline(file)
    newest = {kept.path: kept for kept in reversed(_everything(pipeline)) if _releasable(kept)}
    return _release(pipeline, list(reversed(newest.values())), False, as_json)


# Which


def _everything(pipeline: Pipeline) -> tuple[Kept, ...]:
    return QuarantineDir(pipeline.layout.quarantine).read()


def _releasable(kept: Kept) -> bool:
    return kept.kind == "parquet" and kept.released is None


def _chosen(things: Sequence[Kept], ids: Sequence[str]) -> list[Kept]:
    """What the ids stand for, each once; UsageError for one that stands for nothing."""
    found: dict[str, Kept] = {}
    for one in ids:
        matches = [kept for kept in things if kept.name == one]
        if not matches and _is_pattern(one):
            matches = [kept for kept in things if fnmatch.fnmatchcase(kept.name, one)]
        elif not matches:  # the newest finding against a source, one that was not released before others
            of_path = [kept for kept in things if kept.path == one]
            matches = sorted(of_path, key=lambda kept: kept.released is not None)[:1]
        if not matches:
            listed = "`stoker quarantine list` shows what there is"
            hint = did_you_mean(one, [kept.name for kept in things], listed)
            raise UsageError(f"nothing in quarantine is called {one!r}; {hint}")
        found |= {kept.name: kept for kept in matches}
    return list(found.values())


def _is_pattern(one: str) -> bool:
    return any(sign in one for sign in "*?[")


def _several(
    things: Sequence[Kept], ids: Sequence[str], everything: bool, yes: bool, may: Callable[[Kept], bool]
) -> list[Kept]:
    """As _chosen, or everything that `may`; more than was named one by one wants a --yes."""
    if everything == bool(ids):
        raise UsageError("name what is meant, or say --all; `stoker quarantine list` shows what there is")
    chosen = [kept for kept in things if may(kept)] if everything else _chosen(things, ids)
    names = {kept.name for kept in things} | {kept.path for kept in things}
    if not yes and (everything or any(_is_pattern(one) and one not in names for one in ids)):
        listed = "".join(f"\n  {kept.name}" for kept in chosen)
        raise UsageError(f"this stands for {len(chosen)}; say --yes to do it for all of them:{listed}")
    return chosen


# Asking


def _release(pipeline: Pipeline, chosen: Sequence[Kept], force: bool, as_json: bool) -> int:
    from stoker.cli.data import quarantine_acts
    from stoker.shards.audit.recheck import RELEASE

    args = {"force": force}
    return _ask_each(
        pipeline, chosen, RELEASE, args, act=quarantine_acts.release, words=_release_words, as_json=as_json
    )


def _ask_each(
    pipeline: Pipeline,
    chosen: Sequence[Kept],
    verb: str,
    args: Mapping[str, Any],
    *,
    act: Callable[..., dict[str, Any]],
    words: Callable[[Kept, Mapping[str, Any]], str],
    as_json: bool,
) -> int:
    """Have it done for one after the other; the exit code of the worst that came of it."""
    codes, outcomes = [0], []
    for kept in chosen:
        daemon = TRAIN_SUPERVISOR if kept.kind == "checkpoint" and verb.startswith("drop") else STAGE_SHARD
        condition = {"sha256": kept.sha256} if kept.sha256 else None
        do_it = functools.partial(act, pipeline, kept)
        asked = {"name": kept.name, **args}
        outcome = see_to(pipeline, daemon, verb, asked, condition, do_it=do_it, quiet=as_json)
        outcomes.append({"name": kept.name, "kind": kept.kind, "path": kept.path, **outcome})
        if "refused" in outcome:
            refused = EXIT_AGAIN if outcome.get("again") else EXIT_REFUSED
            codes.append(EXIT_FINDING if outcome.get("finding") else refused)
        if not as_json:
            click.echo(words(kept, outcome), err="refused" in outcome)
    if as_json:
        print_json(outcomes)
    return EXIT_FINDING if EXIT_FINDING in codes else max(codes)


def _release_words(kept: Kept, outcome: Mapping[str, Any]) -> str:
    path, before = one_line(kept.path), "was released before" if outcome.get("already") else "released"
    if "refused" in outcome:
        return f"stoker: {path or kept.name} is not released: {one_line(outcome['refused'])}"
    return f"{path}: {outcome['why']}" if "fetching" in outcome else f"{path}: {before}: {outcome.get('why')}"


def _drop_words(kept: Kept, outcome: Mapping[str, Any]) -> str:
    if "refused" in outcome:
        return f"stoker: {kept.name} is not dropped: {outcome['refused']}"
    return f"{kept.name}: dropped, {outcome['bytes']:,} bytes"


# Showing


def _facts(kept: Kept) -> dict[str, Any]:
    return {
        "name": _utf8(kept.name),
        "kind": kept.kind,
        "path": _utf8(kept.path),
        "reason": kept.reason,
        **{name: kept.body.get(name) for name in ("row_group", "column", "detail", "revalidated")},
        "time": kept.when,
        "bytes": kept.bytes,
        "kept": bool(kept.things),
        "revalidations": kept.body.get("revalidations", 0),
        "released": kept.released,
        "dropped": kept.dropped,
    }


def _state(kept: Kept) -> str:
    """What became of it, in a few words."""
    words = [f"{kept.bytes:,} bytes kept" if kept.things else "nothing kept"]
    marks = {"released": kept.released, "being dropped": kept.dropping, "dropped": kept.dropped}
    for what, mark in marks.items():
        if mark is not None:
            words.append(f"{what} {mark.get('time', 'now')}: {mark.get('why')}")
    if "revalidated" in kept.body:
        words.append(
            f"still bad {kept.body['revalidated']}, looked at {kept.body.get('revalidations')} times"
        )
    return "; ".join(words)


def _source_state(pipeline: Pipeline, kept: Kept) -> str | None:
    """What became of the source that a parquet file was; None where there is none, or no record of it."""
    if kept.kind != "parquet" or not kept.path:
        return None
    try:
        return str(read_record(pipeline.layout.source(pipeline.dataset.name, kept.path))["state"])
    except (FileNotFoundError, RecordDamaged, KeyError):
        return None


def _utf8(text: str) -> str:
    """A name as JSON can carry it, also where its bytes are no text."""
    return text.encode(errors="backslashreplace").decode()
