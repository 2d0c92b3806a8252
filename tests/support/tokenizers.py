"""Tokenizers like those in use: the pre-tokenizers of three families, trained on little text."""

from __future__ import annotations

import json

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from support.text import documents

LIKE = {
    "gpt2": None,  # the pattern built into ByteLevel
    "cl100k": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "llama3": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def tokenizer_like(family: str, *, end_last: bool = False, ignore_merges: bool = False) -> bytes:
    """A tokenizer.json of that family; end-of-text is id 0, or the last with others around it."""
    tokenizer = Tokenizer(models.BPE())
    pattern = LIKE[family]
    tokenizer.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=False)
        if pattern is None
        else pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[] if end_last else ["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [text for text in documents(300, seed=8) if text]
    tokenizer.train_from_iterator([texts], trainer)
    definition = json.loads(tokenizer.to_str())
    definition["model"]["ignore_merges"] = ignore_merges
    if end_last:
        first = max(definition["model"]["vocab"].values()) + 1
        names = ("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_0|>", "<|reserved_1|>")
        definition["added_tokens"] = [
            {"id": first + place, "content": name, "special": True, **FLAGS}
            for place, name in enumerate(names)
        ]
    return json.dumps(definition).encode()
