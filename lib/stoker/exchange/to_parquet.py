"""Writes streams of tokens as parquet files with one column, `tokens`: one document a row.

A row ends with end-of-text. The same sources in the same order give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.cli.output import Sink
from stoker.exchange.token_stream import Documents, Piece, TokenFiles, Tokens
from stoker.shards.format.identity import dtype_for
from stoker.shards.tokenize.tokenizer import FrozenTokenizer
from stoker.store.errors import DataError

COLUMN, TOKENIZER_KEY = "tokens", "stoker.tokenizer_sha256"
GROUP_TOKENS, FILE_TOKENS = 1 << 20, 1 << 27  # at least, in a row group and in a file

Part = tuple[Tokens, Tokens]  # whole documents, and where each ends


@dataclass
class Converted:
    """What was read and written."""

    tokens_read: int = 0
    tokens: int = 0  # with the end-of-text that was added
    documents: int = 0
    files: int = 0


def convert(
    places: Sequence[TokenFiles],
    tokenizer: FrozenTokenizer,
    directory: Path,
    cut: int | None,
    progress: Callable[[int], None],
) -> Converted:
    """Writes each place's stream; `progress` gets tokens. Raises DataError, StorageError."""
    pa.set_memory_pool(pa.system_memory_pool())
    done = Converted()
    dtype = np.dtype(dtype_for(tokenizer.vocab_size))
    schema = pa.schema([(COLUMN, pa.list_(pa.from_numpy_dtype(dtype)))], {TOKENIZER_KEY: tokenizer.sha256})

    def parts() -> Iterator[Part]:
        for place in places:
            documents = Documents(tokenizer.eot, dtype, cut)
            for file in place.files:
                for piece in file.pieces():
                    _check_ids(piece, tokenizer.vocab_size)
                    yield documents.take(replace(piece, values=piece.values.astype(dtype, copy=False)))
                    done.tokens_read += piece.values.size
                    progress(piece.values.size)
            yield documents.finish()

    groups = _groups(parts())
    group = next(groups, None)
    while group is not None:
        path, held = directory / f"tokens-{done.files:05d}.parquet", 0
        with (
            Sink(path) as sink,
            pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer,
        ):
            while group is not None and held < FILE_TOKENS:
                writer.write_batch(pa.record_batch([group], schema=schema))
                done.documents += len(group)
                held += len(group.values)
                group = next(groups, None)
        done.files, done.tokens = done.files + 1, done.tokens + held
    return done


def _check_ids(piece: Piece, vocab_size: int) -> None:
    values = piece.values
    if values.size and (values.max() >= vocab_size or values.min() < 0):
        index = int(np.argmax((values >= vocab_size) | (values < 0)))
        raise DataError(
            f"{piece.place(index)}: id {values[index]}, and the tokenizer has {vocab_size} ids: another "
            "one made these tokens, or they are numbers of another width"
        )


def _groups(parts: Iterator[Part]) -> Iterator[Any]:
    """Yields the documents in arrays of lists, each large enough for a row group."""
    held: list[Part] = []
    for tokens, ends in parts:
        held += [(tokens, np.diff(ends, prepend=0))] if ends.size else []
        if sum(tokens.size for tokens, _ in held) >= GROUP_TOKENS:
            yield _lists(held)
            held = []
    if held:
        yield _lists(held)


def _lists(held: Sequence[Part]) -> Any:
    ends = np.cumsum(np.concatenate([lengths for _, lengths in held]))
    values = np.concatenate([tokens for tokens, _ in held])
    return pa.ListArray.from_arrays(pa.array(np.append(0, ends).astype(np.int32)), pa.array(values))
