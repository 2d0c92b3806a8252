"""The fast engine: fastokens in the calling thread, set up to give what the reference gives and nothing else.

Its definition is the reference's with two changes. It takes no vocabulary with a number missing, so each one
that is not given to a text stands under a name no text can have: a character outside the byte-level alphabet.
And end-of-text is put behind each text by a template, which costs nothing. Every id that comes back is still
counted: a special one, or one of those names, means the engine is wrong.
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

# How its native code is told to stay in the calling thread; read at the first text it encodes.
ONE_THREAD = {"FASTOKENS_BPE_THREADS": "1", "RAYON_NUM_THREADS": "1"}

MOST_HOLES = 1 << 16
_NOBODYS = "\U000f0000"  # a private character: byte-level text is spelt with 256 others


class FastEngine:
    """fastokens; raises EngineUnsupported for a tokenizer it cannot take. See Engine for the methods.

    What it keeps of the words it has seen, up to 150 MB, belongs to the thread that encodes and ends with it.
    """

    name = FASTOKENS

    def __init__(self, tokenizer: FrozenTokenizer) -> None:
        os.environ.update(ONE_THREAD)
        import fastokens  # noqa: PLC0415 - after the variables it looks at

        self.version = importlib.metadata.version("fastokens")
        definition: dict[str, Any] = json.loads(tokenizer.definition)
        unheard = _unheard(definition["model"]["vocab"], tokenizer.vocab_size)
        self._guard = IdGuard(unheard, tokenizer.eot)
        _fill(definition["model"]["vocab"], np.flatnonzero(unheard).tolist())
        definition["post_processor"] = _append(tokenizer.eot)
        with _its_failures("does not take this tokenizer"):
            self._fast = fastokens.Tokenizer.from_json_str(json.dumps(definition))

    def documents(self, texts: list[str]) -> tuple[Ids, Lengths]:
        """See Engine.documents."""
        with _its_failures("failed"):
            flat, offsets = self._fast.encode_batch_flat(texts, add_special_tokens=True)
        ids, ends = np.frombuffer(flat, "<u4"), np.frombuffer(offsets, "<u8").astype(np.int64)
        if len(ends) != len(texts) + 1 or ends[-1] != len(ids):
            raise EngineUnsupported(f"fastokens gave {len(ends)} offsets for {len(texts)} texts")
        self._guard.check(ids, ends[1:])
        return ids, np.diff(ends)


class IdGuard:
    """Counts the ids that no text may have: only end-of-text may be there, and only where a text ends."""

    def __init__(self, forbidden: npt.NDArray[np.bool_], eot: int) -> None:
        self._eot = eot
        allowed = np.flatnonzero(~forbidden)
        # They lie at the vocabulary's ends, nearly always: two comparisons then tell all.
        self._low, self._high = (int(allowed[0]), int(allowed[-1]) + 1) if len(allowed) else (0, 0)
        between = forbidden.copy()
        between[: self._low] = between[self._high :] = False
        self._between: npt.NDArray[np.bool_] | None = between if between.any() else None

    def check(self, ids: Ids, ends: Lengths) -> None:
        """Raise EngineUnsupported where a text gave such an id, or has none at its end."""
        found = int(np.count_nonzero(ids >= self._high))
        if self._low:
            found += int(np.count_nonzero(ids < self._low))
        if self._between is not None:
            found += int(np.count_nonzero(self._between[np.minimum(ids, len(self._between) - 1)]))
        marked = int(np.count_nonzero(ids[ends - 1] == self._eot))
        if not marked == len(ends) == found:
            raise EngineUnsupported(f"fastokens gave {found - marked} special tokens for texts")


def _unheard(vocab: Mapping[str, int], vocab_size: int) -> npt.NDArray[np.bool_]:
    """Which ids no text can be given, holes in the vocabulary included."""
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
    """The post-processor that puts this id behind every text."""
    text, end = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "end", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [text, end],
        "pair": [text, end],
        "special_tokens": {"end": {"id": "end", "ids": [eot], "tokens": ["end"]}},
    }


@contextmanager
def _its_failures(what: str) -> Iterator[None]:
    """What fastokens raises, as EngineUnsupported; a panic in native code is no Exception in Python."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise EngineUnsupported(f"fastokens {what}: {error}") from error
        raise
