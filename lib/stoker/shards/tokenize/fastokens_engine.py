"""The fast engine: fastokens in the calling thread, set up to return exactly the reference's ids.

Its definition is the reference's with two changes. fastokens refuses a vocabulary with holes, so each id that
no text can have gets a name that no text can have: a character outside the byte-level alphabet. A template
appends end-of-text to each text, which costs no time. The engine still counts every id that comes back: a
special id, or one of those names, means that the engine is wrong.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.shards.tokenize.engine import FASTOKENS, EngineUnsupported, Ids, Lengths
from stoker.shards.tokenize.tokenizer import FrozenTokenizer

# Keeps fastokens' native code in the calling thread; read at the first text it encodes.
ONE_THREAD = {"FASTOKENS_BPE_THREADS": "1", "RAYON_NUM_THREADS": "1"}

MOST_HOLES = 1 << 16
_NOBODYS = "\U000f0000"  # a private character: byte-level text is written with 256 other characters


class FastEngine:
    """fastokens; raises EngineUnsupported for a tokenizer that it cannot serve. See Engine for the methods.

    Its word cache, up to 150 MB, belongs to the thread that encodes and ends with it.
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
