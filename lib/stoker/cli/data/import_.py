"""`stoker import`: tokens that others made, taken over by the stage-shard loop, or here where it is down."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.options import PATH, json_option, pipeline_file, print_json
from stoker.store.errors import DataError, StokerError, UnavailableError, UsageError

if TYPE_CHECKING:
    from stoker.config.schema import Pipeline
    from stoker.corpus.records.pin import DatasetPin
    from stoker.corpus.records.sources import Source
    from stoker.kit.lock import Lock
    from stoker.store.requests import Request

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
    stands between them; the books say so. With the stage-shard loop down it is done here. Exit codes: 65
    refused, with the reason; 74 a disk did not do what it should.
    """
    from stoker.cli.ask_daemon import see_to
    from stoker.config.load import load_pipeline
    from stoker.shards.exchange.import_claim import IMPORT
    from stoker.store.layout import STAGE_SHARD

    pipeline = load_pipeline(file)
    if not pipeline.layout.locks.is_dir():
        raise UsageError(f"{pipeline.state}: this pipeline never ran; start its stage-shard loop first")
    for line in () if as_json else _waits(pipeline):
        click.echo(line, err=True)
    code = 0
    told = []
    for place in places:
        if not place.exists():
            raise UsageError(f"{place} does not exist; name what to import")
        args = {
            "place": str(place.resolve()),
            "tokenizer_sha256": tokenizer_sha256,
            "trust_tokenizer": trust_tokenizer,
        }
        outcome = see_to(
            pipeline,
            STAGE_SHARD,
            IMPORT,
            args,
            condition=None,
            do_it=lambda request: _do_it(pipeline, request),
            quiet=as_json,
        )
        told.append({"place": str(place), **outcome})
        code = max(code, EXIT_REFUSED if "refused" in outcome else EXIT_FAILED if "failed" in outcome else 0)
        if not as_json:
            _say(place, outcome)
    if as_json:
        print_json({"v": 1, "imports": told})
    return code


def _say(place: Path, outcome: Mapping[str, Any]) -> None:
    for word in ("refused", "failed"):
        if word in outcome:
            click.echo(f"stoker: {place}: not imported: {outcome[word]}", err=True)
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


def _waits(pipeline: Pipeline) -> Iterator[str]:
    """What a person should know who waits for the daemon."""
    from stoker.corpus.records.pin import read_pin

    if read_pin(pipeline.layout, pipeline.dataset.name) is None:
        yield "stoker: the tokenizer is not frozen yet; what is imported waits for it"


def _do_it(pipeline: Pipeline, request: Request) -> dict[str, Any]:
    """The loop's work, with its lock held; returns the outcome."""
    from stoker.shards.exchange.import_source import ImportRefused

    try:
        return _import(pipeline, request)
    except ImportRefused as refusal:
        return {"refused": str(refusal)}
    except (StokerError, OSError) as problem:
        return {"failed": str(problem)}


def _import(pipeline: Pipeline, request: Request) -> dict[str, Any]:
    from stoker.corpus.records.listing import read_listing
    from stoker.corpus.records.pin import read_pin, write_pin
    from stoker.corpus.records.sources import read_sources, write_source
    from stoker.shards.exchange.import_claim import claim, outcome_of, proven, task_of
    from stoker.shards.exchange.import_set import ImportTask, import_place
    from stoker.shards.exchange.import_source import Found
    from stoker.shards.exchange.import_tokens import Survey

    layout, dataset = pipeline.layout, pipeline.dataset.name
    pin = _pinned(pipeline, read_pin(layout, dataset))
    task = ImportTask.from_mapping(task_of(pipeline, pin, request.args))
    sources = read_sources(layout, dataset)
    listing = read_listing(layout, dataset)
    found: list[Source] = []

    def take(content: Survey, _: Found) -> str | None:
        listed = frozenset() if listing is None else frozenset(listing.paths)
        made = claim(
            sources, listed, dataset=dataset, name=task.place.name, size=content.size, sha256=content.sha256
        )
        found.append(made.source)
        if made.twin:
            return None
        write_source(layout, made.source)
        return made.source.path

    with _hot(pipeline, sources), _reporting() as report:
        result = import_place(task, report, take)
        source = found[-1]
        if result["status"] == "on_record":
            return outcome_of(source, new=False)
        if result["status"] == "target_invalid":
            raise DataError(
                f"{task.shards}: {result['reason']}; start the stage-shard loop, which sets it aside"
            )
        source = proven(source, result)
        write_source(layout, source)
    if source.path not in pin.listing:
        write_pin(layout, replace(pin, listing=(*pin.listing, source.path)))
    return outcome_of(source, new=result["status"] == "published", notes=result["notes"])


def _pinned(pipeline: Pipeline, pin: DatasetPin | None) -> DatasetPin:
    """The pin that imports go by; raises UnavailableError before there is one of this version."""
    if pin is None or pin.version != pipeline.dataset.version:
        raise UnavailableError(
            f"{pipeline.dataset.name} has no frozen tokenizer in version {pipeline.dataset.version} yet; "
            "start the stage-shard loop, which freezes it, then import again"
        )
    return pin


def _hot(pipeline: Pipeline, sources: Mapping[str, Source]) -> Lock:
    """The owner lock of hot; raises LockHeld for another pipeline's, UnavailableError for another disk."""
    from stoker.kit.lock import Lock
    from stoker.store.files import make_dir

    hot = pipeline.hot_layout
    if not hot.owner_lock.exists() and any(source.hot for source in sources.values()):
        raise UnavailableError(
            f"{pipeline.hot}: not the disk that was used before; mount it, then import again"
        )
    make_dir(pipeline.hot)
    return Lock.acquire(hot.owner_lock, purpose=pipeline.owner)


class _Reporter:
    """Takes what an import tells; on a terminal it shows how far it has read."""

    stopping = False

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown

    def __call__(self, kind: str, **fields: Any) -> None:
        if self._shown and kind == "progress":
            click.echo(f"\r{fields['reading']}: {fields['bytes'] / 2**20:,.0f} MiB read", nl=False, err=True)

    def raise_if_stopping(self) -> None:
        """Ctrl-C is an exception here."""


@contextmanager
def _reporting() -> Iterator[_Reporter]:
    shown = sys.stderr.isatty()
    yield _Reporter(shown=shown)
    if shown:
        click.echo("\r\x1b[K", nl=False, err=True)
