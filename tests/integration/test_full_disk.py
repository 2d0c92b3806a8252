"""Disks that fill and drain while sets are built, a few seconds of what `scripts/chaos` does at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chaos_apart import chaos_apart

LIMIT_S = 300


@pytest.mark.root
def test_the_loop_pauses_on_full_disks_and_goes_on_by_itself(tmp_path: Path) -> None:
    """The checks are those of chaos.scenarios.full_disk, with a 24 MB tmpfs."""
    assert chaos_apart("full-disk-quick", 2, tmp_path, LIMIT_S)["rounds"] == 1
