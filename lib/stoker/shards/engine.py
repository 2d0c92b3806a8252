"""Engines: texts in, token ids out. HF tokenizers is the reference; a faster one fits the same protocol."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tokenizers

from stoker.shards.tokenizer import FrozenTokenizer
from stoker.store.errors import ConfigError, DataError

Ids = npt.NDArray[np.uint32]
Lengths = npt.NDArray[np.int64]

# Characters encoded in one call: an Encoding costs some 150 B a token until its ids are copied out.
CALL_CHARS = 1 << 18


class Engine(Protocol):
    """What a builder needs of a tokenizer: `name` and `version` for the build note, and `encode`."""

    name: str
    version: str

    def encode(self, texts: list[str]) -> tuple[Ids, Lengths]:
        """The texts' ids back to back and how many each has; raises DataError where an id is special."""


class HFEngine:
    """HF tokenizers, in the calling thread alone."""

    name = "tokenizers"
    version: str = tokenizers.__version__

    def __init__(self, tokenizer: FrozenTokenizer) -> None:
        hf = tokenizers.Tokenizer.from_str(tokenizer.definition)
        self._encode = getattr(
            hf, "encode_batch_fast", hf.encode_batch
        )  # fast = without offsets, since 0.20.1
        self._forbidden = np.zeros(tokenizer.vocab_size, dtype=bool)
        self._forbidden[sorted(tokenizer.special_ids)] = True

    def encode(self, texts: list[str]) -> tuple[Ids, Lengths]:
        """See Engine.encode."""
        parts = [self._encode_call(call) for call in _calls(texts)]
        if not parts:
            return np.empty(0, np.uint32), np.empty(0, np.int64)
        ids = np.concatenate([ids for ids, _ in parts])
        if self._forbidden[ids].any():
            raise DataError(
                "text was encoded to a special token; the tokenizer's definition is not clean of them"
            )
        return ids, np.concatenate([lengths for _, lengths in parts])

    def _encode_call(self, texts: list[str]) -> tuple[Ids, Lengths]:
        encodings: list[Any] = self._encode(texts, add_special_tokens=False)
        lengths = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
        flat = chain.from_iterable(encoding.ids for encoding in encodings)
        return np.fromiter(flat, dtype=np.uint32, count=int(lengths.sum())), lengths


def make_engine(name: str, tokenizer: FrozenTokenizer) -> Engine:
    """The engine a pipeline names; raises ConfigError for one that is not built in."""
    if name in ("auto", HFEngine.name):
        return HFEngine(tokenizer)
    raise ConfigError(f"tokenizer.engine: {name!r} is not built in; use auto or tokenizers")


def _calls(texts: list[str]) -> Iterator[list[str]]:
    call: list[str] = []
    chars = 0
    for text in texts:
        call.append(text)
        chars += len(text)
        if chars >= CALL_CHARS:
            yield call
            call, chars = [], 0
    if call:
        yield call
