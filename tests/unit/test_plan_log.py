"""The plan log: strict, chained, append-only, and whole after any crash."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crash import Crash, acknowledge, check_crashes
from stoker.plan.log import End, Passed, PlanWriter, Segment, read_plan, restore, segment_key
from stoker.store.errors import DataError, UnknownFormat
from stoker.store.log import GENESIS
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
        ("n", 7), ("n", True), ("epoch", -1), ("windows", 1.5), ("windows", None), ("seq_len", 0),
        ("sets", []), ("sets", [["k", "m"]]), ("key", "ab"), ("permutation", "feistel6-v1"),
    ],
)  # fmt: skip
def test_an_entry_that_makes_no_sense_is_refused(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "plan.jsonl"
    body = {**segment(0, 5).body(), "prev": "0" * 64, field: value}
    path.write_text(json.dumps(body) + "\n")
    with pytest.raises(DataError, match="entry 0"):
        read_plan(path)


def test_an_entry_of_an_unknown_version_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "plan.jsonl"
    path.write_text(json.dumps({**segment(0, 5).body(), "prev": "0" * 64, "v": 3}) + "\n")
    known = r"plan\.jsonl, line 1, is of format version 3, this Stoker reads version 1 and 2"
    with pytest.raises(UnknownFormat, match=known):
        read_plan(path)


def test_the_writer_takes_only_the_next_number(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="n=1 cannot follow 0"):
        PlanWriter(tmp_path / "plan.jsonl").append(ENTRIES[1])


def test_the_plan_of_another_run_is_refused_and_an_old_line_is_anybodys(tmp_path: Path) -> None:
    path = tmp_path / "plan.jsonl"
    writer = PlanWriter(path, "run-a")
    writer.append(ENTRIES[0])  # as of old: without a run id
    writer.append(ENTRIES[1])
    writer.append(replace(segment(2, 10), run_id="run-a"))

    assert read_plan(path, "run-a") == read_plan(path)
    with pytest.raises(DataError, match=r"entry 2, line 3: .*run-a, .*run-b") as refused:
        read_plan(path, "run-b")
    assert str(path) in str(refused.value)
    with pytest.raises(DataError, match="run-b"):
        PlanWriter(path, "run-b")
    with pytest.raises(DataError, match=r"plan\.jsonl: entry 3: .*run-b, .*run-a"):
        writer.append(replace(segment(3, 10), run_id="run-b"))
    assert len(read_plan(path).entries) == 3


def test_a_line_keeps_its_run_id_and_an_old_one_its_bytes(tmp_path: Path) -> None:
    mine = replace(segment(0, 10), run_id="run-a")
    PlanWriter(tmp_path / "new.jsonl").append(mine)
    assert read_plan(tmp_path / "new.jsonl").entries == (mine,)
    assert "run_id" not in segment(0, 10).body()


@pytest.mark.parametrize(
    "wrong", [("ab", "cd"), ("AB" * 32, "cd" * 32), ("ab" * 33, "cd" * 31), ("ab" * 32, 7)]
)
def test_a_set_is_two_sha256_in_hex(wrong: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="not a sha256"):
        replace(segment(0, 10), sets=[wrong])


def test_a_plan_of_10000_sets_takes_320_bytes_a_set_and_a_little_for_each_entry(tmp_path: Path) -> None:
    path, sets, entries = tmp_path / "plan.jsonl", 10_000, 100
    named = [[hashlib.sha256(b"%d" % i).hexdigest()] * 2 for i in range(sets)]
    head = GENESIS
    with path.open("wb") as file:  # by hand: so many fsyncs take their time
        for n in range(entries):
            part = named[n * sets // entries : (n + 1) * sets // entries]
            body = {**segment(n, 10).body(), "sets": part, "prev": head}
            line = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
            head = hashlib.sha256(line).hexdigest()
            file.write(line + b"\n")
    # In a process of its own: the table of interned strings grows by leaps, with those of all tests before.
    code = f"""
import tracemalloc
from pathlib import Path
from stoker.plan.log import PlanWriter
tracemalloc.start()
writer = PlanWriter(Path({str(path)!r}))
print(sum(len(entry.sets) for entry in writer.plan.segments), *tracemalloc.get_traced_memory())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found, held, peak = map(int, done.stdout.split())
    assert found == sets
    assert held < 320 * sets + 800 * entries + (256 << 10)
    assert peak < held + (1 << 20)


def test_appends_carry_the_sums_on(tmp_path: Path) -> None:
    writer = PlanWriter(tmp_path / "plan.jsonl")
    for n in range(4):
        plan = writer.append(segment(n, n + 1))
    assert plan.starts == read_plan(tmp_path / "plan.jsonl").starts == (0, 1, 3, 6, 10)
    assert all(isinstance(entry, Segment) for entry in plan.entries)


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
    assert restore(PlanWriter(tmp_path / "plan.jsonl"), read_plan(tmp_path / "copy.jsonl")) == 0


def test_a_fork_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "copy.jsonl", 2)
    writer = PlanWriter(tmp_path / "plan.jsonl")
    writer.append(ENTRIES[0])
    writer.append(Passed(1, "b.parquet", "missing"))
    with pytest.raises(DataError, match="line 2 differs"):
        restore(writer, read_plan(tmp_path / "copy.jsonl"))
