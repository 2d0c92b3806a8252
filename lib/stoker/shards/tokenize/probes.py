"""Odd texts to compare two engines on, once: rare in prose, and where pre-tokenizers differ."""

from __future__ import annotations

import random
from collections.abc import Iterable

from stoker.shards.tokenize.tokenizer import END_OF_TEXT_NAMES

_MADE = 1500  # random texts; HF encodes them in some 20 ms
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
        run = (rng.randrange(first, last) for _ in range(rng.choice((1, 1, 2, 3, 9))))
        made.append("".join(map(chr, run)))
        made.append(rng.choice(pieces) if rng.random() < 0.5 else "")
    return "".join(made)
