"""`stoker import`: tokens that others made, taken over by the stage-shard loop, or here where it is down."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.ask_daemon import see_to
from stoker.cli.options import PATH, json_option, pipeline_file, print_json
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.kit.lock import Lock
from stoker.store.errors import DataError, StokerError, UnavailableError, UsageError
from stoker.store.files import make_dir
from stoker.store.layout import STAGE_SHARD
from stoker.store.requests import Request

if TYPE_CHECKING:
    from stoker.corpus.records.sources import Source
    from stoker.shards.exchange.import_source import Found
    from stoker.shards.exchange.import_tokens import Survey

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
    pipeline = load_pipeline(file)
    if not pipeline.layout.locks.is_dir():
        raise UsageError(f"{pipeline.state}: this pipeline never ran; start its stage-shard loop first")
    if missing := next((place for place in places if not place.exists()), None):
        raise UsageError(f"{missing} does not exist; name what to import")
    code, outcomes = 0, []
    args: dict[str, Any] = {"tokenizer_sha256": tokenizer_sha256, "trust_tokenizer": trust_tokenizer}
    for place in places:
        args["place"] = str(place.resolve())
        outcome = see_to(
            pipeline, STAGE_SHARD, "import", args, do_it=lambda asked: _do_it(pipeline, asked), quiet=as_json
        )
        outcomes.append({"place": str(place), **outcome})
        code = max(code, EXIT_REFUSED if "refused" in outcome else EXIT_FAILED if "failed" in outcome else 0)
        if not as_json:
            _say(place, outcome)
    if as_json:
        print_json({"v": 1, "imports": outcomes})
    return code


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

    layout, hot, dataset = pipeline.layout, pipeline.hot_layout, pipeline.dataset.name
    pin = read_pin(layout, dataset)
    if pin is None or pin.version != pipeline.dataset.version:
        raise UnavailableError(
            f"{dataset} has no frozen tokenizer in version {pipeline.dataset.version} yet; "
            "start the stage-shard loop, which freezes it, then import again"
        )
    task = ImportTask.from_mapping(task_of(pipeline, pin, request.args))
    sources, listing = read_sources(layout, dataset), read_listing(layout, dataset)
    if not hot.owner_lock.exists() and any(source.hot for source in sources.values()):
        raise UnavailableError(f"{pipeline.hot}: not the disk that was used before; mount it, then try again")
    found: list[Source] = []

    def take(content: Survey, _: Found) -> str | None:
        taken = frozenset() if listing is None else frozenset(listing.paths)
        size, sha256 = content.size, content.sha256
        made = claim(sources, taken, dataset=dataset, name=task.place.name, size=size, sha256=sha256)
        found.append(made.source)
        if made.twin:
            return None
        write_source(layout, made.source)
        return made.source.path

    make_dir(pipeline.hot)
    with Lock.acquire(hot.owner_lock, purpose=pipeline.owner):
        result = import_place(task, _Reporter(), take)
        if result["status"] == "on_record":
            return outcome_of(found[-1], new=False)
        if result["status"] == "target_invalid":
            raise DataError(
                f"{task.shards}: {result['reason']}; start the stage-shard loop, which sets it aside"
            )
        source = proven(found[-1], result)
        write_source(layout, source)
    if source.path not in pin.listing:
        write_pin(layout, replace(pin, listing=(*pin.listing, source.path)))
    return outcome_of(source, new=result["status"] == "published", notes=result["notes"])


class _Reporter:
    """Takes what an import reports; on a terminal it shows how far it has read."""

    stopping = False

    def __call__(self, kind: str, **fields: Any) -> None:
        if kind == "progress" and sys.stderr.isatty():
            click.echo(f"\r{fields['reading']}: {fields['bytes'] / 2**20:,.0f} MiB read", nl=False, err=True)

    def raise_if_stopping(self) -> None:
        """Ctrl-C is an exception here."""
