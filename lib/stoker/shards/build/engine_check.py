"""Chooses a file's engine: the fast one where its tokens equal the reference's, else the reference.

Both encode odd texts once for each tokenizer, and a sample of every file before its first batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

from stoker.corpus.readers.reader import reader_of
from stoker.shards.tokenize.engine import Engine, EngineUnsupported, FastEngine, HFEngine
from stoker.shards.tokenize.tokenizer import END_OF_TEXT_NAMES, FrozenTokenizer

PLACE_BYTES = 16 << 10  # of text at each place; the reference encodes 1 to 4 MB a second
LEAST_PLACES, MOST_PLACES = 2, 16  # in the file, spread over its row groups
BYTES_A_PLACE = 64 << 20  # of the file: a place costs some 15 ms, and so many bytes take a builder a second
MOST_CHARS = 1 << 12  # of one document
# A file from which on the reference is loaded again for the next file's sample, in a hundredth of the build's
# time, instead of lying in memory for the whole build
LARGE_BYTES = 512 << 20

# Texts rare in prose, on which pre-tokenizers differ
_MADE = 400  # random texts; making and encoding them takes a builder some 30 ms
_ODD = (
    "",
    " ",
    "\n",
    "e\u0301 \u00e9 \ufb01 \u2460 \uff21 \u212b",
    "  leading,   inner\u00a0and\u3000trailing  \t\r\n\n \r\r\n ",
    "don't WE'LL you\u2019re it'S 's'ss 'd 'D 'LL\u017f '\u017f",
    "1 12 123 1234 12345678901234567890 3.14 \u0663\u0664 \u4e09 \u2167 \u00bd",
    "\u0627\u0644\u0639\u064e\u0631\u0628\u0650\u064a\u0629 \u05e2\u05d1 \u0939\u093f\u0928\u094d",
    "\u4e2d\u6587\u6ca1\u6709\u7a7a\u683c\u3002\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab \u8a9e\u30c6\u30ad",
    "\U0001f9d1\u200d\U0001f680\U0001f1e9\U0001f1ea \U0001f525\ufe0f \u200b\u200d\ufeff\u202e",
    "\x00\x01\x1f\x7f\x80\x85\xa0\xad \ud7ff\ue000\ufffd\uffff \U00010000\U0010ffff",
    "".join(map(chr, range(0x180))),
    # the fast engine's private names
    "\U000f0000 \U000f00000 \U000f00001 \U000f000010 \U000f00000\U000f00000",
    "a" * 400 + " " + "ab" * 200 + "\n" * 70 + " " * 130 + "-" * 90 + "\u4e2d" * 120,
    "x=y;\tif(a[0]!=b){return *p++;}//\r\n#!/bin/sh -e\n\n\n    indented\n\tdef f(x):\n        pass",
    "https://example.org/a_b-c?d=%20e&f=1#g user@host.example C:\\dir\\file.txt __init__",
)
# Code points with special rules: ASCII, Latin, combining, scripts, CJK, symbols, astral planes.
_RANGES = (
    *((0x20, 0x7F), (0x00, 0x20), (0x80, 0x250), (0x300, 0x370), (0x370, 0x600), (0x600, 0xE80)),
    *((0x1100, 0x1200), (0x2000, 0x2C00), (0x3000, 0x3200), (0x4E00, 0x5200), (0xAC00, 0xB000)),
    *((0xE000, 0xE100), (0xF900, 0x10000), (0x1F000, 0x1FB00), (0x10000, 0x11000), (0xE0000, 0x10FFFF)),
)


class Engines:
    """The engines for one tokenizer; `refused` is why the fast engine cannot be used, empty where it can."""

    def __init__(self, tokenizer: FrozenTokenizer, *, fast: bool = True) -> None:
        self._tokenizer = tokenizer
        self._reference: Engine | None = HFEngine(tokenizer)
        self._fast: Engine | None = None
        self.refused = ""
        if not fast:
            return
        try:
            self._fast = FastEngine(tokenizer)
            self.refused = self._difference([("odd texts", probes(tokenizer.special))])
        except EngineUnsupported as error:
            self.refused = str(error)
        if self.refused:
            self._fast = None

    def reference(self) -> Engine:
        """Returns HF tokenizers, which is loaded again where a large file made it leave."""
        if self._reference is None:
            self._reference = HFEngine(self._tokenizer)
        return self._reference

    def choose(self, parquet: Path, text_column: str) -> tuple[Engine, str]:
        """Returns the engine for a file, and why it is not the fast one; raises BadFile, StorageError."""
        if self._fast is None:
            return self.reference(), self.refused
        if refused := self._difference(_sample(parquet, text_column)):
            return self.reference(), refused
        if parquet.stat().st_size >= LARGE_BYTES:
            self._reference = None
        return self._fast, ""

    def _difference(self, sample: Iterable[tuple[str, list[str]]]) -> str:
        """Returns the first difference on texts and their places; empty where there is none.

        In a thread that ends with it, because both engines keep what they have seen for each thread.
        """
        reference, fast = self.reference(), self._fast
        assert fast is not None

        def first() -> str:
            return next(filter(None, (_difference(reference, fast, texts, at) for at, texts in sample)), "")

        with ThreadPoolExecutor(1, "engines") as thread:
            return thread.submit(first).result()


def _sample(parquet: Path, text_column: str) -> Iterator[tuple[str, list[str]]]:
    """Yields documents from places spread over the file, with a description of each place."""
    wanted = max(LEAST_PLACES, min(MOST_PLACES, parquet.stat().st_size // BYTES_A_PLACE))
    source = reader_of(parquet).open_rows(parquet, text_column, {}, 64)
    groups = source.groups
    spread = np.linspace(0, len(groups) - 1, min(wanted, len(groups))).round().astype(int)
    chosen = sorted({groups[place] for place in spread.tolist()}) if groups else []
    for group in chosen:
        for batch in islice(source.batches(group), max(1, wanted // len(chosen))):
            if batch.row_group != group:
                break
            texts, room = [], PLACE_BYTES
            for text in batch.texts:
                if text is not None and room > 0:
                    texts.append(text[: min(room, MOST_CHARS)])
                    room -= len(texts[-1])
            yield f"row group {group}, rows from {batch.row}", texts


def _difference(reference: Engine, fast: Engine, texts: list[str], where: str) -> str:
    """Returns how the fast engine differs on these texts; empty where it does not."""
    try:
        found, lengths = fast.documents(texts)
    except EngineUnsupported as error:
        return f"{error} ({where})"
    wanted, wanted_lengths = reference.documents(texts)
    if np.array_equal(found, wanted) and np.array_equal(lengths, wanted_lengths):
        return ""
    for number, text in enumerate(texts):
        if not np.array_equal(fast.documents([text])[0], reference.documents([text])[0]):
            return f"{fast.name} differs from {reference.name} on {where}, text {number}: {text[:80]!r}"
    return f"{fast.name} differs from {reference.name} on {where}, taken together"


def probes(special: Iterable[str] = ()) -> list[str]:
    """Returns the same texts each time; `special` are the tokenizer's special tokens, each put into text."""
    rng = random.Random(1)  # noqa: S311 - the same on every machine
    names = sorted({*special, *END_OF_TEXT_NAMES})
    separators = [text for name in names for text in (name, f"a{name}b", f" {name} ", f"{name}{name[1:]}")]
    pieces = [" ", "  ", "\n", "'", "'s", ",", *names]
    return [*_ODD, *separators, *(_random_text(rng, pieces) for _ in range(_MADE))]


def _random_text(rng: random.Random, pieces: list[str]) -> str:
    made = []
    for _ in range(rng.randint(1, 12)):
        first, last = rng.choice(_RANGES)
        run = rng.choices(range(first, last), k=rng.choice((1, 1, 2, 3, 9)))
        made.append("".join(map(chr, run)))
        made.append(rng.choice(pieces) if rng.random() < 0.5 else "")
    return "".join(made)
