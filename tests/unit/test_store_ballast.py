"""Room kept for a full disk: real blocks, given back whole, made again only where there is room to spare."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.kit.disk_reserve import Reserve
from stoker.store.ballast import Ballast
from support.mounts import WHY_NOT, apart

MIB = 1 << 20


def test_it_takes_real_blocks_and_gives_them_back(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path / "ballast", MIB)
    assert ballast.hold() and ballast.held
    assert os.stat(ballast.path).st_blocks * 512 >= MIB
    assert ballast.give_back() and not ballast.held and not ballast.path.exists()
    assert not ballast.give_back()


def test_one_that_a_crash_cut_short_is_filled_up(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path / "ballast", MIB)
    ballast.path.write_bytes(b"")
    os.truncate(ballast.path, MIB)  # all hole
    assert ballast.hold()
    assert os.stat(ballast.path).st_blocks * 512 >= MIB


def test_a_directory_that_is_not_there_holds_nothing_and_stops_nothing(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path / "away" / "ballast", MIB)
    assert not ballast.hold() and not ballast.give_back()


class Alerts:
    def __init__(self) -> None:
        self.words: list[str] = []

    def record(self, event: str, **_: Any) -> None:
        self.words.append(event)


def test_a_reserve_is_given_back_once_and_made_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(bytes=100 * MIB)
    monkeypatch.setattr(Ballast, "_space", lambda self: (free.bytes, 200 * MIB))
    monkeypatch.setattr("stoker.kit.disk_reserve.LOOK_EVERY_S", 0.0)
    told: Any = Alerts()
    reserve = Reserve(Ballast(tmp_path / "ballast", MIB), told)
    reserve.look()
    assert not reserve.spent and told.words == []
    free.bytes = 0
    reserve.look()
    reserve.look()
    assert reserve.spent and told.words == ["state_disk_full"]
    assert not (tmp_path / "ballast").exists()
    assert not reserve.give_back("a write failed")
    free.bytes = 3 * MIB  # not enough to spare
    reserve.look()
    assert reserve.spent
    free.bytes = 4 * MIB
    reserve.look()
    assert not reserve.spent and (tmp_path / "ballast").exists()
    assert told.words == ["state_disk_full", "state_disk_has_room"]


FILL = """
import errno, os, sys
from pathlib import Path
from stoker.store.ballast import Ballast
from stoker.store.files import write_atomic
from support.mounts import mount_small

place = Path(sys.argv[1])
mount_small(place, 8 << 20)
ballast = Ballast(place / "ballast", 1 << 20)
assert ballast.hold()
with open(place / "filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(b"x" * 4096)
    except OSError as error:
        assert error.errno == errno.ENOSPC
assert ballast.free_bytes() == 0 and not ballast.has_room()
try:
    write_atomic(place / "record", b"y" * 8192)
    raise SystemExit("the disk was not full")
except OSError as error:
    assert error.errno == errno.ENOSPC
assert ballast.give_back()
for number in range(100):
    write_atomic(place / f"record-{number}", b"y" * 8192)
assert not ballast.hold(), "it must not take the room that records need"
os.unlink(place / "filler")
assert ballast.hold()
"""


def test_on_a_full_tmpfs_records_go_where_it_was(tmp_path: Path) -> None:
    command = apart([sys.executable, "-c", FILL, str(tmp_path / "small")])
    if command is None:
        pytest.skip(WHY_NOT)
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
