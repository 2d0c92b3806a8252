"""A corpus three times the hot disk, two epochs, through a few of the kills of `scripts/chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chaos_apart import chaos_apart

KILLS, LIMIT_S = 5, 600


@pytest.mark.root
@pytest.mark.timeout(LIMIT_S + 60)
def test_two_epochs_go_through_a_third_of_the_room_and_five_kills(tmp_path: Path) -> None:
    """The checks are those of chaos.scenarios.small_disk, with a 16 MB tmpfs."""
    found = chaos_apart("tiny-disk", KILLS, tmp_path, LIMIT_S)
    assert found["rounds"] == 1, "the run was over before the last kill"
    assert found["kills"] + found["skipped"] == KILLS
