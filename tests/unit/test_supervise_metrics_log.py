"""The metrics log: rows beyond the resume step and torn tails go, everything else stays."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import pytest

from stoker.supervise.run import metrics_log
from stoker.supervise.run.metrics_log import MetricsLog, RowLog, cut_end


def row(step: int, timeline: int = 0, **fields: object) -> bytes:
    return json.dumps({"step": step, "timeline": timeline, **(fields or {"loss": 1.0})}).encode() + b"\n"


HISTORIES = {0: [(0, None)], 1: [(1, None), (0, 1)]}


@pytest.mark.parametrize(
    ("before", "timeline", "resume", "after"),
    [
        ([], 0, 0, []),
        ([row(1)], 0, 0, []),
        ([row(1), row(2), row(3)], 0, 2, [row(1), row(2)]),
        ([row(1), row(2), row(3)], 0, 3, [row(1), row(2), row(3)]),
        ([row(0, val_loss=3.0), row(1)], 0, 0, [row(0, val_loss=3.0)]),
        ([row(1), row(2), row(3)[:-5]], 0, 2, [row(1), row(2)]),
        ([row(1), row(2)[:-1]], 0, 2, [row(1)]),
        ([row(1), row(2), row(3), b"\0\0\0\0\n"], 0, 2, [row(1), row(2)]),
        # what earlier versions wrote for a held-out loss of nan, and what this one writes
        ([row(1), row(2, val_loss=math.nan)], 0, 2, [row(1)]),
        ([row(1), row(2), row(2, val_loss=None)], 0, 2, [row(1), row(2)]),
        # timeline 1 forked off at 1: what timeline 0 did after that is history and stays
        ([row(1), row(2), row(2, 1), row(3, 1)], 1, 2, [row(1), row(2), row(2, 1)]),
    ],
)
def test_opening_cuts_back_to_the_resume_step(
    tmp_path: Path, before: list[bytes], timeline: int, resume: int, after: list[bytes]
) -> None:
    path = tmp_path / "log" / "metrics.jsonl"
    if before:
        path.parent.mkdir()
        path.write_bytes(b"".join(before))
    MetricsLog(path, history=HISTORIES[timeline], resume_step=resume).close()
    assert path.read_bytes() == b"".join(after)


@pytest.mark.parametrize("block_bytes", [1, 40, 1 << 20])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], []),
        ([row(1), row(2), row(3), row(4, val_loss=1.0)], [row(1), row(2)]),
        ([row(1), row(2), row(3), row(4)[:-3]], [row(1), row(2)]),
        ([row(1), row(2)], [row(1), row(2)]),
        ([row(9), b"\0" * 100, row(3)], []),
        ([row(3)], []),
        ([row(3)[:-3]], []),
        ([b"\0" * 3000 + b"\n"], []),
        ([row(9, 1), row(1), row(1, 1), row(3)], [row(9, 1), row(1), row(1, 1)]),
    ],
)
def test_only_the_end_of_a_log_is_looked_at_and_cut(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block_bytes: int,
    before: list[bytes],
    after: list[bytes],
) -> None:
    monkeypatch.setattr(metrics_log, "CUT_BYTES", max(block_bytes, 2 * max(map(len, before), default=1)))
    path = tmp_path / "metrics.jsonl"
    cut_end(path, 0, 2)
    assert not path.exists()
    path.write_bytes(b"".join(before))
    cut_end(path, 0, 2)
    assert path.read_bytes() == b"".join(after)
    log = RowLog(path, 0)
    log.append({"step": 3, "loss": math.nan})
    log.close()
    assert path.read_bytes() == b"".join(after) + row(3, loss=None).replace(
        b'"timeline": 0, "loss": null', b'"loss": null, "timeline": 0'
    )


def test_a_long_log_is_cut_without_holding_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_log, "CUT_BYTES", 1 << 12)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(map(row, range(10_000))))
    size = path.stat().st_size
    tracemalloc.start()
    MetricsLog(path, history=[(0, None)], resume_step=9_000).close()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.read_bytes().endswith(row(9_000)) and peak < size / 2


def test_rows_are_appended_whole_and_evaluations_remembered(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, history=[(2, None), (0, 1)], resume_step=0)
    log.append({"step": 1, "loss": 0.1})
    assert not log.evaluated(1)
    log.append({"step": 1, "val_loss": 0.2})
    log.append({"step": 2, "val_loss": math.inf, "val_stderr": math.nan})
    assert log.evaluated(1) and not log.evaluated(2)  # the next launch evaluates it again
    log.sync()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "loss": 0.1, "timeline": 2},
        {"step": 1, "val_loss": 0.2, "timeline": 2},
        {"step": 2, "val_loss": None, "val_stderr": None, "timeline": 2},
    ]
    log.close()
    assert MetricsLog(path, history=[(2, None)], resume_step=1).evaluated(1)
    assert not MetricsLog(path, history=[(3, None)], resume_step=1).evaluated(1)


def test_an_evaluation_counts_on_from_a_fork_up_to_the_step_that_was_gone_back_to(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(row(0, val_loss=3.0) + row(10, val_loss=2.0) + row(20, val_loss=1.0))
    log = MetricsLog(path, history=[(1, None), (0, 10)], resume_step=10)
    assert [log.evaluated(step) for step in (0, 10, 20)] == [True, True, False]
