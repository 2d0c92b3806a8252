"""`stoker data export`: writes shard sets in the formats of other trainers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import PATH, counts, plural
from stoker.cli.output import new_directory, write_json
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import read_pin
from stoker.corpus.records.sources import PUBLISHED, read_sources
from stoker.exchange.export_formats import export_arrow, export_nanogpt
from stoker.exchange.export_sets import OfferedSet, agree
from stoker.shards.format.reader import find_sets
from stoker.store.errors import DataError, UsageError

ROW_TOKENS = 2048  # where SHARDS is not a pipeline file
MOST_IN_A_ROW = 1 << 20


@click.command(epilog="Example: stoker data export --format hf-arrow /etc/stoker/fineweb.yaml /data/fineweb")
@click.option("--format", "form", type=click.Choice(["hf-arrow", "nanogpt"]), required=True)
@click.argument("shards", type=PATH)
@click.argument("out", type=PATH)
@click.option("--split", type=click.Choice(["train", "val", "all"]), default="all")
@click.option("--rows", type=click.IntRange(1, MOST_IN_A_ROW), help="Tokens a row; else seq_len.")
def export(form: str, shards: Path, out: Path, split: str, rows: int | None) -> None:
    """Write shard sets to the new directory OUT.

    SHARDS is a shard set, a directory of them (in the order of names), or a pipeline FILE (all published
    sets, in listing order). Every byte is proven while it is read; OUT gets its name when it is complete.

    hf-arrow is for `datasets.load_from_disk`; tokens that do not fill a last row are left out, and reported.
    nanogpt is train.bin and val.bin, with no token left out. Exit codes: 65 a set is not whole; 74 no room.
    """
    if form == "nanogpt" and rows is not None:
        raise UsageError("--format nanogpt writes one stream a split and has no --rows; leave one out")
    row_tokens = ROW_TOKENS
    if shards.is_file():
        pipeline = load_pipeline(shards)
        sets, row_tokens = list(_published(pipeline)), pipeline.train.seq_len
    elif not (sets := [OfferedSet.at(path) for path in find_sets(shards)]):
        raise UsageError(f"{shards} holds no shard set; name one, or such as <hot>/shards/<dataset>")
    agree(sets)
    splits = ("train", "val") if split == "all" else (split,)
    tokens = {split: sum(one.tokens(split) for one in sets) for split in splits}
    total = sum(tokens.values())
    if not total:
        raise DataError(f"{shards}: no tokens in {' and '.join(splits)}; nothing was written")
    first = sets[0].manifest
    with new_directory(out, total * (2 if first.dtype == "uint16" else 4)) as directory:
        with click.progressbar(length=total, label="exporting", file=sys.stderr) as bar:
            fields: Mapping[str, Any]
            if form == "nanogpt":
                fields = export_nanogpt(sets, splits, directory, bar.update)
            else:
                fields = export_arrow(sets, splits, rows or row_tokens, directory, bar.update)
        note = {name: getattr(first, name) for name in ("dataset", "tokenizer_sha256", "vocab_size", "eot")}
        note |= {"v": 1, "format": form, "dtype": first.dtype, "tokens": tokens, **fields}
        note["sets"] = [{"key": one.manifest.key, "manifest_sha256": one.manifest_sha256} for one in sets]
        # No times: the same export gives the same bytes.
        write_json(directory / "meta.json", note)
    click.echo(f"{out}: {plural(len(sets), 'shard set')}, {counts(tokens)} tokens")
    if any(fields["tail_tokens"].values()):
        click.echo(f"left out, because they fill no row: {counts(fields['tail_tokens'])} tokens")
    for line in fields.get("notes", ()):
        click.echo(line)


def _published(pipeline: Pipeline) -> Iterator[OfferedSet]:
    """Yields every published set of a pipeline in listing order, from hot or else from warm."""
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
                f"{one.places[0]}: not the set that {source.path}'s record names; see `stoker audit`"
            )
        yield one
