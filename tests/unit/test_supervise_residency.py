"""The supervisor's word on the hot disk: what is needed there, what was away, how far a run may go back."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.config.schema_train import Train
from stoker.corpus.records.dataset import DatasetPin, TokenizerPin, write_pin
from stoker.corpus.records.sources import Source, read_sources, write_source
from stoker.plan.growth import Cut, GrowthPolicy
from stoker.plan.log import Passed, Segment
from stoker.plan.positions import START, Position
from stoker.store.errors import DataError
from stoker.store.layout import StateLayout
from stoker.supervise.run.planner import Planner
from stoker.supervise.run.progress import WindowRate, last_step, mark
from support.books import books_of
from support.checkpoint_data import seal
from support.plan_data import plan_of, segment


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


POLICY = GrowthPolicy(seed=1, seq_len=10, segment_tokens=250, epochs=1)
TARGET = 64  # windows


class Corpus:
    """Three published sets of 300 tokens and the planner of a run over them; each gives a segment."""

    def __init__(self, root: Path) -> None:
        self.layout = StateLayout(root)
        self.layout.create()
        books = books_of(300, documents=3)
        for name in "abc":
            write_source(
                self.layout,
                Source(
                    "prose", name, 9, sha(name), "synced", sha("key" + name), 0, None, books, False, sha("m")
                ),
            )
        tokenizer = TokenizerPin("t.json", "c" * 64, 400, 0)
        self.pin = DatasetPin("prose", 1, "b" * 64, {}, tokenizer, {}, listing=("a", "b", "c"), complete=True)
        write_pin(self.layout, self.pin)
        self.layout.run("main").create()
        self.planner = self.open()

    def open(self, run_id: str | None = "r-1") -> Planner:
        return Planner(self.layout, "prose", self.layout.run("main").plan, run_id)

    def move(self, name: str, **changes: Any) -> None:
        write_source(self.layout, replace(read_sources(self.layout, "prose")[name], **changes))

    def grow(self, target: int = TARGET) -> list[str]:
        """What can be proven is, then the plan grows; the names of the sets that entered it."""
        before = self.planner.grow(self.pin, target, POLICY, 0.0)
        for key, digest in self.planner.to_prove(0.0).items():
            self.planner.proven(key, digest)
        entries = (*before, *self.planner.grow(self.pin, target, POLICY, 0.0))
        keys = [key for entry in entries if isinstance(entry, Segment) for key, _ in entry.sets]
        return [name for key in keys for name in "abc" if key == sha("key" + name)]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path)


def test_parts_name_the_runs_dataset(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "POLICY", replace(POLICY, cuts=(Cut(20, 5),)))
    assert corpus.grow() == ["a", "a", "b"]
    assert [entry.dataset for entry in corpus.planner.plan.segments] == ["prose"] * 2


def test_the_plan_names_no_set_that_is_not_on_hot_and_asks_for_it_instead(corpus: Corpus) -> None:
    corpus.move("b", evicted=True)
    assert corpus.grow() == ["a"]
    corpus.planner.note_wants(corpus.planner.needed(START))
    assert corpus.planner.wants == (sha("keyb"), sha("keyc"))
    corpus.move("b", evicted=False)
    assert corpus.grow() == ["b", "c"]


def test_a_set_on_warm_is_waited_for_and_never_passed_over_as_missing(corpus: Corpus) -> None:
    policy = replace(POLICY, order="arrival", hold_s=0.0)
    corpus.move("a", evicted=True)
    entries = corpus.planner.grow(corpus.pin, TARGET, policy, 0.0)
    for key, digest in corpus.planner.to_prove(0.0).items():
        corpus.planner.proven(key, digest)
    entries += corpus.planner.grow(corpus.pin, TARGET, policy, 9.0)
    assert not any(isinstance(entry, Passed) for entry in entries)


def test_what_is_about_to_leave_counts_as_gone(corpus: Corpus) -> None:
    corpus.move("a", evicting=True)
    assert corpus.grow() == []
    assert corpus.planner.cold([sha("keya"), sha("keyb")]) == [sha("keya")]


def test_a_cold_set_that_is_still_read_is_wanted_before_all_that_comes(corpus: Corpus) -> None:
    near = 29  # one segment's windows
    assert corpus.grow(near) == ["a"]
    corpus.move("a", evicted=True)
    corpus.move("c", evicted=True)
    corpus.grow(50)
    corpus.planner.note_wants(corpus.planner.needed(Position(0, 5)))
    assert corpus.planner.wants[0] == sha("keya")
    assert corpus.planner.needed(Position(0, 29)).keys().isdisjoint({sha("keya")})


def test_what_was_away_is_proven_again_before_it_is_counted_on(corpus: Corpus) -> None:
    corpus.grow()
    needed = corpus.planner.needed(START)
    assert corpus.planner.cold(needed) == [] and corpus.planner.trusted(needed)
    corpus.move("b", evicted=True)
    assert corpus.planner.cold(needed) == [sha("keyb")]
    assert corpus.planner.unproven(needed, 0.0) == {}
    corpus.move("b", evicted=False)
    assert corpus.planner.cold(needed) == [] and not corpus.planner.trusted(needed)
    assert corpus.planner.unproven(needed, 0.0) == {sha("keyb"): sha("m")}
    corpus.planner.proven(sha("keyb"), sha("m"))
    assert corpus.planner.trusted(needed)


def test_a_segment_that_is_skipped_as_a_whole_is_not_needed(corpus: Corpus) -> None:
    corpus.grow()
    skip = (Position(0, 10), Position(1, 29))
    assert sha("keyb") not in corpus.planner.needed(START, [skip])
    assert sha("keya") in corpus.planner.needed(START, [skip])
    assert list(corpus.planner.needed(START, [skip], segments=2)) == [sha("keya"), sha("keyc")]


def test_a_plan_of_another_run_is_refused(corpus: Corpus) -> None:
    corpus.grow()
    with pytest.raises(DataError, match="another run"):
        corpus.open("r-2")
    with pytest.raises(DataError, match="another run"):
        corpus.open(None).belongs_to("r-2")
    corpus.open(None).belongs_to("r-1")


PLAN = plan_of(segment(0, 10, seq_len=8), segment(1, 10, seq_len=4))


@pytest.mark.parametrize(
    ("step", "position", "tokens", "skips", "last"),
    [
        # 160 tokens in batches of 4 windows: 10 of 8 tokens, 10 of 4, then 10 of 4 to be planned
        (0, START, 0, (), 30 // 4 + 0),
        (2, Position(0, 8), 64, (), 7),
        (3, Position(1, 2), 88, (), 7),
        (7, Position(1, 10), 200, (), 7),
        (0, START, 0, ((Position(0, 0), Position(0, 10)),), 10),  # 40 windows of 4
    ],
)
def test_a_horizon_in_tokens_is_the_same_from_every_checkpoint(
    step: int, position: Position, tokens: int, skips: tuple, last: int
) -> None:
    model = {"layers": 1, "width": 8, "heads": 1, "kv_heads": 1, "ffn_width": 8}
    train = Train.model_validate({"tokens": 160, "seq_len": 4, "global_batch": 4, "model": model})
    assert last_step(train, PLAN, step=step, position=position, tokens=tokens, skips=skips) == last


def test_the_low_water_mark_counts_only_from_the_newest_proven_checkpoint(tmp_path: Path) -> None:
    plan = plan_of(segment(0, 1000))
    for step in (10, 20, 30, 40):
        seal(tmp_path, step)

    def low(keep_last: int, newest: int) -> Position:
        return mark(tmp_path, [(0, None)], plan, keep_last=keep_last, newest=newest)

    assert low(2, newest=40) == Position(0, 30 * 16)
    assert low(2, newest=30) == Position(0, 20 * 16)  # 40 may be found bad
    assert low(9, newest=40) == Position(0, 160)
    assert mark(tmp_path / "none", [(0, None)], plan, keep_last=1, newest=0) == START
    (tmp_path / "step-000000040" / "checkpoint.json").write_bytes(b"?")
    assert low(1, newest=40) == START


def test_the_pace_is_that_of_training_over_minutes() -> None:
    pace = WindowRate(5.0)
    assert pace.windows_per_s == 5.0
    for second in range(0, 80, 4):
        pace.sampled(100 + 2 * second, float(second))
    assert pace.windows_per_s == pytest.approx(2.0)
    pace.interrupted()
    pace.sampled(180, 1000.0)
    pace.sampled(300, 1020.0)
    assert pace.windows_per_s == pytest.approx(2.0), "a few seconds are no measure"
    pace.sampled(540, 1060.0)
    assert pace.windows_per_s == pytest.approx(6.0)
    for second in range(1060, 2060, 10):
        pace.sampled(540 + second - 1060, float(second))
    assert pace.windows_per_s == pytest.approx(1.0, rel=0.05)
