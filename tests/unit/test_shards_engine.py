"""The fast engine gives what the reference gives, or is found out and refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.shards.build import build_worker, engine_check
from stoker.shards.build.engine_check import Engines, probes
from stoker.shards.tokenize import engine as fast
from stoker.shards.tokenize.engine import Engine, EngineUnsupported, FastEngine, HFEngine, IdGuard
from stoker.shards.tokenize.tokenizer import FrozenTokenizer, examine_tokenizer, reload_tokenizer
from support.builds import Recorder, build_task
from support.text import documents, write_parquet
from support.tokenizers import FLAGS, LIKE, tokenizer_like

KINDS = [
    *((family, {"end_last": end_last}) for family in LIKE for end_last in (False, True)),
    ("llama3", {"end_last": True, "ignore_merges": True}),
    ("gpt2", {"ignore_merges": True}),
]
PROSE = [text for text in documents(120, seed=21) if text is not None]


def frozen(data: bytes) -> FrozenTokenizer:
    return examine_tokenizer(data, "tokenizer.json")


def pair(data: bytes) -> tuple[FastEngine, HFEngine]:
    tokenizer = frozen(data)
    return FastEngine(tokenizer), HFEngine(tokenizer)


def assert_equal(one: Engine, other: Engine, texts: list[str]) -> None:
    ids, lengths = one.documents(texts)
    wanted, wanted_lengths = other.documents(texts)
    assert np.array_equal(ids, wanted)
    assert np.array_equal(lengths, wanted_lengths)
    assert (ids.dtype, lengths.dtype) == (wanted.dtype, wanted_lengths.dtype)


@pytest.mark.parametrize(("family", "options"), KINDS, ids=str)
def test_prose_and_odd_texts_are_encoded_as_by_the_reference(family: str, options: dict[str, Any]) -> None:
    data = tokenizer_like(family, **options)
    names = [token["content"] for token in json.loads(data)["added_tokens"]]
    assert_equal(*pair(data), [*probes(names), *PROSE, ""])


@pytest.fixture(scope="module")
def engines() -> tuple[FastEngine, HFEngine]:
    return pair(tokenizer_like("llama3", end_last=True, ignore_merges=True))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(), max_size=4))
def test_any_texts_are_encoded_as_by_the_reference(
    engines: tuple[FastEngine, HFEngine], texts: list[str]
) -> None:
    assert_equal(*engines, texts)


def test_end_of_text_stands_behind_each_document_and_nowhere_else() -> None:
    tokenizer = frozen(tokenizer_like("gpt2"))
    ids, lengths = FastEngine(tokenizer).documents(["a<|endoftext|>", "", "<|endoftext|>" * 3])
    ends = np.cumsum(lengths) - 1
    assert np.flatnonzero(ids == tokenizer.eot).tolist() == ends.tolist()
    assert lengths[1] == 1


def test_numbers_missing_in_a_vocabulary_are_filled_with_what_no_text_can_be() -> None:
    definition = json.loads(tokenizer_like("gpt2"))
    definition["added_tokens"].append({"id": 5000, "content": "<pad>", "special": True, **FLAGS})
    tokenizer = frozen(json.dumps(definition).encode())
    texts = ["<pad>", "\U000f00005000", "\U000f00004999 \U000f00000", "a\U000f00005000b", *PROSE[:20]]
    assert_equal(FastEngine(tokenizer), HFEngine(tokenizer), texts)


def test_more_holes_than_can_be_filled_are_told() -> None:
    definition = json.loads(tokenizer_like("gpt2"))
    definition["added_tokens"].append({"id": 10**6, "content": "<pad>", "special": True, **FLAGS})
    with pytest.raises(EngineUnsupported, match="holes"):
        FastEngine(frozen(json.dumps(definition).encode()))


@pytest.mark.parametrize(
    ("special", "eot", "documents_", "fine"),
    [
        ({0}, 0, [[4, 5], [6]], True),
        ({0}, 0, [[4, 0], [6]], False),
        ({9}, 9, [[4, 9, 5]], False),
        ({7, 8, 9}, 8, [[4], []], True),
        ({7, 8, 9}, 8, [[9]], False),
        ({5}, 5, [[4, 6], [9]], True),
        ({5}, 5, [[4, 5]], False),
        ({0, 5, 9}, 5, [[4, 6], [8]], True),
        ({0, 5, 9}, 5, [[0], [8]], False),
        ({0}, 0, [[4, 10]], False),
        ({0}, 0, [[4, 2**32 - 1]], False),
    ],
)
def test_ids_that_no_text_may_have_are_counted(
    special: set[int], eot: int, documents_: list[list[int]], fine: bool
) -> None:
    forbidden = np.zeros(10, dtype=bool)
    forbidden[list(special)] = True
    guard = IdGuard(forbidden, eot)
    flat = [[*one, eot] for one in documents_]
    ids = np.array([each for one in flat for each in one], np.uint32)
    ends = np.cumsum([len(one) for one in flat])
    if fine:
        guard.check(ids, ends)
    else:
        with pytest.raises(EngineUnsupported, match="special"):
            guard.check(ids, ends)


def test_a_text_without_its_end_is_found_out() -> None:
    guard = IdGuard(np.array([True, False, False]), 0)
    with pytest.raises(EngineUnsupported):
        guard.check(np.array([1, 2, 0, 1], np.uint32), np.array([3, 4]))


def test_a_panic_in_native_code_is_the_engines_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As PyO3 raises it."""

    class Panics:
        def encode_batch_flat(self, *_: object, **__: object) -> None:
            raise PanicException("index out of bounds")

    engine = FastEngine(frozen(tokenizer_like("gpt2")))
    monkeypatch.setattr(engine, "_fast", Panics())
    with pytest.raises(EngineUnsupported, match="out of bounds"):
        engine.documents(["a"])


def task_for(home: Path, tokenizer: bytes, texts: list[str | None] | None = None) -> dict[str, Any]:
    parquet = write_parquet(home / "a.parquet", documents(500) if texts is None else texts)
    file = home / "tokenizer.json"
    file.write_bytes(tokenizer)
    return {
        "parquet": str(parquet),
        "text_column": "text",
        "tokenizer_file": str(file),
    }


def chosen(task: dict[str, Any]) -> tuple[str, str]:
    """The engine for the task's file by name, and why it is not the fast one."""
    engines = Engines(reload_tokenizer(Path(task["tokenizer_file"])))
    engine, refused = engines.choose(Path(task["parquet"]), task["text_column"])
    return engine.name, refused


def test_a_file_on_which_both_agree_gets_the_fast_engine(tmp_path: Path) -> None:
    assert chosen(task_for(tmp_path, tokenizer_like("gpt2"))) == ("fastokens", "")


@pytest.mark.parametrize("texts", [[], [None] * 30, ["x" * 300_000]])
def test_a_file_with_little_to_compare_gets_the_fast_engine_too(
    tmp_path: Path, texts: list[str | None]
) -> None:
    assert chosen(task_for(tmp_path, tokenizer_like("gpt2"), texts)) == ("fastokens", "")


def test_what_the_engines_remember_of_a_comparison_ends_with_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[threading.Thread] = set()
    for engine in (HFEngine, FastEngine):

        def noted(self: Any, texts: list[str], whole: Any = engine.documents) -> Any:
            seen.add(threading.current_thread())
            return whole(self, texts)

        monkeypatch.setattr(engine, "documents", noted)
    assert chosen(task_for(tmp_path, tokenizer_like("gpt2"))) == ("fastokens", "")
    assert seen and not any(thread.is_alive() for thread in seen)


@pytest.mark.parametrize("spoilt", ["prose", "odd texts"])
def test_where_they_differ_the_reference_is_used_and_the_text_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    whole = FastEngine.documents
    word = "candle" if spoilt == "prose" else "\u2460"

    def wrong(self: FastEngine, texts: list[str]) -> Any:
        return whole(self, [text.replace(word, "?") for text in texts])

    monkeypatch.setattr(FastEngine, "documents", wrong)
    engine, reason = chosen(task_for(tmp_path, tokenizer_like("gpt2")))
    assert engine == "tokenizers"
    assert ("odd texts" if spoilt == "odd texts" else "row group") in reason


def _filling_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_fill", lambda vocab, holes: None)


def _forgets_its_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_append", lambda eot: None)


@pytest.mark.parametrize("spoil", [_filling_fails, _forgets_its_promise])
def test_an_engine_that_cannot_take_the_tokenizer_is_refused_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[pytest.MonkeyPatch], None]
) -> None:
    spoil(monkeypatch)
    engine, reason = chosen(task_for(tmp_path, tokenizer_like("gpt2")))
    assert engine == "tokenizers" and "fastokens" in reason


def test_a_builder_keeps_its_engines_for_the_next_file_and_tells_of_a_refused_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    for made_by in (HFEngine, FastEngine):

        def counting(tokenizer: FrozenTokenizer, made_by: Any = made_by) -> Engine:
            made.append(made_by.name)
            return made_by(tokenizer)

        monkeypatch.setattr(engine_check, made_by.__name__, counting)
    monkeypatch.setattr(build_worker, "_kept", [])
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(tokenizer_like("gpt2"))
    for number in range(2):
        parquet = write_parquet(tmp_path / f"{number}.parquet", documents(50, seed=number))
        task = {**build_task(tmp_path, parquet, tokenizer), "engine": "auto"}
        assert build_worker.main(task, Recorder())["status"] == "published"
    assert made == ["tokenizers", "fastokens"]
    for number in range(2, 4):  # the first leaves without the reference, the second loads it for its sample
        monkeypatch.setattr(engine_check, "LARGE_BYTES", 1)
        parquet = write_parquet(tmp_path / f"{number}.parquet", documents(50, seed=number))
        task = {**build_task(tmp_path, parquet, tokenizer), "engine": "auto"}
        assert build_worker.main(task, Recorder())["status"] == "published"
        assert build_worker._kept[0].engines._reference is None
    assert made == ["tokenizers", "fastokens", "tokenizers"]
    made.clear()
    _forgets_its_promise(monkeypatch)
    tokenizer.write_bytes(tokenizer_like("llama3"))
    parquet = write_parquet(tmp_path / "refused.parquet", documents(50, seed=7))
    recorder = Recorder()
    task = {**build_task(tmp_path, parquet, tokenizer), "engine": "auto"}
    assert build_worker.main(task, recorder)["status"] == "published"
    (told,) = [each for each in recorder.messages if each["kind"] == "engine"]
    assert told["used"] == "tokenizers" and "fastokens" in told["reason"]
    assert made == ["tokenizers", "fastokens"]


def test_a_tokenizer_that_the_fast_engine_does_not_take_is_built_with_the_reference(tmp_path: Path) -> None:
    definition = json.loads(tokenizer_like("gpt2"))
    definition["added_tokens"][0]["id"] = 1 << 17  # with more holes below it than can be filled
    engine, reason = chosen(task_for(tmp_path, json.dumps(definition).encode()))
    assert engine == "tokenizers" and "holes" in reason
