"""Following log/metrics.jsonl: which rows count, and what a cut or a step made again changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from stoker.supervise.run import step_rows
from stoker.supervise.run.step_rows import Piece, StepRows, rows_at

ONE = [(0, None)]


def row(step: int, loss: float | None = 1.0, timeline: int = 0, **more: Any) -> bytes:
    return json.dumps({"step": step, "loss": loss, "timeline": timeline, **more}).encode() + b"\n"


def write(path: Path, rows: Iterable[bytes], mode: str = "wb") -> None:
    with path.open(mode) as file:
        file.write(b"".join(rows))


def steps(piece: Piece) -> list[int]:
    return [one["step"] for one in piece.rows]


def all_of(reader: StepRows, history: Any = ONE) -> list[tuple[int, float]]:
    """What counts after all pieces, from an empty begin on."""
    found: list[tuple[int, float]] = []
    while True:
        piece = reader.read(history)
        found = [] if piece.is_anew else found
        found += [(one["step"], one["loss"]) for one in piece.rows]
        if piece.is_last:
            return found


def test_rows_come_once_as_the_log_grows_and_only_whole_ones_of_steps(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    reader = StepRows(log)
    assert reader.read(ONE) == Piece()
    first = [row(0), row(1)]
    write(log, [*first, b'{"step": 1, "val_loss": 2.0, "timeline": 0}\n', row(2, None), row(3)[:-5]])
    assert steps(reader.read(ONE)) == [0, 1, 2]
    assert steps(reader.read(ONE)) == []
    write(log, [row(3)[-5:], b"no json\n", row(4)], "ab")
    piece = reader.read(ONE)
    assert steps(piece) == [3, 4] and not piece.is_anew and piece.is_last


def test_a_large_log_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_rows, "PIECE_BYTES", 500)
    log = tmp_path / "metrics.jsonl"
    write(log, [*(row(step) for step in range(1, 100)), b"x" * 2000 + b"\n", row(100)])
    reader = StepRows(log)
    first = reader.read(ONE)
    assert first.is_anew and not first.is_last and 5 < len(first.rows) < 20
    assert [*steps(first), *(step for step, _ in all_of(reader))] == [*range(1, 101)]


def test_a_cut_log_is_read_anew_also_where_it_has_grown_past_the_cut(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    reader = StepRows(log)
    write(log, [row(step, 1.0) for step in (1, 2, 3)])
    assert len(all_of(reader)) == 3
    write(log, [row(1, 1.0), row(2, 5.0), row(3, 5.0), row(4, 5.0)])  # the same file
    assert all_of(reader) == [(1, 1.0), (2, 5.0), (3, 5.0), (4, 5.0)]
    other = tmp_path / "other"
    write(other, [row(1, 7.0)])
    other.rename(log)
    assert all_of(reader) == [(1, 7.0)]
    log.unlink()
    assert reader.read(ONE).is_anew and all_of(reader) == []


def test_steps_made_again_in_a_log_that_could_not_be_cut_count_once(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    reader = StepRows(log)
    write(log, [row(step, 1.0) for step in range(1, 11)])
    assert len(all_of(reader)) == 10
    write(log, [row(step, 2.0) for step in range(6, 12)], "ab")
    wanted = [*((step, 1.0) for step in range(1, 11)), (11, 2.0)]
    assert (all_of(reader), all_of(StepRows(log))) == (wanted[-1:], wanted)


def test_only_the_current_history_counts(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    reader = StepRows(log)
    write(log, [row(step, 1.0) for step in range(1, 11)])
    assert len(all_of(reader)) == 10
    write(log, [row(step, 2.0, timeline=1) for step in range(6, 9)], "ab")
    assert all_of(reader) == [], "another timeline's"
    forked = [(1, None), (0, 5)]
    assert all_of(reader, forked) == [*((s, 1.0) for s in range(1, 6)), *((s, 2.0) for s in range(6, 9))]


def test_the_rows_of_a_step_are_found_in_a_long_log_by_a_few_looks(tmp_path: Path) -> None:
    log, first = tmp_path / "metrics.jsonl", [row(step) for step in range(1, 401)]
    assert rows_at(log, 0, 1) == []
    second = [row(step, timeline=1, time="t" * (step % 90)) for step in range(200, 600)]
    evaluation = row(250, timeline=1, val_loss=2.0)
    write(log, [*first[:300], b'{"step": 30', b"\n", *first[300:], *second[:51], evaluation, *second[51:]])
    for step in range(1, 600):
        for timeline, steps_of in ((0, range(1, 401)), (1, range(200, 600))):
            found = [one["step"] for one in rows_at(log, timeline, step)]
            is_twice = (timeline, step) == (1, 250)
            assert found == [step] * (step in steps_of) * (1 + is_twice), (timeline, step)
    assert rows_at(log, 2, 5) == rows_at(log, 1, 600) == []
