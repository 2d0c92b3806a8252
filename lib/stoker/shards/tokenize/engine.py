"""Engines turn texts into token ids. HF tokenizers is the reference.

A faster engine has the same protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stoker.shards.tokenize.tokenizer import FrozenTokenizer
from stoker.store.errors import DataError

Ids = npt.NDArray[np.uint32]
Lengths = npt.NDArray[np.int64]

HF_TOKENIZERS = "tokenizers"
FASTOKENS = "fastokens"
# Characters encoded in one call: an Encoding costs some 150 B a token until its ids are copied out.
CALL_CHARS = 1 << 18


class EngineUnsupported(DataError):
    """Raised where an engine cannot serve this tokenizer, or fails; the reference always serves."""


class Engine(Protocol):
    """The interface of a tokenizer for a builder; `name` and `version` are for the build note.

    Encoding raises EngineUnsupported where the engine fails, DataError where the reference itself returns a
    special token.
    """

    name: str
    version: str

    def documents(self, texts: list[str]) -> tuple[Ids, Lengths]:
        """Returns all ids back to back, each text with end-of-text, and the lengths, shape (texts,)."""


class HFEngine:
    """HF tokenizers, in the calling thread only."""

    name = HF_TOKENIZERS

    def __init__(self, tokenizer: FrozenTokenizer) -> None:
        import tokenizers  # noqa: PLC0415 - a builder with the fast engine does not need it

        self.version: str = tokenizers.__version__
        hf = tokenizers.Tokenizer.from_str(tokenizer.definition)
        self._encode = getattr(
            hf, "encode_batch_fast", hf.encode_batch
        )  # fast = without offsets, since 0.20.1
        self._eot = tokenizer.eot
        self._forbidden = np.zeros(tokenizer.vocab_size, dtype=bool)
        self._forbidden[sorted(tokenizer.special_ids)] = True

    def encode(self, texts: list[str]) -> tuple[Ids, Lengths]:
        """Returns the texts' ids back to back, without special ids, and each text's number of ids."""
        parts = [self._encode_call(texts[part]) for part in portions(texts, CALL_CHARS)]
        if not parts:
            return np.empty(0, np.uint32), np.empty(0, np.int64)
        ids = np.concatenate([ids for ids, _ in parts])
        if self._forbidden[ids].any():
            raise DataError(
                "text was encoded to a special token; the tokenizer's definition is not clean of them"
            )
        return ids, np.concatenate([lengths for _, lengths in parts])

    def documents(self, texts: list[str]) -> tuple[Ids, Lengths]:
        ids, lengths = self.encode(texts)
        lengths = lengths + 1
        ended = np.full(int(lengths.sum()), self._eot, dtype=np.uint32)
        is_text = np.ones(len(ended), dtype=bool)
        is_text[np.cumsum(lengths) - 1] = False
        ended[is_text] = ids
        return ended, lengths

    def _encode_call(self, texts: list[str]) -> tuple[Ids, Lengths]:
        encodings: list[Any] = self._encode(texts, add_special_tokens=False)
        lengths = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
        flat = chain.from_iterable(encoding.ids for encoding in encodings)
        return np.fromiter(flat, dtype=np.uint32, count=int(lengths.sum())), lengths


def portions(texts: Sequence[str], chars: int) -> Iterator[slice]:
    """Yields slices of the texts with about `chars` characters each."""
    first = taken = 0
    for place, text in enumerate(texts):
        taken += len(text)
        if taken >= chars:
            yield slice(first, place + 1)
            first, taken = place + 1, 0
    if first < len(texts):
        yield slice(first, len(texts))
