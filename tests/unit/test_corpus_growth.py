"""What a build is told that needs more room than it claimed: a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.corpus.staging.disk_contents import STEP_BYTES, Growth, decide_growth

MIB = 1 << 20
# Expected to take 100 MiB and come to the end of that, on a disk with 1000 MiB above the floor.
AT_ITS_CLAIM = Growth(
    expected=100 * MIB,
    claimed=100 * MIB,
    written=98 * MIB,
    needed=104 * MIB,
    room=900 * MIB,
    floor_room=950 * MIB,
    most=1000 * MIB,
)
FAR_BEYOND = replace(AT_ITS_CLAIM, claimed=400 * MIB, written=398 * MIB, needed=404 * MIB, room=500 * MIB)


@pytest.mark.parametrize(
    ("growth", "told"),
    [
        pytest.param(AT_ITS_CLAIM, 200 * MIB, id="with room the claim is doubled"),
        pytest.param(
            replace(AT_ITS_CLAIM, claimed=MIB, written=0, needed=2 * MIB),
            MIB + STEP_BYTES,
            id="a small claim is raised by a step",
        ),
        pytest.param(
            replace(AT_ITS_CLAIM, room=20 * MIB, floor_room=40 * MIB),
            138 * MIB,
            id="an estimate that errs as estimates do may go into the floor",
        ),
        pytest.param(
            replace(AT_ITS_CLAIM, room=-MIB, floor_room=500 * MIB),
            200 * MIB,
            id="but no further than twice the estimate",
        ),
        pytest.param(
            replace(AT_ITS_CLAIM, room=-MIB, floor_room=MIB),
            None,
            id="an estimate that errs as estimates do convicts no file, however full the disk",
        ),
        pytest.param(FAR_BEYOND, 800 * MIB, id="far beyond the estimate, with room above the floor"),
        pytest.param(
            replace(FAR_BEYOND, room=50 * MIB),
            448 * MIB,
            id="no more than there is above the floor",
        ),
        pytest.param(
            replace(FAR_BEYOND, room=5 * MIB),
            None,
            id="without room there it is set back while others may leave",
        ),
        pytest.param(
            replace(FAR_BEYOND, room=5 * MIB, floor_room=2000 * MIB),
            None,
            id="the floor is not for it",
        ),
        pytest.param(
            replace(FAR_BEYOND, room=5 * MIB, most=600 * MIB),
            "too large",
            id="hot could never hold it",
        ),
        pytest.param(
            replace(FAR_BEYOND, room=50 * MIB, most=420 * MIB),
            448 * MIB,
            id="who has room is not judged",
        ),
    ],
)
def test_a_build_at_the_end_of_its_claim_is_told(growth: Growth, told: object) -> None:
    granted = decide_growth(growth)
    assert ("too large" if granted is None and growth.is_hopeless else granted) == told
