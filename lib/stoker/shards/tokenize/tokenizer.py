"""Trains a tokenizer, checks a given file, and derives the definition that engines encode with.

Stoker keeps text unchanged and lets no text become a special token. So a tokenizer must be byte-level BPE
without a normalizer, and engines are built from a definition with every added token taken out.

HF tokenizers is loaded only to train or check a tokenizer: a builder trusts that check.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.store.errors import DataError
from stoker.store.record import parse_json

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
MOST_IDS = 2**32
_COMMENT = "#version"  # for HF tokenizers a line with this beginning is no merge

# Combining marks, other scripts, astral planes, controls, line ends, runs of spaces, a separator in words: a
# tokenizer that cleans its input returns them changed. And every byte that UTF-8 has: a model silently skips
# a byte without a token.
_PROBES = (
    "e\u0301 \u00e9 \ufb01 \u2460 \uff21 \u212b",
    " leading, trailing  and   inner\u00a0spaces \t\r\n\n ",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u4e2d\u6587 \ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",
    "\U0001f9d1\u200d\U0001f680 \U0010ffff \ufeff\u200b\u202e",
    "".join(map(chr, range(256))),
    "".join(map(chr, (*range(0x80, 0x800, 64), *range(0x800, 0xD800, 2048), *range(0xE000, 0x110000, 4096)))),
    f"before{END_OF_TEXT}after </s> <s> [CLS] <unk> Mixed CASE 0123456789",
)


class TokenizerUnsupported(DataError):
    """Raised for a tokenizer file that cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class FrozenTokenizer:
    """A tokenizer as builds use it."""

    sha256: str  # of the file
    vocab_size: int  # the highest id plus 1
    eot: int  # the end-of-text id
    special: frozenset[str]  # tokens that no text may become
    special_ids: frozenset[int]
    definition: str  # the tokenizer.json that engines are built from


def train_tokenizer(texts: Iterable[list[str]], vocab_size: int) -> bytes:
    """Trains byte-level BPE on batches of texts and returns its tokenizer.json; end-of-text is id 0.

    The same texts in the same order give the same bytes. Little text may give fewer than `vocab_size` ids.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 - see above

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str()).encode()


def load_tokenizer(path: Path) -> FrozenTokenizer:
    """Reads and checks a tokenizer.json; raises TokenizerUnsupported, OSError."""
    return examine_tokenizer(path.read_bytes(), str(path))


def read_frozen(path: Path) -> bytes:
    """Returns the bytes of a dataset's tokenizer; raises OSError, with advice where the file is missing."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        advice = "the dataset's tokenizer is gone; restore it, or raise dataset.version to build again"
        raise FileNotFoundError(error.errno, advice, str(path)) from error


def reload_tokenizer(path: Path) -> FrozenTokenizer:
    """Loads a tokenizer that was checked when it was frozen, without trying it on text.

    The caller compares its sha256.
    """
    return _examine(read_frozen(path), str(path))


def examine_tokenizer(data: bytes, where: str) -> FrozenTokenizer:
    """Checks a tokenizer.json's bytes, `where` naming them in errors; raises TokenizerUnsupported."""
    examined = _examine(data, where)
    _check_round_trip(examined.definition, where)
    return examined


def encoding_of(path: Path) -> dict[str, Any]:
    """Returns what decides a text's ids, by part; raises as load_tokenizer.

    Two files encode alike where it is equal: each id stands for the same token, special ones included, and
    the merges and the pre-tokenizer, as HF tokenizers writes them, are the same. What it puts around a text
    (the post-processor) and how it shows ids (the decoder) do not count, nor which tokens are listed as added
    ones without being another's.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - see above

    data = path.read_bytes()
    definition = parse_json(
        Tokenizer.from_str(examine_tokenizer(data, str(path)).definition).to_str().encode()
    )
    return {
        "tokens and their ids": _all_ids(parse_json(data)),
        "merges": definition["model"],
        "rules for splitting a text": definition["pre_tokenizer"],
    }


def _examine(data: bytes, where: str) -> FrozenTokenizer:
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        definition = parse_json(data)
        _check_kind(definition, where)
        ids = _all_ids(definition)
        eot = _end_of_text(ids, where)
        special = {token["content"] for token in definition["added_tokens"]} | {eot}
        without = _without(definition, special)
        plain = json.dumps(without)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TokenizerUnsupported(f"{where}: not a tokenizer.json of HF tokenizers: {error!r}") from error
    return FrozenTokenizer(
        sha256=sha256,
        vocab_size=max(ids.values()) + 1,
        eot=ids[eot],
        special=frozenset(special),
        special_ids=frozenset(ids[content] for content in special),
        definition=plain,
    )


def _check_kind(definition: dict[str, Any], where: str) -> None:
    kind = definition["model"]["type"]
    if kind != "BPE":
        raise TokenizerUnsupported(
            f"{where}: its model is {kind}; give a byte-level BPE tokenizer, or train one"
        )
    if definition.get("normalizer") is not None:
        raise TokenizerUnsupported(
            f"{where}: its normalizer ({definition['normalizer'].get('type')}) changes text, which Stoker "
            'keeps as it is; set "normalizer" to null in a copy of the file, or train a tokenizer'
        )
    steps = _steps(definition.get("pre_tokenizer"))
    byte_level = [step for step in steps if step["type"] == "ByteLevel"]
    if not byte_level:
        raise TokenizerUnsupported(
            f"{where}: its pre-tokenizer is not byte-level; give another, or train one"
        )
    for step in filter(_removes, steps):
        raise TokenizerUnsupported(
            f"{where}: its pre-tokenizer ({step['type']}) drops what it splits at, and Stoker keeps all "
            "text; give another, or train one"
        )
    if any(step.get("add_prefix_space") for step in byte_level):
        raise TokenizerUnsupported(
            f"{where}: it puts a space before each text, which Stoker keeps as it is; set "
            "add_prefix_space to false in a copy of the file, or train a tokenizer"
        )


def _removes(step: dict[str, Any]) -> bool:
    """Whether a step loses text by design; an inverted split has a pattern that matches all text."""
    dropping = step["type"] in ("Whitespace", "WhitespaceSplit", "CharDelimiterSplit")
    return dropping or (step.get("behavior") == "Removed" and not step.get("invert"))


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer["type"] == "Sequence":
        return [step for part in pre_tokenizer["pretokenizers"] for step in _steps(part)]
    return [pre_tokenizer]


def _all_ids(definition: dict[str, Any]) -> dict[str, int]:
    ids = dict(definition["model"]["vocab"])
    ids.update((token["content"], token["id"]) for token in definition["added_tokens"])
    if not all(type(one) is int and 0 <= one < MOST_IDS for one in ids.values()):
        raise ValueError("an id is no whole number below 2**32")
    return ids


def _end_of_text(ids: dict[str, int], where: str) -> str:
    for name in END_OF_TEXT_NAMES:
        if name in ids:
            return name
    raise TokenizerUnsupported(
        f"{where}: no end-of-text token among {', '.join(END_OF_TEXT_NAMES)}; add one to its added_tokens"
    )


def _without(definition: dict[str, Any], special: set[str]) -> dict[str, Any]:
    """Returns the definition without special tokens in any part that could match or produce them."""
    model = definition["model"]
    vocab = {content: number for content, number in model["vocab"].items() if content not in special}
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
    merges = [pair for pair in pairs if special.isdisjoint((*pair, "".join(pair)))]
    return {
        **definition,
        "added_tokens": [],
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "model": {**model, "vocab": vocab, "merges": _as_lines(merges), "dropout": None, "unk_token": None},
    }


def _as_lines(merges: list[list[str]]) -> list[list[str]] | list[str]:
    """Returns the older form of merges, which engines read in half the time, unless it is ambiguous."""
    lines = [" ".join(pair) for pair in merges]
    ambiguous = any(line.count(" ") != 1 or line.startswith(_COMMENT) for line in lines)
    return merges if ambiguous else lines


def _check_round_trip(plain: str, where: str) -> None:
    from tokenizers import Tokenizer  # noqa: PLC0415 - see above

    try:
        tokenizer = Tokenizer.from_str(plain)
        changed = [probe for probe in _PROBES if tokenizer.decode(tokenizer.encode(probe).ids) != probe]
    except Exception as error:
        raise TokenizerUnsupported(f"{where}: HF tokenizers refuses it: {error}") from error
    if changed:
        raise TokenizerUnsupported(
            f"{where}: text does not survive it: {changed[0]!r} comes back changed; "
            "give another, or train one"
        )
