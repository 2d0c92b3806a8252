"""Plan lines of version 2: parts that follow each other token by token, cut where a phase begins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.plan.growth import Cut, Growth, GrowthPolicy, PlanSource, decide
from stoker.plan.log import Closed, Entry, Plan, PlanWriter, Segment, parse_entry, read_plan
from stoker.plan.positions import START, at, books
from stoker.plan.windows import SegmentReader
from stoker.store.errors import DataError, UnknownFormat
from stoker.store.record import require_version
from stoker.training.data.batches import Batches
from support.plan_data import fake_set, plan_of, segment, write_set

GOLDEN = Path(__file__).parents[1] / "data" / "plan-v2.jsonl"
TOKENS = {"a": 700, "b": 307, "c": 500, "d": 1, "e": 0, "f": 733, "g": 10, "h": 3}
POLICY = GrowthPolicy(
    seed=1, seq_len=10, segment_tokens=500, epochs=2, run_id="run-a", dataset="web", cuts=(Cut(120, 20),)
)
SOURCES = [
    PlanSource("q", "quarantined"),
    *(PlanSource(name, "ready", *fake_set(name), TOKENS[name]) for name in "abcde"),
    PlanSource("r", "quarantined"),
    PlanSource("f", "ready", *fake_set("f"), TOKENS["f"]),
]


def grow(
    sources: list[PlanSource], plan: Plan, policy: GrowthPolicy = POLICY, *, complete: bool = True
) -> Growth:
    return decide(plan, sources, complete=complete, target=10**9, policy=policy, now=0.0)


def shape(entry: Entry) -> Any:
    """What an entry reads: its sets by name, first token and windows."""
    names = {fake_set(name): name for name in TOKENS}
    if isinstance(entry, Segment):
        named = "".join(names[pair] for pair in entry.sets)
        return (named, entry.first if entry.dataset else None, entry.windows, entry.seq_len)
    return (entry.epoch, entry.tail_tokens) if isinstance(entry, Closed) else type(entry).__name__


SHAPES = [
    "Passed",
    ("a", None, 69, 10),
    ("bc", 0, 50, 10),  # the first that whole sets would take over the cut
    ("c", 193, 1, 10),
    "Passed",
    ("cdf", 203, 25, 20),
    ("f", 202, 25, 20),
    ("f", 702, 1, 20),
    (0, 11),
    ("a", 0, 25, 20),
    ("ab", 500, 25, 20),
    ("bc", 300, 25, 20),
    ("cdf", 493, 25, 20),
    ("f", 492, 12, 20),
    (1, 1),
    "End",
]


def test_a_plan_is_cut_where_a_phase_begins_and_loses_only_the_tails_of_its_epochs() -> None:
    plan = plan_of(*grow(SOURCES, plan_of()).entries)
    assert [shape(entry) for entry in plan.entries] == SHAPES
    assert sum(plan.segments[n].windows for n in range(3)) == 120
    whole = books(plan, at(plan, plan.windows))
    assert whole.tokens + whole.tail_tokens == 2 * sum(source.train_tokens for source in SOURCES)


@pytest.mark.parametrize("kept", range(len(SHAPES) + 1))
def test_after_a_kill_at_any_line_the_same_configuration_gives_the_golden_bytes(
    tmp_path: Path, kept: int
) -> None:
    path = tmp_path / "plan.jsonl"
    path.write_bytes(b"".join(GOLDEN.read_bytes().splitlines(keepends=True)[:kept]))
    writer = PlanWriter(path, "run-a")
    for entry in grow(SOURCES, writer.plan).entries:
        writer.append(entry)
    assert path.read_bytes() == GOLDEN.read_bytes()
    assert read_plan(path).entries == grow(SOURCES, plan_of()).entries


def test_a_program_of_version_1_stops_at_the_first_line_of_version_2() -> None:
    lines = [json.loads(line) for line in GOLDEN.read_bytes().splitlines()]
    assert [line["v"] for line in lines] == [1, 1, *[2] * 13, 1]
    with pytest.raises(UnknownFormat, match="version 2, this Stoker reads version 1"):
        require_version(lines[2], "the plan")


PART = {"dataset": "web", "epoch": 0, "sets": [list(fake_set("a"))], "first": 0, "windows": 5}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"windows": 6}, {}), ({"seq_len": 0}, {}), ({"permutation": "x"}, {}), ({"parts": []}, {}),
        ({}, {"first": -1}), ({}, {"windows": 0}), ({}, {"sets": []}), ({}, {"epoch": -1}),
        ({}, {"dataset": ""}), ({"v": 1}, {}), ({}, {"first": 7}),
    ],
)  # fmt: skip
def test_a_part_that_makes_no_sense_is_refused(
    tmp_path: Path, change: dict[str, Any], part: dict[str, Any]
) -> None:
    body = {**segment(0, 5).body(), "v": 2, "parts": [{**PART, **part}], "prev": "0" * 64}
    for name in ("epoch", "sets", "tail_tokens"):
        del body[name]
    body = {**body, "windows": (PART | part)["windows"], **change}
    (tmp_path / "plan.jsonl").write_text(json.dumps(body) + "\n")
    with pytest.raises(DataError, match="entry 0"):
        read_plan(tmp_path / "plan.jsonl")


@pytest.mark.parametrize("parts", [[PART, PART], [{**PART, "packing": "bfd-v1", "documents": 3}]])
def test_several_parts_and_packing_are_of_a_newer_stoker(parts: list[dict[str, Any]]) -> None:
    body = {"v": 2, "n": 0, "parts": parts, "seq_len": 8, "windows": 10}
    with pytest.raises(UnknownFormat, match="several parts, or a part with more"):
        parse_entry(body)


def part(n: int, sets: str, first: int, windows: int, *, epoch: int = 0) -> Segment:
    whole = segment(n, windows, sets=[fake_set(name) for name in sets], epoch=epoch, tail=0)
    return replace(whole, dataset="web", first=first)


@pytest.mark.parametrize(
    "entry",
    [
        segment(1, 5), part(1, "b", 41, 1), part(1, "b", 39, 1), part(1, "a", 40, 1),
        part(1, "a", 0, 1, epoch=1), replace(part(1, "b", 40, 1), dataset="code"),
        Closed(1, "web", 1, 3), Closed(1, "code", 0, 3),
    ],
)  # fmt: skip
def test_what_does_not_continue_a_part_is_refused(tmp_path: Path, entry: Entry) -> None:
    writer = PlanWriter(tmp_path / "plan.jsonl")
    writer.append(part(0, "b", 0, 5))
    with pytest.raises(DataError, match="does not begin where"):
        writer.append(entry)


@pytest.mark.parametrize("first", [-1, 41])
def test_a_part_begins_within_the_set_that_the_last_one_ended_in(tmp_path: Path, first: int) -> None:
    writer = PlanWriter(tmp_path / "plan.jsonl")
    writer.append(part(0, "ab", 0, 5))
    with pytest.raises(DataError, match="does not begin where"):
        writer.append(part(1, "b", first, 1))


@pytest.mark.parametrize("entry", [part(2, "b", 40, 1), Closed(2, "web", 0, 3), part(2, "a", 1, 1, epoch=1)])
def test_nothing_more_comes_of_a_closed_epoch(tmp_path: Path, entry: Entry) -> None:
    writer = PlanWriter(tmp_path / "plan.jsonl")
    for one in (part(0, "b", 0, 5), Closed(1, "web", 0, 3)):
        writer.append(one)
    with pytest.raises(DataError, match="does not begin where"):
        writer.append(entry)
    writer.append(part(2, "a", 0, 1, epoch=1))


def standing(name: str, changed: Any) -> list[PlanSource]:
    return [replace(one, standing=changed) if one.path == name else one for one in SOURCES]


BEGUN = plan_of(*grow(SOURCES, plan_of()).entries[:3])  # the last part ended in c


@pytest.mark.parametrize(
    ("sources", "first", "why"),
    [
        (standing("c", "cold"), None, "waiting for c to be brought back from warm"),
        (standing("c", "unproven"), None, "proving the shard set of c"),
        (standing("c", "pending"), None, "waiting for c"),
        (standing("b", "cold"), ("c", 193, 1, 10), None),  # it was read to its end
        ([PlanSource("b", "pending"), *standing("b", "quarantined")], None, "waiting for b"),
        (standing("c", "quarantined"), ("df", 0, 1, 10), None),  # the rest of c is lost for good
        ([one for one in SOURCES if one.path != "b"], ("df", 0, 1, 10), None),  # where c is cut is not known
    ],
)
def test_the_next_part_waits_for_the_set_that_the_last_one_ended_in(
    sources: list[PlanSource], first: Any, why: str | None
) -> None:
    growth = grow(sources, BEGUN)
    if first is None:
        assert (growth.entries, growth.why) == ((), why)
    else:
        assert shape(next(one for one in growth.entries if isinstance(one, Segment))) == first
    if any(one.path == "c" and one.standing in {"cold", "unproven"} for one in sources):
        assert growth.coming[0] == fake_set("c"), "nobody asks for it"


def test_an_epoch_ends_with_a_tail_that_nothing_is_brought_back_for() -> None:
    nearly = plan_of(*grow(SOURCES, plan_of()).entries[:8])
    more = [PlanSource(name, "cold", *fake_set(name), TOKENS[name]) for name in "hg"]
    growth = grow([*SOURCES, more[0], PlanSource("s", "quarantined")], nearly)
    assert [shape(entry) for entry in growth.entries[:3]] == ["Passed", (0, 11), ("a", 0, 25, 20)]
    growth = grow([*SOURCES, *(replace(one, standing="ready") for one in reversed(more))], nearly)
    assert [shape(entry) for entry in growth.entries[:2]] == [("fg", 722, 1, 20), (0, 1)]  # h is in no window


def test_an_epoch_does_not_end_while_the_set_it_was_cut_in_is_built_again() -> None:
    nearly = plan_of(*grow(SOURCES, plan_of()).entries[:8])
    sources = [*SOURCES[:-1], PlanSource("f", "pending")]
    held = {"waiting": {"f": -1e9}, "whole": True, "complete": False}
    growth = decide(nearly, sources, target=10**9, policy=POLICY, now=0.0, **held)  # type: ignore[arg-type]
    assert (growth.entries, growth.why) == ((), "waiting for f")


def test_a_plan_ends_where_too_little_is_left_for_another_epoch() -> None:
    nearly = plan_of(*grow(SOURCES, plan_of()).entries[:8])
    left = [one if one.path == "d" else replace(one, standing="quarantined") for one in SOURCES]
    growth = grow(left, nearly, replace(POLICY, epochs=None))
    assert ([shape(one) for one in growth.entries][-2:], growth.why) == (
        [(0, 0), "End"],
        "the data is used up",
    )


@pytest.mark.parametrize(
    ("cuts", "shapes"),
    [
        ((), [("ab", None, 100, 10), ("cdef", None, 123, 10)]),
        ((Cut(100, 20),), [("ab", None, 100, 10), ("cdef", None, 61, 20)]),  # whole sets end at the cut
        ((Cut(0, 20),), [("ab", None, 50, 20), ("cdef", None, 61, 20)]),
        ((Cut(40, 20), Cut(41, 5)), [("a", 0, 40, 10), ("a", 400, 1, 20), ("ab", 420, 117, 5)]),
    ],
)  # fmt: skip
def test_entries_take_whole_sets_until_a_cut_divides_one(cuts: tuple[Cut, ...], shapes: list[Any]) -> None:
    policy = replace(POLICY, segment_tokens=1001, epochs=1, cuts=cuts)
    if len(shapes) == 3:
        policy = replace(policy, segment_tokens=585)
    found = [shape(entry) for entry in grow([one for one in SOURCES if one.key], plan_of(), policy).entries]
    assert found[: len(shapes)] == shapes


def test_the_windows_of_parts_are_read_and_every_token_but_an_epochs_first_is_a_target_once(
    tmp_path: Path,
) -> None:
    counts = {source.path: source.train_tokens for source in SOURCES if source.key}
    stream = np.random.default_rng(0).permutation(sum(counts.values()))
    sources = []
    for (name, count), end in zip(counts.items(), np.cumsum(list(counts.values())), strict=True):
        some = stream[end - count : end].tolist()
        pair = write_set(tmp_path, name, [some[: count // 3], some[count // 3 :]])
        sources.append(PlanSource(name, "ready", *pair, count))
    writer = PlanWriter(tmp_path / "plan.jsonl")
    for entry in grow(
        sources, writer.plan, replace(POLICY, cuts=(Cut(30, 7), Cut(95, 20)), epochs=1)
    ).entries:
        writer.append(entry)
    batches = Batches(writer.path, tmp_path, position=START, size=1, vocab_size=10_000)
    targets: list[int] = []
    while (batch := batches.next()) is not None:
        targets += batch.groups[0][:, 1:].reshape(-1).tolist()
    (tail,) = [entry.tail_tokens for entry in writer.plan.entries if isinstance(entry, Closed)]
    assert sorted(targets) == sorted(stream[1 : len(stream) - tail + 1].tolist())


@pytest.mark.parametrize(
    ("sets", "first", "windows"), [("ab", 4, 6), ("ab", 0, 1), ("ab", 12, 4), ("aeb", 4, 5)]
)
def test_a_part_that_its_sets_do_not_bear_out_is_refused_at_open(
    tmp_path: Path, sets: str, first: int, windows: int
) -> None:
    tokens = {"a": 12, "e": 0, "b": 40}
    pairs = {name: write_set(tmp_path, name, [range(count)]) for name, count in tokens.items()}
    mine = part(3, "ab", 4, 5)  # to token 44 of 52
    mine = replace(mine, sets=(pairs["a"], pairs["b"]))
    assert SegmentReader(mine, tmp_path, vocab_size=1000).windows == 5
    wrong = replace(mine, sets=[pairs[name] for name in sets], first=first, windows=windows)
    with pytest.raises(
        DataError, match=rf"plan entry 3 has {windows} windows from token {first} on.*40 train"
    ):
        SegmentReader(wrong, tmp_path, vocab_size=1000)


lengths = st.integers(1, 9)
cuts_of = st.lists(st.builds(Cut, st.integers(0, 60), lengths), max_size=3)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=9), cuts_of, lengths, st.integers(1, 50), st.randoms()
)
def test_the_plan_follows_from_listing_and_settings_whatever_is_away_meanwhile(
    tokens: list[int], cuts: list[Cut], seq_len: int, segment_tokens: int, random: Random
) -> None:
    sources = [PlanSource(f"s{n}", "ready", *fake_set(f"s{n}"), count) for n, count in enumerate(tokens)]
    sources.append(PlanSource("q", "quarantined"))
    ordered = tuple(sorted(cuts, key=lambda cut: cut.windows))
    policy = replace(POLICY, seq_len=seq_len, segment_tokens=segment_tokens, cuts=ordered, hold_s=1e9)
    plan = plan_of()
    while not plan.ended:
        now = [
            replace(one, standing=random.choice(("ready", "ready", "cold", "pending")))
            for one in sources[:-1]
        ]
        complete = all(one.standing != "pending" for one in now)
        fresh = grow([*now, sources[-1]], plan, policy, complete=complete).entries
        plan = plan_of(*plan.entries, *fresh[: random.randint(1, 3)])  # killed behind one of them
    assert plan.entries == grow(sources, plan_of(), policy).entries
