"""`stoker export`: shard sets as other trainers read them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.options import PATH
from stoker.store.errors import DataError, UsageError

if TYPE_CHECKING:
    from stoker.config.schema import Pipeline
    from stoker.shards.exchange.export_sets import OfferedSet

ROW_TOKENS = 2048  # where no pipeline says its own
MOST_IN_A_ROW = 1 << 20


@click.command(
    short_help="Write shard sets as other trainers read them.",
    epilog="Example: stoker export --format hf-arrow /etc/stoker/fineweb.yaml /data/fineweb-arrow",
)
@click.option("--format", "form", type=click.Choice(["hf-arrow", "nanogpt"]), required=True)
@click.argument("shards", type=PATH)
@click.argument("out", type=PATH)
@click.option("--split", type=click.Choice(["train", "val", "all"]), default="all", show_default=True)
@click.option(
    "--rows", type=click.IntRange(1, MOST_IN_A_ROW), help="Tokens a row; default: the pipeline's seq_len."
)
@click.option("--documents", is_flag=True, help="A row a document instead.")
def export(  # noqa: PLR0917 - click passes one an option
    form: str, shards: Path, out: Path, split: str, rows: int | None, documents: bool
) -> int:
    """Write shard sets to the new directory OUT.

    SHARDS is a shard set, a directory of them (by name), or a pipeline FILE (all that is published, in
    listing order). Every byte is proven while it is read; OUT gets its name when it is whole.

    hf-arrow is for `datasets.load_from_disk`; tokens that do not fill a last row are left out, and said.
    nanogpt is train.bin and val.bin, with nothing left out. Exit codes: 65 a set is not whole; 74 no room.
    """
    from stoker.shards.exchange.export_out import Output
    from stoker.shards.exchange.export_sets import agree

    if form == "nanogpt" and (rows is not None or documents):
        raise UsageError("--rows and --documents are for hf-arrow; nanogpt is one stream a split")
    if rows is not None and documents:
        raise UsageError("--rows and --documents: give one of them")
    sets, row_tokens = _offered(shards)
    agree(sets)
    splits = ("train", "val") if split == "all" else (split,)
    if documents and (torn := [one for one in sets if not one.documents_known]):
        raise UsageError(f"{torn[0].places[0]}: imported, its documents are not known; use --rows")
    tokens = sum(one.tokens(each) for one in sets for each in splits)
    if not tokens:
        raise DataError(f"{shards}: no tokens in {' and '.join(splits)}; nothing was written")
    with Output(out) as output, _progress(tokens) as progress:
        output.insist_on_room(tokens * (2 if sets[0].manifest.dtype == "uint16" else 4))
        if form == "nanogpt":
            from stoker.shards.exchange.export_nanogpt import export_nanogpt

            told = export_nanogpt(sets, splits, output, progress)
        else:
            from stoker.shards.exchange.export_arrow import Form, export_arrow

            told = export_arrow(
                sets, splits, Form(None if documents else rows or row_tokens), output, progress
            )
        output.write_json("meta.json", _note(form, sets, splits, told))
        output.publish()
    for line in _summary(out, sets, splits, told):
        click.echo(line)
    return 0


def _offered(shards: Path) -> tuple[list[OfferedSet], int]:
    """The sets that are meant, in order, and how many tokens a row has by default."""
    from stoker.config.load import load_pipeline
    from stoker.shards.exchange.export_sets import OfferedSet, find_sets

    if shards.is_file():
        pipeline = load_pipeline(shards)
        return list(_published(pipeline)), pipeline.train.seq_len
    return [OfferedSet.at(path) for path in find_sets(shards)], ROW_TOKENS


def _published(pipeline: Pipeline) -> Iterator[OfferedSet]:
    """Every published set of a pipeline in listing order, from hot or else from warm."""
    from stoker.corpus.records.pin import read_pin
    from stoker.corpus.records.sources import PUBLISHED, read_sources
    from stoker.shards.exchange.export_sets import OfferedSet

    dataset = pipeline.dataset.name
    pin, sources = read_pin(pipeline.layout, dataset), read_sources(pipeline.layout, dataset)
    listed = [sources[path] for path in (pin.listing if pin else ()) if path in sources]
    published = [source for source in listed if source.state in PUBLISHED and source.key]
    if not published:
        raise UsageError(f"{pipeline.file}: no shard set of {dataset} is published yet; see `stoker status`")
    if pin is not None and not pin.complete:
        click.echo(f"stoker: {dataset} is not complete yet: {len(published)} shard sets so far", err=True)
    disks = [disk for disk in (pipeline.hot_layout, pipeline.warm_layout) if disk is not None]
    for source in published:
        one = OfferedSet.at(*(disk.shard_set(dataset, str(source.key)) for disk in disks))
        if one.manifest_sha256 != source.manifest_sha256:
            raise DataError(
                f"{one.places[0]}: not the shard set that the record of {source.path} tells of; "
                "see `stoker audit`"
            )
        yield one


def _note(
    form: str, sets: Sequence[OfferedSet], splits: Sequence[str], told: dict[str, Any]
) -> dict[str, Any]:
    """meta.json: what this is, and of which sets; no times, so that the same export gives the same bytes."""
    first = sets[0].manifest
    return {
        "v": 1,
        "format": form,
        "dataset": first.dataset,
        "tokenizer_sha256": first.tokenizer_sha256,
        "vocab_size": first.vocab_size,
        "eot": first.eot,
        "dtype": first.dtype,
        "tokens": {split: sum(one.tokens(split) for one in sets) for split in splits},
        "sets": [{"key": one.manifest.key, "manifest_sha256": one.manifest_sha256} for one in sets],
        **told,
    }


def _summary(
    out: Path, sets: Sequence[OfferedSet], splits: Sequence[str], told: dict[str, Any]
) -> Iterator[str]:
    counts = ", ".join(f"{sum(one.tokens(split) for one in sets):,} {split}" for split in splits)
    yield f"{out}: {len(sets)} shard set{'s' * (len(sets) != 1)}, {counts} tokens"
    left = {split: tokens for split, tokens in told["tail_tokens"].items() if tokens}
    if left:
        parts = ", ".join(f"{tokens:,} {split}" for split, tokens in left.items())
        yield f"left out, for they fill no row: {parts} tokens"
    yield from told.get("notes", ())


@contextmanager
def _progress(tokens: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; silence elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=tokens, label="exporting", file=sys.stderr, show_pos=False) as bar:
        yield bar.update
