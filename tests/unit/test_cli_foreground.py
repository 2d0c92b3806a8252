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


def test_its_last_words_are_what_went_wrong_not_what_went_well(tmp_path: Path) -> None:
    log = tmp_path / "stage_shard.log"
    well, wrong = "2026-11-20T12:00:00Z level=info daemon=x event=source_proven", "Traceback (most recent"
    log.write_text(f"{well}\n{wrong}\n{well}\n")
    assert Child("stage_shard", log).last_words() == [wrong]


def test_its_last_words_are_sought_at_the_end_of_a_long_log_alone(tmp_path: Path) -> None:
    log = tmp_path / "stage_shard.log"
    with log.open("wb") as stream:
        stream.truncate(64 << 30)  # more than any memory holds
        stream.seek(0, os.SEEK_END)
        stream.write(b"\nMemoryError\n")
    assert Child("stage_shard", log).last_words()[-1] == "MemoryError"
