"""What `stoker run` says of a daemon that ended."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.cli.pipeline.events import is_due
from stoker.cli.pipeline.run import Child, Foreground, how_it_ended, summary_lines
from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from support.pipelines import make_pipeline


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (137, "was killed by SIGKILL"),
        (78, "ended with exit code 78"),
        (128, "ended with exit code 128"),
        (255, "ended with exit code 255"),
    ],
)
def test_an_end_is_told_in_words(code: int, told: str) -> None:
    assert how_it_ended(code) == told


def test_its_last_words_are_what_went_wrong(tmp_path: Path) -> None:
    log = tmp_path / "stage_shard.log"
    well, wrong = "2026-11-20T12:00:00Z level=info daemon=x event=source_proven", "Traceback (most recent"
    lost = well.replace("info", "error").replace("source_proven", "events_unwritable")
    log.write_text(f"{well}\n{wrong}\n{lost}\n{well}\n")
    assert Child("stage_shard", log).last_words() == [wrong, lost]


def test_its_last_words_are_sought_at_the_end_of_a_long_log_alone(tmp_path: Path) -> None:
    log = tmp_path / "stage_shard.log"
    with log.open("wb") as stream:
        stream.truncate(64 << 30)  # more than any memory holds
        stream.seek(0, os.SEEK_END)
        stream.write(b"\nMemoryError\n")
    assert Child("stage_shard", log).last_words()[-1] == "MemoryError"


def test_a_run_that_is_halted_ends_the_wait_for_its_end(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path).pipeline
    pipeline.runtime.create()
    foreground = Foreground(pipeline, cast(Any, SimpleNamespace(say=print)), names=(TRAIN_SUPERVISOR,))
    about = {"running": True, "pid": 7, "body": {"pid": 7, "halted": {"reason": "x"}}}
    assert foreground.is_halted({TRAIN_SUPERVISOR: about})
    assert not foreground.is_halted({TRAIN_SUPERVISOR: about | {"pid": 8}}), "of an earlier process"
    assert not foreground.is_halted({TRAIN_SUPERVISOR: about | {"body": {"pid": 7, "halted": None}}})


@pytest.mark.parametrize(
    ("daemon", "was_ready", "ended", "ends_with"),
    [
        (STAGE_SHARD, True, (78, None), 78),
        (STAGE_SHARD, False, (69, None), 69),
        (STAGE_SHARD, False, (75, None), 75),  # another one has its lock
        (STAGE_SHARD, True, (69, None), None),
        (STAGE_SHARD, True, (75, None), None),
        (STAGE_SHARD, False, (137, None), None),
        (TRAIN_SUPERVISOR, True, (65, "running"), 65),
        (TRAIN_SUPERVISOR, True, (70, "failed"), 70),
        (TRAIN_SUPERVISOR, True, (70, "running"), None),
    ],
)
def test_a_daemon_that_would_fail_again_ends_all_and_another_is_started_again(
    tmp_path: Path, daemon: str, was_ready: bool, ended: tuple[int, str | None], ends_with: int | None
) -> None:
    pipeline = make_pipeline(tmp_path).pipeline
    pipeline.runtime.create()
    foreground = Foreground(pipeline, cast(Any, SimpleNamespace(say=lambda *_: None)), names=(daemon,))
    (child,) = foreground.children
    child.log.touch()
    child.was_ready = was_ready
    foreground.ended(child, *ended)
    assert foreground.stopping == ends_with
    assert (child.start_at > 0.0) is (ends_with is None)


def test_a_summary_says_why_a_run_is_halted_or_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(**body: Any) -> list[str]:
        status = {TRAIN_SUPERVISOR: {"body": body}}
        monkeypatch.setattr("stoker.cli.pipeline.run.read_status", lambda _: status)
        return list(summary_lines(pipeline))

    pipeline = make_pipeline(tmp_path).pipeline
    halted = {"reason": "2 launches in a row brought nothing", "remedy": "do that"}
    assert said(halted=halted) == [
        "halted      2 launches in a row brought nothing",
        "remedy      do that",
        "no checkpoint yet",
    ]
    assert said(finished="early_stop")[0] == "finished    the held-out loss improves no more"


@pytest.mark.parametrize(
    ("text", "after_s", "told"),
    [
        ("training: step 5 of 60, loss 6.7100", 0.0, False),
        ("training: step 6 of 60, loss 6.5", 59.0, False),
        ("training: step 1,006 of 60, loss 6.5", 60.0, True),
        ("saving: step 6 of 60, loss 6.5", 4.0, False),
        ("saving: step 6 of 60, loss 6.5", 5.0, True),
        ("", 99.0, False),
    ],
)
def test_a_status_line_is_printed_once_a_minute_where_only_its_figures_changed(
    text: str, after_s: float, told: bool
) -> None:
    assert is_due(text, 7.0 + after_s, "training: step 5 of 60, loss 6.7100", 7.0) is told
    assert is_due("training: step 5", 0.0, "", 0.0)
