"""`stoker import`: imports tokens made by other programs, while the stage-shard loop is stopped."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from stoker.cli.ask_daemon import become_owner
from stoker.cli.options import PATH, json_option, pipeline_file, print_json
from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import DatasetPin, read_pin, write_pin
from stoker.corpus.records.receipts import read_listing
from stoker.corpus.records.sources import read_sources
from stoker.exchange.import_set import ImportTask, import_place
from stoker.kit.daemon import COMMAND_PURPOSE
from stoker.kit.lock import Lock, read_contents
from stoker.kit.workers.child import heartbeat
from stoker.store.errors import LockHeld, UnavailableError, UsageError
from stoker.store.files import make_dir
from stoker.store.layout import STAGE_SHARD


@click.command("import", epilog="Example: stoker import fineweb.yaml /data/old/batch-* --trust-tokenizer")
@pipeline_file
@click.argument("places", metavar="DIR...", nargs=-1, required=True, type=PATH)
@click.option(
    "--tokenizer-sha256", metavar="HEX", help="Whose tokens they are, where their place does not say."
)
@click.option(
    "--trust-tokenizer", is_flag=True, help="Take the tokens as this pipeline's tokenizer's, unproven."
)
@json_option
def import_(
    pipeline: Pipeline,
    places: tuple[Path, ...],
    tokenizer_sha256: str | None,
    trust_tokenizer: bool,
    as_json: bool,
) -> None:
    """Copy each DIR into the pipeline as one shard set, trained on after the pipeline's own files.

    DIR is a folder of {train,val}_000000.bin with a manifest.json, a folder of nanoGPT's .bin files with
    train or val in their names, or a single such file. Its rows are unknown, and its documents are known only
    where end-of-text separates them; the books say so. The stage-shard loop must be stopped. The first DIR
    that is not imported ends the command. Exit codes: 65 refused, with the reason; 69 the pipeline's
    tokenizer is not frozen yet; 74 a disk failed; 75 the stage-shard loop runs.
    """
    if not pipeline.layout.locks.is_dir():
        raise UsageError(f"{pipeline.state}: this pipeline never ran; start its stage-shard loop first")
    if missing := next((place for place in places if not place.exists()), None):
        raise UsageError(f"{missing} does not exist; name what to import")
    become_owner(pipeline)
    imports: list[dict[str, Any]] = []
    with _loop_lock(pipeline):
        for place in places:
            made = _import(pipeline, place.resolve(), tokenizer_sha256, trusted=trust_tokenizer)
            imports.append({"place": str(place), **made})
            if not as_json:
                _say(made)
    if as_json:
        print_json({"v": 1, "imports": imports})


def _loop_lock(pipeline: Pipeline) -> Lock:
    """Returns the stage-shard loop's lock: only its holder writes source records."""
    path = pipeline.layout.lock(STAGE_SHARD)
    try:
        return Lock.acquire(path, purpose=COMMAND_PURPOSE)
    except LockHeld as held:
        raise LockHeld(
            f"{path} is held by {read_contents(path)}; stop the stage-shard loop, import, then start it again"
        ) from held


def _say(made: Mapping[str, Any]) -> None:
    books = made["books"]
    known = "documents not known" if books["documents"] is None else f"{books['documents']:,} documents"
    what = "imported" if made["new"] else "here already"
    click.echo(
        f"{made['path']}: {what}: {books['train']['tokens']:,} tokens to train on, "
        f"{books['val']['tokens']:,} held out, {known}; set {str(made['key'])[:16]}"
    )
    for note in made["notes"]:
        click.echo(f"{made['path']}: note: passed over {note}")


def _pin(pipeline: Pipeline) -> DatasetPin:
    name, version = pipeline.dataset.name, pipeline.dataset.version
    pin = read_pin(pipeline.layout, name)
    if pin is None or pin.version != version:
        raise UnavailableError(
            f"{name} has no frozen tokenizer in version {version} yet; "
            "start the stage-shard loop, which freezes it, then stop it and import again"
        )
    return pin


def _import(pipeline: Pipeline, place: Path, stated: str | None, *, trusted: bool) -> dict[str, Any]:
    """Imports a place: copies it, writes its record, publishes the set; returns the facts to print."""
    layout, hot, dataset, pin = pipeline.layout, pipeline.hot_layout, pipeline.dataset.name, _pin(pipeline)
    sources, listing = read_sources(layout, dataset), read_listing(layout, dataset)
    if not hot.owner_lock.exists() and any(source.hot for source in sources.values()):
        raise UnavailableError(f"{pipeline.hot}: not the disk that was used before; mount it, then try again")
    task = ImportTask(
        place=place,
        layout=layout,
        hot=hot,
        pin=pin,
        sources=sources,
        taken=frozenset() if listing is None else frozenset(listing.paths),
        floor=pipeline.stage.free_floor,
        stated_tokenizer=stated,
        trust_tokenizer=trusted,
    )
    make_dir(pipeline.hot)
    with Lock.acquire(hot.owner_lock, purpose=pipeline.owner):
        made = import_place(task, heartbeat(_show_progress, place.name))
    source = made.source
    if source.path not in pin.listing:
        write_pin(layout, replace(pin, listing=(*pin.listing, source.path)))
    books = None if source.books is None else source.books.to_mapping()
    about = {"path": source.path, "key": source.key, "new": made.new, "books": books}
    return {**about, "notes": list(made.notes)}


def _show_progress(_kind: str, **fields: Any) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{fields['reading']}: {fields['bytes'] / 2**20:,.0f} MiB read", nl=False, err=True)
