"""`stoker import`: take over tokens that others made, while the stage-shard loop is down."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.ask_daemon import become_owner
from stoker.cli.options import PATH, json_option, pipeline_file, print_json
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.kit.daemon import COMMAND_PURPOSE
from stoker.kit.lock import Lock, read_contents
from stoker.store.errors import LockHeld, StokerError, UnavailableError, UsageError
from stoker.store.files import make_dir
from stoker.store.layout import STAGE_SHARD

if TYPE_CHECKING:
    from stoker.corpus.records.pin import DatasetPin
    from stoker.corpus.records.sources import Source
    from stoker.shards.exchange.import_set import ImportTask
    from stoker.shards.format.manifest import Manifest

EXIT_REFUSED, EXIT_FAILED = 65, 74


@click.command(
    "import",
    short_help="Take over tokens that others made.",
    epilog="Example: stoker import /etc/stoker/fineweb.yaml /data/old/shards/batch-* --trust-tokenizer",
)
@pipeline_file
@click.argument("places", metavar="DIR...", nargs=-1, required=True, type=PATH)
@click.option(
    "--tokenizer-sha256", metavar="HEX", help="Whose tokens they are, where their place does not say."
)
@click.option(
    "--trust-tokenizer", is_flag=True, help="They are this pipeline's tokenizer's, whatever is said."
)
@json_option
def import_(
    file: Path, places: tuple[Path, ...], tokenizer_sha256: str | None, trust_tokenizer: bool, as_json: bool
) -> int:
    """Copy what is in each DIR into the pipeline as one shard set, to be trained on after its own files.

    DIR is a folder of {train,val}_000000.bin with a manifest.json, a folder of nanoGPT's .bin files with
    train or val in their names, or one such file. Rows are not known of it, documents only where end-of-text
    stands between them; the books say so. The stage-shard loop must be stopped. Exit codes: 65 refused, with
    the reason; 74 a disk did not do what it should; 75 the stage-shard loop runs.
    """
    pipeline = load_pipeline(file)
    if not pipeline.layout.locks.is_dir():
        raise UsageError(f"{pipeline.state}: this pipeline never ran; start its stage-shard loop first")
    if missing := next((place for place in places if not place.exists()), None):
        raise UsageError(f"{missing} does not exist; name what to import")
    become_owner(pipeline)
    outcomes: list[dict[str, Any]] = []
    with _loop_lock(pipeline):
        for place in places:
            outcome = _outcome(pipeline, place.resolve(), tokenizer_sha256, trusted=trust_tokenizer)
            outcomes.append({"place": str(place), **outcome})
            if not as_json:
                _say(place, outcome)
    if as_json:
        print_json({"v": 1, "imports": outcomes})
    if any("failed" in outcome for outcome in outcomes):
        return EXIT_FAILED
    return EXIT_REFUSED if any("refused" in outcome for outcome in outcomes) else 0


def _loop_lock(pipeline: Pipeline) -> Lock:
    """The stage-shard loop's lock: only its holder writes the records of sources."""
    path = pipeline.layout.lock(STAGE_SHARD)
    try:
        return Lock.acquire(path, purpose=COMMAND_PURPOSE)
    except LockHeld as held:
        raise LockHeld(
            f"{path} is held by {read_contents(path)}; stop the stage-shard loop, import, then start it again"
        ) from held


def _say(place: Path, outcome: Mapping[str, Any]) -> None:
    if why := outcome.get("refused") or outcome.get("failed"):
        click.echo(f"stoker: {place}: not imported: {why}", err=True)
        return
    books = outcome["books"]
    known = "documents not known" if books["documents"] is None else f"{books['documents']:,} documents"
    what = "imported" if outcome["new"] else "here already"
    click.echo(
        f"{outcome['path']}: {what}: {books['train']['tokens']:,} tokens to train on, "
        f"{books['val']['tokens']:,} held out, {known}; set {str(outcome['key'])[:16]}"
    )
    for note in outcome["notes"]:
        click.echo(f"{outcome['path']}: note: passed over {note}")


def _outcome(pipeline: Pipeline, place: Path, stated: str | None, *, trusted: bool) -> dict[str, Any]:
    """Import one place; returns what became of it."""
    from stoker.corpus.records.pin import read_pin
    from stoker.shards.exchange.import_set import ImportTask
    from stoker.shards.exchange.import_source import ImportRefused

    name, version = pipeline.dataset.name, pipeline.dataset.version
    try:
        pin = read_pin(pipeline.layout, name)
        if pin is None or pin.version != version:
            raise UnavailableError(
                f"{name} has no frozen tokenizer in version {version} yet; "
                "start the stage-shard loop, which freezes it, then stop it and import again"
            )
        task = ImportTask(
            place=place,
            dataset=name,
            build_id=pin.build_id,
            shard_tokens=int(pin.build["shard_tokens"]),
            tokenizer_sha256=pin.tokenizer.sha256,
            vocab_size=pin.tokenizer.vocab_size,
            eot=pin.tokenizer.eot,
            building=pipeline.hot_layout.building,
            shards=pipeline.hot_layout.shards(name),
            floor=pipeline.stage.free_floor,
            stated_tokenizer=stated,
            trust_tokenizer=trusted,
        )
        return _import(pipeline, pin, task)
    except ImportRefused as refusal:
        return {"refused": str(refusal)}
    except (StokerError, OSError) as problem:
        return {"failed": str(problem)}


def _import(pipeline: Pipeline, pin: DatasetPin, task: ImportTask) -> dict[str, Any]:
    """Copy it, put it on record, publish it, then record what was published."""
    from stoker.corpus.records.books import Books
    from stoker.corpus.records.listing import read_listing
    from stoker.corpus.records.pin import write_pin
    from stoker.corpus.records.sources import PUBLISHED, read_sources, write_source
    from stoker.kit.workers.heartbeat import heartbeat
    from stoker.shards.exchange.import_claim import claim
    from stoker.shards.exchange.import_set import import_place

    layout, hot, dataset = pipeline.layout, pipeline.hot_layout, task.dataset
    sources, listing = read_sources(layout, dataset), read_listing(layout, dataset)
    if not hot.owner_lock.exists() and any(source.hot for source in sources.values()):
        raise UnavailableError(f"{pipeline.hot}: not the disk that was used before; mount it, then try again")
    claimed: list[Source] = []

    def put_on_record(manifest: Manifest) -> str | None:
        taken = frozenset() if listing is None else frozenset(listing.paths)
        size, sha256 = manifest.source_size, manifest.source_sha256
        source = claim(sources, taken, dataset=dataset, name=task.place.name, size=size, sha256=sha256)
        claimed.append(source)
        if source.state in PUBLISHED:
            return None
        write_source(layout, source)
        return source.path

    make_dir(pipeline.hot)
    with Lock.acquire(hot.owner_lock, purpose=pipeline.owner):
        result = import_place(task, put_on_record, heartbeat(_show_progress, task.place.name))
        source = claimed[0]
        if result is not None:
            books, digest = Books.from_mapping(result.manifest.books.to_mapping()), result.manifest.sha256
            key = result.manifest.key
            source = source.moved("proven", reason=None, key=key, manifest_sha256=digest, books=books)
            write_source(layout, source)
    if source.path not in pin.listing:
        write_pin(layout, replace(pin, listing=(*pin.listing, source.path)))
    return {
        "path": source.path,
        "key": source.key,
        "new": result is not None and result.new,
        "books": None if source.books is None else source.books.to_mapping(),
        "notes": [] if result is None else list(result.notes),
    }


def _show_progress(_kind: str, **fields: Any) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{fields['reading']}: {fields['bytes'] / 2**20:,.0f} MiB read", nl=False, err=True)
