"""The fast engine gives what the reference gives, or is found out and refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.shards import build_worker, engine_worker, fast
from stoker.shards import engine as engine_module
from stoker.shards import tokenizer as tokenizer_module
from stoker.shards.engine import Engine, EngineUnsupported, HFEngine, make_engine
from stoker.shards.fast import FastEngine, IdGuard
from stoker.shards.preload import preload
from stoker.shards.probes import probes
from stoker.shards.tokenizer import FrozenTokenizer, examine_tokenizer, reload_tokenizer
from support.builds import Recorder, build_task
from support.text import damage_page, documents, write_parquet
from support.tokenizers import FLAGS, LIKE, tokenizer_like

KINDS = [
    *((family, {"end_last": end_last}) for family in LIKE for end_last in (False, True)),
    ("llama3", {"end_last": True, "ignore_merges": True}),
    ("gpt2", {"ignore_merges": True}),
]
PROSE = [text for text in documents(400, seed=21) if text is not None]


def frozen(data: bytes) -> FrozenTokenizer:
    return examine_tokenizer(data, "tokenizer.json")


def pair(data: bytes) -> tuple[FastEngine, HFEngine]:
    tokenizer = frozen(data)
    return FastEngine(tokenizer), HFEngine(tokenizer)


def assert_equal(one: Engine, other: Engine, texts: list[str]) -> None:
    for way in ("encode", "documents"):
        ids, lengths = getattr(one, way)(texts)
        wanted, wanted_lengths = getattr(other, way)(texts)
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


@settings(max_examples=150, deadline=None)
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
    plain = np.array([each for one in documents_ for each in one], np.uint32)
    for given_ids, given_ends in ((ids, ends), (plain, None)):
        if fine:
            guard.check(given_ids, given_ends)
        else:
            with pytest.raises(EngineUnsupported, match="special"):
                guard.check(given_ids, given_ends)


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
        "source": {"sha256": hashlib.sha256(parquet.read_bytes()).hexdigest()},
        "text_column": "text",
        "tokenizer_file": str(file),
        "read_rows": 250,
    }


def sample(task: dict[str, Any]) -> dict[str, Any]:
    engine_worker._kept.clear()
    return engine_worker.main(task, Recorder())  # type: ignore[arg-type]


def test_a_file_on_which_both_agree_gets_the_fast_engine(tmp_path: Path) -> None:
    assert sample(task_for(tmp_path, tokenizer_like("gpt2"))) == {
        "status": "sampled",
        "engine": "fastokens",
        "reason": "",
    }


@pytest.mark.parametrize("texts", [[], [None] * 30, ["x" * 300_000]])
def test_a_file_with_little_to_compare_is_sampled_all_the_same(
    tmp_path: Path, texts: list[str | None]
) -> None:
    assert sample(task_for(tmp_path, tokenizer_like("gpt2"), texts))["status"] == "sampled"


@pytest.mark.parametrize("spoilt", ["prose", "odd texts"])
def test_where_they_differ_the_reference_is_used_and_the_text_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    whole = FastEngine.documents
    word = "candle" if spoilt == "prose" else "\u2460"

    def wrong(self: FastEngine, texts: list[str]) -> Any:
        return whole(self, [text.replace(word, "?") for text in texts])

    monkeypatch.setattr(FastEngine, "documents", wrong)
    result = sample(task_for(tmp_path, tokenizer_like("gpt2")))
    assert (result["status"], result["engine"]) == ("sampled", "tokenizers")
    assert "odd texts" in result["reason"] if spoilt == "odd texts" else "row group" in result["reason"]


def _filling_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_fill", lambda vocab, holes: None)


def _forgets_its_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_append", lambda eot: None)


@pytest.mark.parametrize("spoil", [_filling_fails, _forgets_its_promise])
def test_an_engine_that_cannot_take_the_tokenizer_is_refused_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[pytest.MonkeyPatch], None]
) -> None:
    spoil(monkeypatch)
    result = sample(task_for(tmp_path, tokenizer_like("gpt2")))
    assert (result["status"], result["engine"]) == ("sampled", "tokenizers")
    assert "fastokens" in result["reason"]


def test_a_bad_file_is_told_as_a_build_tells_it(tmp_path: Path) -> None:
    task = task_for(tmp_path, tokenizer_like("gpt2"))
    parquet = damage_page(tmp_path / "a.parquet", 0)  # the first row group is always looked at
    assert sample(task) == {"status": "changed"}
    result = sample({**task, "source": {"sha256": hashlib.sha256(parquet.read_bytes()).hexdigest()}})
    assert (result["status"], result["reason"], result["row_group"]) == ("bad", "page_corrupt", 0)


def count_engines(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[str]:
    made: list[str] = []

    def counting(name: str, tokenizer: FrozenTokenizer) -> Engine:
        made.append(name)
        return make_engine(name, tokenizer)

    monkeypatch.setattr(module, "make_engine", counting)
    return made


@pytest.mark.parametrize("before", ["nothing", "prepared"])
def test_both_engines_are_kept_for_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    made = count_engines(monkeypatch, engine_worker)
    task = task_for(tmp_path, tokenizer_like("gpt2"))
    monkeypatch.setattr(engine_worker, "_kept", [])
    if before == "prepared":
        task_before = {"prepare": True, "tokenizer_file": task["tokenizer_file"]}
        assert engine_worker.main(task_before, Recorder()) == {"status": "prepared", "reason": ""}  # type: ignore[arg-type]
        assert made == ["tokenizers", "fastokens"]
    first = engine_worker.main(task, Recorder())  # type: ignore[arg-type]
    assert engine_worker.main(task, Recorder()) == first  # type: ignore[arg-type]
    assert made == ["tokenizers", "fastokens"]
    other = task_for(tmp_path, tokenizer_like("llama3"))
    engine_worker.main(other, Recorder())  # type: ignore[arg-type]
    assert len(made) == 4


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has loaded no tokenizer and no engine yet."""
    for module in (build_worker, engine_worker):
        monkeypatch.setattr(module, "_kept", [])
    for module in (tokenizer_module, engine_module):
        monkeypatch.setattr(module, "_kept", {})


@pytest.mark.usefixtures("nothing_kept")
def test_what_was_loaded_before_is_what_the_workers_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_for(tmp_path, tokenizer_like("gpt2"))
    tokenizer = Path(task["tokenizer_file"])
    assert preload({"tokenizer_file": str(tokenizer), "engine": "fastokens"}) == {"status": "prepared"}
    made: list[str] = []
    whole = engine_module._make
    monkeypatch.setattr(engine_module, "_make", lambda name, frozen: made.append(name) or whole(name, frozen))
    monkeypatch.setattr(tokenizer_module, "_without", lambda *_: pytest.fail("it is examined again"))
    parquet = write_parquet(tmp_path / "b.parquet", documents(50, seed=3))
    build = {**build_task(tmp_path, parquet, tokenizer), "engine": "fastokens"}
    assert build_worker.main(build, Recorder())["status"] == "published"
    assert made == []
    assert engine_worker.main(task, Recorder())["engine"] == "fastokens"  # type: ignore[arg-type]
    assert made == ["tokenizers"]


@pytest.mark.usefixtures("nothing_kept")
def test_another_tokenizer_in_the_same_place_is_not_the_one_that_was_loaded(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(tokenizer_like("gpt2"))
    preload({"tokenizer_file": str(file), "engine": "fastokens"})
    loaded = reload_tokenizer(file)
    file.write_bytes(tokenizer_like("llama3"))
    other = reload_tokenizer(file)
    assert other.vocab_size != loaded.vocab_size
    assert make_engine("fastokens", other) is not make_engine("fastokens", loaded)
    assert make_engine("fastokens", loaded) is make_engine("fastokens", loaded)


@pytest.mark.usefixtures("nothing_kept")
def test_a_tokenizer_that_the_fast_engine_does_not_take_is_no_failure_to_load(tmp_path: Path) -> None:
    definition = json.loads(tokenizer_like("gpt2"))
    definition["added_tokens"][0]["id"] = 1 << 17  # with more holes below it than can be filled
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(json.dumps(definition))
    result = preload({"tokenizer_file": str(tokenizer), "engine": "fastokens"})
    assert result["status"] == "unsupported" and "holes" in result["reason"]
