"""What `stoker run` says of a daemon that ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.cli.pipeline.foreground import Child, how_it_ended


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


def test_its_last_words_are_what_went_wrong_and_is_not_told_as_an_event_already(tmp_path: Path) -> None:
    log = tmp_path / "stage_shard.log"
    well, wrong = "2026-11-20T12:00:00Z level=info daemon=x event=source_proven", "Traceback (most recent"
    lost = well.replace("info", "error").replace("source_proven", "events_unwritable")
    told = lost.replace("events_unwritable", "daemon_failed")
    log.write_text(f"{well}\n{wrong}\n{lost}\n{told}\n{well}\n")
    assert Child("stage_shard", log).last_words({"daemon_failed"}) == [wrong, lost]


def test_its_last_words_are_sought_at_the_end_of_a_long_log_alone(tmp_path: Path) -> None:
    log = tmp_path / "stage_shard.log"
    with log.open("wb") as stream:
        stream.truncate(64 << 30)  # more than any memory holds
        stream.seek(0, os.SEEK_END)
        stream.write(b"\nMemoryError\n")
    assert Child("stage_shard", log).last_words(())[-1] == "MemoryError"
