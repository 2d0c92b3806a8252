"""The plan log: strict, chained, append-only, and whole after any crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crash import Crash, acknowledge, check_crashes
from stoker.plan.log import End, Passed, PlanWriter, read_plan, segment_key
from stoker.plan.reconciliation import reconcile, restore
from stoker.store.errors import DataError
from support.plan_data import segment

ENTRIES = (segment(0, 364), Passed(1, "b.parquet", "quarantined"), segment(2, 10), End(3))


def write(path: Path, count: int = len(ENTRIES)) -> None:
    writer = PlanWriter(path)
    for entry in ENTRIES[:count]:
        writer.append(entry)


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "plan.jsonl")

    plan = read_plan(tmp_path / "plan.jsonl")

    assert plan.entries == ENTRIES
    assert plan.starts == (0, 364, 364, 374, 374)
    assert plan.ended
    assert plan.head == plan.hashes[-1]


def test_a_missing_file_is_the_empty_plan(tmp_path: Path) -> None:
    plan = read_plan(tmp_path / "plan.jsonl")
    assert (plan.entries, plan.windows, plan.ended) == ((), 0, False)


def test_a_line_has_the_fields_of_the_format(tmp_path: Path) -> None:
    write(tmp_path / "plan.jsonl")
    first, passed, *_ = map(json.loads, (tmp_path / "plan.jsonl").read_text().splitlines())
    assert set(first) == {
        "v", "n", "epoch", "sets", "seq_len", "windows", "tail_tokens", "key", "permutation", "prev",
    }  # fmt: skip
    assert first["permutation"] == "feistel8-v1"
    assert passed["passed"] == ["b.parquet", "quarantined"]


def test_a_torn_last_line_is_no_part_of_the_plan_and_the_next_append_is_not_harmed(tmp_path: Path) -> None:
    path = tmp_path / "plan.jsonl"
    write(path, 3)
    whole = path.read_bytes()
    for cut in (1, 5, 40):
        path.write_bytes(whole[:-1][:-cut])
        assert read_plan(path).entries == ENTRIES[:2]
        PlanWriter(path).append(ENTRIES[2])
        assert read_plan(path).entries == ENTRIES[:3]


@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_changed_line_before_the_last_is_damage_and_named(tmp_path: Path, line: int) -> None:
    path = tmp_path / "plan.jsonl"
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"v":1', b'"v":1,"x":0')
    path.write_bytes(b"".join(lines))

    with pytest.raises(DataError, match=rf"line {line + 2}\b"):
        read_plan(path)
    with pytest.raises(DataError):
        PlanWriter(path)


def test_a_lost_line_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "plan.jsonl"
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    with pytest.raises(DataError, match="line 2"):
        read_plan(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 7), ("n", True), ("epoch", -1), ("windows", 1.5), ("windows", None), ("seq_len", 0), ("v", 2),
        ("sets", []), ("sets", [["k", "m"]]), ("key", "ab"), ("permutation", "feistel6-v1"),
    ],
)  # fmt: skip
def test_an_entry_that_makes_no_sense_is_refused(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "plan.jsonl"
    body = {**segment(0, 5).body(), "prev": "0" * 64, field: value}
    path.write_text(json.dumps(body) + "\n")
    with pytest.raises(DataError, match="entry 0"):
        read_plan(path)


def test_the_writer_takes_only_the_next_number(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="n=1 cannot follow 0"):
        PlanWriter(tmp_path / "plan.jsonl").append(ENTRIES[1])


def test_keys_differ_by_seed_and_entry_and_stay_what_they_are() -> None:
    assert len({segment_key(seed, n) for seed in range(3) for n in range(3)}) == 9
    assert segment_key(1, 0) == "5aaf1e183f1faf12c327dc2fb8c223022f04684c61fc34533bff62e7e572c776"


def test_an_append_survives_every_crash(tmp_path: Path) -> None:
    def prepare(root: Path) -> None:
        write(root / "plan.jsonl", 1)

    def append(root: Path) -> None:
        writer = PlanWriter(root / "plan.jsonl")
        for entry in ENTRIES[1:3]:
            writer.append(entry)
            acknowledge(entry.n)

    def invariant(root: Path, crash: Crash) -> None:
        entries = read_plan(root / "plan.jsonl").entries
        assert entries == ENTRIES[: len(entries)]
        assert len(entries) >= 1 + len(crash.acknowledged)
        if len(entries) < 3:  # the next append continues, whatever is torn
            PlanWriter(root / "plan.jsonl").append(ENTRIES[len(entries)])
            assert read_plan(root / "plan.jsonl").entries == ENTRIES[: len(entries) + 1]

    report = check_crashes(append, lambda root: None, invariant, prepare=prepare)
    assert report.exhaustive


def test_a_plan_that_lost_its_end_gets_it_back_from_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "copy.jsonl")
    write(tmp_path / "plan.jsonl", 2)
    writer = PlanWriter(tmp_path / "plan.jsonl")

    assert restore(writer, read_plan(tmp_path / "copy.jsonl")) == 2

    assert (tmp_path / "plan.jsonl").read_bytes() == (tmp_path / "copy.jsonl").read_bytes()


def test_a_plan_that_went_on_since_the_checkpoint_stays(tmp_path: Path) -> None:
    write(tmp_path / "copy.jsonl", 2)
    write(tmp_path / "plan.jsonl")
    assert reconcile(read_plan(tmp_path / "plan.jsonl"), read_plan(tmp_path / "copy.jsonl")) == ()


def test_a_fork_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "copy.jsonl", 2)
    writer = PlanWriter(tmp_path / "plan.jsonl")
    writer.append(ENTRIES[0])
    writer.append(Passed(1, "b.parquet", "missing"))
    with pytest.raises(DataError, match="entry 1 differs"):
        restore(writer, read_plan(tmp_path / "copy.jsonl"))
