"""Engines turn texts into token ids. HF tokenizers is the reference.

fastokens, in the calling thread, returns exactly the reference's ids, twenty times as fast.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
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
# Keeps fastokens' native code in the calling thread; read at the first text it encodes.
ONE_THREAD = {"FASTOKENS_BPE_THREADS": "1", "RAYON_NUM_THREADS": "1"}

MOST_HOLES = 1 << 16
_NOBODYS = "\U000f0000"  # a private character: byte-level text is written with 256 other characters


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


class FastEngine:
    """fastokens; raises EngineUnsupported for a tokenizer that it cannot serve. See Engine for the methods.

    Its definition is the reference's with two changes. fastokens refuses a vocabulary with holes, so each
    id that no text can have gets a name that no text can have: a character outside the byte-level alphabet.
    A template appends end-of-text to each text, which costs no time. The engine still counts every id that
    comes back: a special id, or one of those names, means that the engine is wrong. Its word cache, up to
    150 MB, belongs to the thread that encodes and ends with it.
    """

    name = FASTOKENS

    def __init__(self, tokenizer: FrozenTokenizer) -> None:
        os.environ.update(ONE_THREAD)
        import fastokens  # noqa: PLC0415 - after the variables that it reads

        self.version = importlib.metadata.version("fastokens")
        definition: dict[str, Any] = json.loads(tokenizer.definition)
        unheard = _unheard(definition["model"]["vocab"], tokenizer.vocab_size)
        self._guard = IdGuard(unheard, tokenizer.eot)
        _fill(definition["model"]["vocab"], np.flatnonzero(unheard).tolist())
        definition["post_processor"] = _append(tokenizer.eot)
        with _its_failures("does not take this tokenizer"):
            self._fast = fastokens.Tokenizer.from_json_str(json.dumps(definition))

    def documents(self, texts: list[str]) -> tuple[Ids, Lengths]:
        with _its_failures("failed"):
            flat, offsets = self._fast.encode_batch_flat(texts, add_special_tokens=True)
        ids, ends = np.frombuffer(flat, "<u4"), np.frombuffer(offsets, "<u8").astype(np.int64)
        if len(ends) != len(texts) + 1 or ends[-1] != len(ids):
            raise EngineUnsupported(f"fastokens gave {len(ends)} offsets for {len(texts)} texts")
        self._guard.check(ids, ends[1:])
        return ids, np.diff(ends)


class GivenIds:
    """Takes documents that are token ids already, as its reader checked them: views of ids in one type."""

    name, version = "given", ""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")

    def choose(self, _file: Path, _column: str) -> tuple[Engine, str]:
        return self, ""

    def reference(self) -> Engine:
        return self

    def documents(self, texts: Sequence[Any]) -> tuple[npt.NDArray[Any], Lengths]:
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        return np.frombuffer(b"".join(texts), self._dtype), lengths


class IdGuard:
    """Counts forbidden ids: of those only end-of-text may appear, and only at the end of a text."""

    def __init__(self, forbidden: npt.NDArray[np.bool_], eot: int) -> None:
        self._eot = eot
        allowed = np.flatnonzero(~forbidden)
        # Forbidden ids are nearly always at the vocabulary's ends: two comparisons then find them.
        self._low, self._high = (int(allowed[0]), int(allowed[-1]) + 1) if len(allowed) else (0, 0)
        between = forbidden.copy()
        between[: self._low] = between[self._high :] = False
        self._between: npt.NDArray[np.bool_] | None = between if between.any() else None

    def check(self, ids: Ids, ends: Lengths) -> None:
        """Raises EngineUnsupported where a text has a forbidden id, or no end-of-text at its end."""
        found = int(np.count_nonzero(ids >= self._high))
        if self._low:
            found += int(np.count_nonzero(ids < self._low))
        if self._between is not None:
            found += int(np.count_nonzero(self._between[np.minimum(ids, len(self._between) - 1)]))
        marked = int(np.count_nonzero(ids[ends - 1] == self._eot))
        if not marked == len(ends) == found:
            raise EngineUnsupported(f"fastokens gave {found - marked} special tokens for texts")


def _unheard(vocab: Mapping[str, int], vocab_size: int) -> npt.NDArray[np.bool_]:
    """Returns a mask of the ids that no text can have, holes in the vocabulary included."""
    unheard = np.ones(vocab_size, dtype=bool)
    unheard[list(vocab.values())] = False
    return unheard


def _fill(vocab: dict[str, int], holes: Sequence[int]) -> None:
    if len(holes) > MOST_HOLES:
        raise EngineUnsupported(f"fastokens would have to fill {len(holes)} holes in this vocabulary")
    filled = {f"{_NOBODYS}{number}": number for number in holes}
    if filled.keys() & vocab.keys():
        raise EngineUnsupported("a token of this vocabulary has a private name of ours")
    vocab.update(filled)


def _append(eot: int) -> dict[str, Any]:
    """Returns the post-processor that appends this id to every text."""
    text, end = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "end", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [text, end],
        "pair": [text, end],
        "special_tokens": {"end": {"id": "end", "ids": [eot], "tokens": ["end"]}},
    }


@contextmanager
def _its_failures(what: str) -> Iterator[None]:
    """Turns fastokens' errors into EngineUnsupported; a native panic is no Exception in Python."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise EngineUnsupported(f"fastokens {what}: {error}") from error
        raise
