"""A corpus larger than the hot disk, two epochs, through a few of the kills of `scripts/chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chaos_apart import chaos_apart

LIMIT_S = 600


@pytest.mark.root
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize(
    ("scenario", "kills"), [("least-disk", 2), pytest.param("tiny-disk", 5, marks=pytest.mark.long)]
)
def test_two_epochs_go_through_less_room_than_their_data_takes_and_through_kills(
    tmp_path: Path, scenario: str, kills: int
) -> None:
    """The checks are those of chaos.scenarios.small_disk."""
    found = chaos_apart(scenario, kills, tmp_path, LIMIT_S)
    assert found["rounds"] == 1, "the run was over before the last kill"
    assert found["kills"] + found["skipped"] == kills
