"""Training a tokenizer, taking one over, and encoding with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stoker.shards.tokenize.engine import HFEngine
from stoker.shards.tokenize.tokenizer import (
    END_OF_TEXT,
    FrozenTokenizer,
    TokenizerUnsupported,
    examine_tokenizer,
    read_frozen,
    reload_tokenizer,
    train_tokenizer,
)
from stoker.store.errors import DataError
from support.text import ODD, documents

TEXTS = [text for text in documents(300, seed=5) if text]
TRAINED = train_tokenizer(iter([TEXTS]), 450)


def frozen(data: bytes = TRAINED) -> FrozenTokenizer:
    return examine_tokenizer(data, "tokenizer.json")


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    definition = json.loads(TRAINED)
    change(definition)
    return json.dumps(definition).encode()


def test_end_of_text_is_id_0_and_the_vocabulary_has_the_size_asked_for() -> None:
    tokenizer = frozen()
    assert (tokenizer.eot, tokenizer.vocab_size, tokenizer.special_ids) == (0, 450, frozenset({0}))


def test_training_is_the_same_in_another_process_and_in_other_batches(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from support.text import documents\n"
        "from stoker.shards.tokenize.tokenizer import train_tokenizer\n"
        "texts = [text for text in documents(300, seed=5) if text]\n"
        "sys.stdout.buffer.write(train_tokenizer((texts[i:i + 7] for i in range(0, len(texts), 7)), 450))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, check=True)
    assert done.stdout == TRAINED


def test_little_text_gives_a_smaller_vocabulary_which_is_what_counts() -> None:
    tokenizer = frozen(train_tokenizer(iter([["too little text"]]), 5000))
    assert 257 <= tokenizer.vocab_size < 300


@pytest.mark.parametrize("text", [*ODD, "", " ", "\n", "a" * 5000])
def test_odd_text_comes_back_as_it_went_in(text: str) -> None:
    ids, lengths = HFEngine(frozen()).encode([text])
    assert lengths.tolist() == [len(ids)]
    assert Tokenizer.from_str(TRAINED.decode()).decode(ids.tolist(), skip_special_tokens=False) == text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(), max_size=4))
def test_any_text_comes_back_and_none_becomes_a_special_token(texts: list[str]) -> None:
    ids, lengths = HFEngine(frozen()).encode(texts)
    assert 0 not in ids
    back = Tokenizer.from_str(TRAINED.decode())
    parts = np.split(ids, np.cumsum(lengths)[:-1]) if texts else []
    assert [back.decode(part.tolist(), skip_special_tokens=False) for part in parts] == texts


def test_the_words_of_a_separator_in_a_document_stay_text() -> None:
    text = f"before{END_OF_TEXT}after"
    naive = Tokenizer.from_str(TRAINED.decode()).encode(text).ids
    ids, _ = HFEngine(frozen()).encode([text, END_OF_TEXT])
    assert 0 in naive  # what would have happened
    assert 0 not in ids


def test_many_texts_in_one_call_are_encoded_as_each_alone() -> None:
    engine = HFEngine(frozen())
    texts = [*TEXTS[:50], "x" * 400_000, "", *TEXTS[50:80]]
    ids, lengths = engine.encode(texts)
    alone = [engine.encode([text])[0] for text in texts]
    assert lengths.tolist() == [len(one) for one in alone]
    assert np.array_equal(ids, np.concatenate(alone))


def test_an_engine_whose_definition_still_has_a_special_token_is_found_out() -> None:
    tokenizer = frozen()
    dirty = FrozenTokenizer(
        tokenizer.sha256,
        tokenizer.vocab_size,
        tokenizer.eot,
        tokenizer.special,
        tokenizer.special_ids,
        TRAINED.decode(),
    )
    with pytest.raises(DataError, match="special token"):
        HFEngine(dirty).encode([END_OF_TEXT])


def test_every_added_token_of_a_given_file_is_taken_out_of_encoding() -> None:
    def add(definition: dict[str, Any]) -> None:
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        definition["added_tokens"] += [
            {"id": 600, "content": "<pad>", "special": True, **flags},
            {"id": 601, "content": "stoker", "special": False, **flags},
        ]

    tokenizer = frozen(changed(add))
    ids, _ = HFEngine(tokenizer).encode(["<pad> stoker <pad>"])
    assert tokenizer.vocab_size == 602
    assert tokenizer.special_ids == {0, 600, 601}
    assert not set(ids.tolist()) & tokenizer.special_ids


def test_a_special_token_that_merges_could_spell_is_taken_out_with_them() -> None:
    def spell(definition: dict[str, Any]) -> None:
        model = definition["model"]
        model["vocab"] |= {"</": 600, "</s": 601, "</s>": 602}
        model["merges"] = [["<", "/"], ["</", "s"], ["</s", ">"], *model["merges"]]
        model["ignore_merges"] = True
        definition["pre_tokenizer"]["use_regex"] = False
        definition["added_tokens"] = [{**definition["added_tokens"][0], "content": "</s>", "id": 602}]
        del model["vocab"]["<|endoftext|>"]

    tokenizer = frozen(changed(spell))
    ids, _ = HFEngine(tokenizer).encode(["</s>", "a</s>b"])
    assert tokenizer.eot == 602
    assert 602 not in ids
    assert 601 in ids


def test_truncation_padding_dropout_and_templates_of_a_given_file_do_nothing() -> None:
    def burden(definition: dict[str, Any]) -> None:
        definition["truncation"] = {
            "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0,
        }  # fmt: skip
        definition["model"]["dropout"] = 0.5

    plain, burdened = HFEngine(frozen()), HFEngine(frozen(changed(burden)))
    assert np.array_equal(burdened.encode(TEXTS[:20])[0], plain.encode(TEXTS[:20])[0])


def test_merges_in_the_older_notation_are_read() -> None:
    def older(definition: dict[str, Any]) -> None:
        definition["model"]["merges"] = [" ".join(pair) for pair in definition["model"]["merges"]]

    ids, _ = HFEngine(frozen(changed(older))).encode(TEXTS[:5])
    assert np.array_equal(ids, HFEngine(frozen()).encode(TEXTS[:5])[0])


@pytest.mark.parametrize("word", ["#versions", "a b"])
def test_merges_that_the_older_notation_cannot_say_are_merged_all_the_same(word: str) -> None:
    """Its lines are split at a space, and one that begins with #version is no merge."""
    parts = [word[:-1], word[-1]]

    def merges_it(definition: dict[str, Any]) -> None:
        model, made = definition["model"], []
        for end in range(2, len(word)):
            made.append([word[: end - 1], word[end - 1]])
        model["merges"] = [*made, parts, *model["merges"]]
        pieces = [*word, *("".join(pair) for pair in model["merges"][: len(made) + 1])]
        model["vocab"] |= {
            piece: 600 + place for place, piece in enumerate(pieces) if piece not in model["vocab"]
        }
        definition["pre_tokenizer"]["use_regex"] = False

    tokenizer = frozen(changed(merges_it))
    model = json.loads(tokenizer.definition)["model"]
    assert parts in model["merges"]
    if " " not in word:
        ids, lengths = HFEngine(tokenizer).encode([word])
        assert (ids.tolist(), lengths.tolist()) == ([model["vocab"][word]], [1])


def test_merges_are_handed_on_in_the_notation_that_is_read_faster() -> None:
    assert all(isinstance(merge, str) for merge in json.loads(frozen().definition)["model"]["merges"])


def _rename_end_of_text(definition: dict[str, Any]) -> None:
    definition["model"]["vocab"]["<stop>"] = definition["model"]["vocab"].pop(END_OF_TEXT)
    definition["added_tokens"][0]["content"] = "<stop>"


def _split_first(definition: dict[str, Any], pattern: dict[str, str], *, invert: bool) -> None:
    split = {"type": "Split", "pattern": pattern, "behavior": "Removed", "invert": invert}
    steps = [split, definition["pre_tokenizer"]]
    definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}


def test_a_split_that_keeps_only_what_it_matches_is_taken_where_it_matches_all() -> None:
    whole = changed(lambda one: _split_first(one, {"Regex": r"\p{L}+|\P{L}+"}, invert=True))
    assert frozen(whole).vocab_size == frozen().vocab_size


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.update(normalizer={"type": "NFC"}), "normalizer"),
        (lambda one: one["pre_tokenizer"].update(add_prefix_space=True), "add_prefix_space"),
        (lambda one: one.update(pre_tokenizer={"type": "Whitespace"}), "byte-level"),
        (lambda one: one.update(pre_tokenizer=None), "byte-level"),
        (lambda one: one["model"].update(type="WordPiece"), "WordPiece"),
        (_rename_end_of_text, "end-of-text"),
        (lambda one: one["model"]["vocab"].pop("a"), "HF tokenizers refuses it|comes back changed"),
        (lambda one: one["model"]["vocab"].pop("ñ"), "comes back changed"),  # of U+40000 and its like alone
        (lambda one: one.pop("model"), "not a tokenizer.json"),
        (lambda one: one["model"]["vocab"].update(q=2**32), "not a tokenizer.json"),
        (lambda one: _split_first(one, {"String": "qqq"}, invert=False), "drops what it splits at"),
        (lambda one: _split_first(one, {"Regex": "\\p{L}+"}, invert=True), "comes back changed"),
    ],
)
def test_a_tokenizer_that_would_change_text_is_refused_with_the_reason(
    change: Callable[[dict[str, Any]], object], words: str
) -> None:
    with pytest.raises(TokenizerUnsupported, match=words):
        frozen(changed(change))


def test_what_is_no_json_is_refused_as_such() -> None:
    with pytest.raises(TokenizerUnsupported, match=r"not a tokenizer\.json"):
        frozen(b"\x00\x01")


def test_one_that_is_gone_is_told_with_what_to_do(tmp_path: Path) -> None:
    for read in (read_frozen, reload_tokenizer):
        with pytest.raises(FileNotFoundError, match=r"restore it, or raise dataset\.version.*gone\.json"):
            read(tmp_path / "gone.json")
