"""`stoker rows`: writes the first rows of a source to a parquet file, as a preview of its content."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from stoker.cli.data.list_source import Listed, error_of, list_source
from stoker.cli.options import PATH, pipeline_file, plural
from stoker.config.schema import Pipeline
from stoker.config.units import format_bytes
from stoker.corpus.fetch.decide import speaks_of
from stoker.corpus.fetch.preview import Preview
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import FetchFailed
from stoker.corpus.records.receipts import read_receipts
from stoker.corpus.records.sources import read_sources
from stoker.corpus.staging.finding import BadParquet
from stoker.kit.terminal import Footer
from stoker.store.errors import DataError, UsageError
from stoker.store.files import make_dir, move_durably, remove_tree, temporary_beside

MOST_ROWS = 10**9


@click.command(epilog="Example: stoker rows /etc/stoker/fineweb.yaml --max-rows 1000 look.parquet")
@pipeline_file
@click.option("--max-rows", type=click.IntRange(1, MOST_ROWS), required=True, help="How many at most.")
@click.argument("out", type=PATH)
def rows(pipeline: Pipeline, max_rows: int, out: Path) -> None:
    """Write the first rows of FILE's source, in listing order, to the new parquet file OUT.

    Files that are already local are read in place; any other file is fetched whole, beside OUT, until there
    are enough rows. Quarantined files are passed over. Locks nothing, and keeps nothing but OUT. Exit codes:
    65 a file is not parquet; 69 the source is not available; 75 try again later.
    """
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} exists; name a new file")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is not a directory; make it, or name another place")
    listed = list_source(pipeline)
    temporary, footer = temporary_beside(out), Footer()
    written = temporary / "rows.parquet"
    named = ""

    def tell() -> None:
        footer.show(lambda _: f"{preview.rows:,} rows  {format_bytes(preview.fetched)} fetched")

    try:
        make_dir(temporary)
        preview = Preview(written, temporary / "landing", max_rows, listed.manners, tell)
        for path, found in _files(pipeline, listed):
            named = path
            if isinstance(found, Path):
                preview.take(found)
            else:
                preview.take_remote(found)
            if preview.left <= 0:
                break
        if not preview.rows:
            raise DataError(f"{listed.origin} holds no rows; nothing was written")
        preview.close()
        move_durably(written, out)
    except FileExistsError as error:
        raise UsageError(f"{out} exists now; name a new file") from error
    except BadParquet as error:
        raise DataError(f"{named} cannot be read, nothing was written: {error}") from error
    except FetchFailed as failure:
        raise error_of(failure, f"{named} cannot be read, nothing was written") from failure
    finally:
        footer.clear()
        remove_tree(temporary)
    came = f", {format_bytes(preview.fetched)} over the network" if preview.fetched else ""
    click.echo(f"{out}: {plural(preview.rows, 'row')} of {plural(preview.files, 'file')}{came}")
    if preview.left > 0:
        click.echo("there are no more")


def _files(pipeline: Pipeline, listed: Listed) -> Iterator[tuple[str, Path | RemoteFile]]:
    """Yields each file's path in the dataset, and its local path or its remote file."""
    dataset, root = pipeline.dataset.name, pipeline.source_root
    receipts, sources = read_receipts(pipeline.layout, dataset), read_sources(pipeline.layout, dataset)
    bad = {path for path, source in sources.items() if source.state == "quarantined"}
    hub = listed.manners.hub if listed.manners else None
    for file in listed.files:
        receipt, here = receipts.get(file.path), None
        if listed.manners is None:
            here = root / file.path
        elif receipt and receipt.usable and speaks_of(receipt, file) and Path(receipt.file).is_file():
            here = Path(receipt.file)
        if file.path not in bad:
            yield file.path, here or file.at(hub, listed.revision)
