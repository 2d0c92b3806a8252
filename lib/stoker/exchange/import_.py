"""`stoker data import`: converts tokens made by other programs to parquet that a pipeline reads."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stoker.cli.options import PATH, TEXT, json_option, plural, print_json
from stoker.cli.output import new_directory
from stoker.exchange.arrow_rows import find_arrow
from stoker.exchange.to_parquet import COLUMN, convert
from stoker.exchange.token_files import find_token_files, is_of
from stoker.exchange.token_stream import MOST_TOKENS, TokenFiles
from stoker.shards.format.identity import dtype_for
from stoker.shards.format.manifest import TOKEN_BYTES
from stoker.shards.tokenize.tokenizer import FrozenTokenizer, load_tokenizer
from stoker.store.errors import DataError, UsageError

PIPELINE = """\
Put into the pipeline's file:
  dataset:
    source: {{kind: folder, path: {}}}
    tokens_column: {}
  tokenizer: {{file: {}}}"""


def _no_pipeline(_context: click.Context, _parameter: click.Parameter, places: tuple[Path, ...]) -> object:
    if file := next((place for place in places if place.suffix in (".yaml", ".yml")), None):
        raise UsageError(
            f"{file}: `stoker data import` takes no pipeline file any more: it writes parquet to a new "
            "folder, which a pipeline then reads; name the tokenizer.json of the tokens with --tokenizer"
        )
    return places


def _stated(_context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise UsageError("--tokenizer-sha256 went: name the tokenizer.json itself with --tokenizer PATH")


@click.command(
    "import", epilog="Example: stoker data import fineweb10B tokens --tokenizer gpt2/tokenizer.json"
)
@click.argument(
    "places", metavar="SOURCE...", nargs=-1, required=True, type=PATH, callback=_no_pipeline, is_eager=True
)
@click.argument("out", type=PATH)
@click.option(
    "--tokenizer", "tokenizer_file", type=PATH, required=True, help="The tokenizer.json of the tokens."
)
@click.option("--trust-tokenizer", is_flag=True, help="Also take a SOURCE that names another tokenizer.")
@click.option(
    "--split",
    type=click.Choice(["train", "val", "all"]),
    default="train",
    help="What to take of a folder; a file that is named itself is always taken.",
)
@click.option("--column", type=TEXT, help="The Arrow column of tokens. [default: input_ids or tokens]")
@click.option(
    "--document-tokens",
    metavar="N",
    type=click.IntRange(1, MOST_TOKENS),
    help="Cut a text of more than N tokens into documents of N.",
)
@click.option(
    "--tokenizer-sha256", type=TEXT, hidden=True, expose_value=False, is_eager=True, callback=_stated
)
@json_option
def import_(  # noqa: PLR0917 - click passes an argument per option
    places: tuple[Path, ...],
    out: Path,
    tokenizer_file: Path,
    trust_tokenizer: bool,
    split: str,
    column: str | None,
    document_tokens: int | None,
    as_json: bool,
) -> None:
    """Convert each SOURCE, in this order, to parquet in the new folder OUT: one document a row.

    SOURCE is a folder that `datasets.save_to_disk` made, a folder of {train,val}_000000.bin with a
    manifest.json, a folder of .bin files of nanoGPT or llm.c, or one such file. OUT gets its name when it is
    complete; a pipeline reads it as its folder. Exit codes: 65 refused, with file and row; 74 no room.
    """
    tokenizer = load_tokenizer(tokenizer_file)
    found = [_find(place, split, column, tokenizer, trusted=trust_tokenizer) for place in places]
    tokens = sum(file.tokens for one in found for file in one.files)
    with (
        new_directory(out, tokens * TOKEN_BYTES[dtype_for(tokenizer.vocab_size)]) as directory,
        click.progressbar(length=tokens, label="importing", file=sys.stderr) as bar,
    ):
        done = convert(found, tokenizer, directory, document_tokens, bar.update)
        if not done.documents:
            raise DataError(
                f"{', '.join(map(str, places))}: no tokens of --split {split}; nothing was written"
            )
    keys = {"dataset.source.kind": "folder", "dataset.source.path": str(out.absolute())}
    keys |= {"dataset.tokens_column": COLUMN, "tokenizer.file": str(tokenizer_file.absolute())}
    _report(asdict(done), [note for one in found for note in one.notes], keys, as_json=as_json)


def _find(
    place: Path, split: str, column: str | None, tokenizer: FrozenTokenizer, *, trusted: bool
) -> TokenFiles:
    if not place.exists():
        raise UsageError(f"{place} does not exist; name what to import")
    dtype = dtype_for(tokenizer.vocab_size)
    found = find_arrow(place, split, column) or find_token_files(place, split, dtype)
    if not trusted and not is_of(tokenizer.sha256, found.tokenizer):
        raise DataError(
            f"{place}: it says tokenizer {found.tokenizer}, --tokenizer is {tokenizer.sha256}; if it is the "
            "same one by another hash, say --trust-tokenizer"
        )
    return found


def _report(done: dict[str, Any], notes: list[str], keys: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json({"v": 1, **done, "notes": notes, "pipeline": keys})
        return
    added = done["tokens"] - done["tokens_read"]
    click.echo(
        f"{keys['dataset.source.path']}: {plural(done['files'], 'file')}, "
        f"{plural(done['documents'], 'document')}, {done['tokens']:,} tokens"
        + (f" ({added:,} end-of-text added)" if added > 0 else "")
    )
    for note in notes:
        click.echo(note)
    source, tokenizer = keys["dataset.source.path"], keys["tokenizer.file"]
    click.echo(PIPELINE.format(json.dumps(source), keys["dataset.tokens_column"], json.dumps(tokenizer)))
