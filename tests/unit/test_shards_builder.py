"""A batch's way through the builder: divided, cut into portions, and within its memory."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import stoker.shards.build.builder
import stoker.shards.build.memory_use
from stoker.shards.build import build_worker
from stoker.shards.build.builder import divide, val_decision
from stoker.shards.build.memory_use import CACHE_ROOM, ROOM, Footprint
from stoker.shards.tokenize.engine import EngineUnsupported, FastEngine, portions
from support.builds import Recorder, build_task, set_bytes, small_source, small_tokenizer
from support.text import documents, write_parquet


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=30))
def test_dividing_keeps_every_token_once_and_in_order(documents: list[tuple[int, bool]]) -> None:
    lengths = np.array([length for length, _ in documents], np.int64)
    val = np.array([is_val for _, is_val in documents])
    tokens = np.arange(lengths.sum(), dtype="<u2")
    train, held_out = divide(tokens, lengths, val)
    of_val = np.repeat(val, lengths)
    assert train.tolist() == tokens[~of_val].tolist()
    assert held_out.tolist() == tokens[of_val].tolist()
    assert (train.dtype, held_out.dtype) == (tokens.dtype, tokens.dtype)


@given(st.lists(st.integers(0, 12), max_size=20))
def test_portions_cover_the_texts_in_order_and_stay_near_their_size(lengths: list[int]) -> None:
    texts = ["x" * length for length in lengths]
    parts = [texts[part] for part in portions(texts, 10)]
    assert [text for part in parts for text in part] == texts
    assert all(sum(map(len, part[:-1])) < 10 for part in parts)


@pytest.mark.parametrize("text", ["", "plain", "na\u00efve \U0001f525", "\u4e2d" * 300])
def test_the_split_is_decided_by_the_documents_utf8_as_it_always_was(text: str) -> None:
    utf8 = text.encode()
    value = xxhash.xxh3_64_intdigest(utf8, 7)
    for ratio in (0.0, 0.3, 0.7, 1.0):
        assert val_decision(ratio, 7)([memoryview(utf8)]).tolist() == [value < int(ratio * 2**64)]
    assert val_decision(0.5, 7)([]).dtype == bool


@pytest.fixture(scope="module", autouse=True)
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source and a tokenizer."""
    home = tmp_path_factory.mktemp("material")
    small_source(home, 300)
    small_tokenizer(home / "tokenizer.json")
    return home


def built(material: Path, home: Path, engine: str = "fastokens") -> tuple[dict[str, Any], Recorder, Path]:
    task = build_task(
        home, material / "source-1.parquet", material / "tokenizer.json", read_rows=40, every_s=0.0
    )
    build_worker._kept.clear()
    recorder = Recorder()
    return build_worker.main({**task, "engine": engine}, recorder), recorder, Path(task["target"])


def test_a_build_asks_where_its_set_outgrows_its_room_and_goes_on(material: Path, tmp_path: Path) -> None:
    _, _, free = built(material, tmp_path / "free")
    task = build_task(tmp_path, material / "source-1.parquet", material / "tokenizer.json", every_s=0.0)
    recorder = Recorder()
    recorder.answers = [{"room": 60_000}, {"room": 1 << 30}]
    result = build_worker.main({**task, "room": 30_000}, recorder)
    asked = [each for each in recorder.messages if each["kind"] == "room"]
    assert result["status"] == "published"
    assert len(asked) == 2
    assert asked[0]["written"] <= 30_000 < asked[0]["needed"] <= asked[1]["written"] + 30_000
    assert asked[1]["written"] <= 60_000 < asked[1]["needed"]
    assert set_bytes(Path(task["target"])) == set_bytes(free)


def test_a_build_without_room_ends_and_leaves_nothing(material: Path, tmp_path: Path) -> None:
    task = build_task(tmp_path, material / "source-1.parquet", material / "tokenizer.json", every_s=0.0)
    recorder = Recorder()
    recorder.answers = [{"room": 0}]
    assert build_worker.main({**task, "room": 60_000}, recorder)["status"] == "outgrown"
    assert not Path(task["building"]).exists() and not Path(task["target"]).exists()
    assert build_worker.main({**task, "room": 1 << 30}, Recorder())["status"] == "published"


def test_both_engines_make_the_same_set(material: Path, tmp_path: Path) -> None:
    fast, _, target = built(material, tmp_path / "fast")
    reference, _, other = built(material, tmp_path / "reference", "tokenizers")
    assert fast == reference
    assert set_bytes(target) == set_bytes(other)
    names = [json.loads((each / "build.json").read_text())["engine"]["name"] for each in (target, other)]
    assert names == ["fastokens", "tokenizers"]


@pytest.mark.parametrize("fails", ["at load", "in the middle"])
def test_where_the_fast_engine_fails_the_reference_goes_on_to_the_same_set(
    material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    _, _, reference = built(material, tmp_path / "reference", "tokenizers")
    calls: list[int] = []
    whole = FastEngine.documents

    def load(self: FastEngine, tokenizer: object) -> None:
        raise EngineUnsupported("it does not know this pre-tokenizer")

    def third_fails(self: FastEngine, texts: list[str]) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise EngineUnsupported("it gave a special token")
        return whole(self, texts)

    monkeypatch.setattr(
        FastEngine, *(("__init__", load) if fails == "at load" else ("documents", third_fails))
    )
    result, recorder, target = built(material, tmp_path / "broken")
    assert result["status"] == "published"
    assert set_bytes(target) == set_bytes(reference)
    told = [message for message in recorder.messages if message["kind"] == "engine"]
    assert [(one["used"], one["refused"]) for one in told] == [("tokenizers", "fastokens")]
    assert "it " in told[0]["reason"]
    assert json.loads((target / "build.json").read_text())["engine"]["name"] == "tokenizers"


def test_the_tokenizer_is_loaded_once_for_many_files_and_again_for_another(
    material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path] = []
    whole = build_worker.reload_tokenizer

    def counting(path: Path) -> Any:
        loaded.append(path)
        return whole(path)

    monkeypatch.setattr(build_worker, "reload_tokenizer", counting)
    build_worker._kept.clear()
    tokenizer, source = material / "tokenizer.json", material / "source-1.parquet"
    for number in range(2):
        task = build_task(tmp_path / str(number), source, tokenizer)
        assert build_worker.main(task, Recorder())["status"] == "published"
    assert len(loaded) == 1
    other = tmp_path / "other.json"
    other.write_text(tokenizer.read_text() + "\n")
    assert build_worker.main(build_task(tmp_path / "2", source, other), Recorder())["status"] == "published"
    assert len(loaded) == 2


def test_a_builder_that_stays_too_large_commits_and_asks_for_a_fresh_process(
    material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, reference = built(material, tmp_path / "reference")
    monkeypatch.setattr(Footprint, "too_large", lambda self: True)
    rows: list[int] = []
    for _ in range(20):
        result, recorder, target = built(material, tmp_path / "large")
        rows += [message["rows"] for message in recorder.messages if message["kind"] == "commit"]
        if result["status"] != "recycled":
            break
        assert result["rss_bytes"] > 0
        assert not target.exists()
    assert result["status"] == "published"
    assert len(rows) > 3
    assert rows == sorted(rows)
    assert set_bytes(target) == set_bytes(reference)


def test_memory_is_given_back_before_anybody_is_asked_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [900 << 20]

    def give_back() -> None:
        held[0] = 200 << 20

    monkeypatch.setattr(stoker.shards.build.memory_use, "resident_bytes", lambda: held[0])
    footprint = Footprint(320 << 20, 100 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(stoker.shards.build.memory_use, "give_back", lambda: None)
        assert not footprint.too_large()  # it may be a large document
        assert footprint.too_large()  # it is not
    monkeypatch.setattr(stoker.shards.build.memory_use, "give_back", give_back)
    assert not footprint.too_large()
    held[0] = 900 << 20
    assert not footprint.too_large()


def test_an_engine_forgets_when_it_holds_much_and_not_again_for_what_is_not_its(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = [100 << 20]
    monkeypatch.setattr(stoker.shards.build.memory_use, "resident_bytes", lambda: held[0])
    monkeypatch.setattr(stoker.shards.build.memory_use, "give_back", lambda: None)
    footprint = Footprint(1 << 40, 100 << 20)
    for _ in range(2):  # words it has seen
        assert not footprint.crowded()
        held[0] = (101 << 20) + CACHE_ROOM
        assert footprint.crowded()
        held[0] = 110 << 20
        footprint.forgotten()
    held[0] = 700 << 20  # something else is large: it is let pass
    assert footprint.crowded()
    footprint.forgotten()
    assert not footprint.crowded()


def test_what_an_engine_forgot_changes_no_token(material: Path, tmp_path: Path) -> None:
    _, _, reference = built(material, tmp_path / "reference")
    threads: set[int] = set()
    whole = FastEngine.documents

    def noting(self: FastEngine, texts: list[str]) -> Any:
        threads.add(threading.get_native_id())
        return whole(self, texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Footprint, "crowded", lambda self: True)
        patch.setattr(FastEngine, "documents", noting)
        _, _, target = built(material, tmp_path / "forgetful")
    assert set_bytes(target) == set_bytes(reference)
    assert len(threads) > 5


def test_a_tokenizer_that_needs_more_than_the_limit_moves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Footprint(320 << 20, 100 << 20).limit == 320 << 20
    assert Footprint(320 << 20, 400 << 20).limit == (400 << 20) + ROOM


def test_a_file_of_long_documents_is_read_in_smaller_batches_to_the_same_set(
    material: Path, tmp_path: Path
) -> None:
    long = write_parquet(
        tmp_path / "long.parquet", [text and text * 60 for text in documents(100)], row_group=30
    )
    sets = []
    for name, rows in (("few", 1), ("many", 250)):
        task = build_task(
            tmp_path / name, long, material / "tokenizer.json", read_rows=rows, shard_tokens=10**6
        ) | {"engine": "fastokens"}
        assert build_worker.main(task, Recorder())["status"] == "published"
        sets.append(set_bytes(Path(task["target"])))
    assert sets[0] == sets[1]
