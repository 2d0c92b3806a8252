"""Room kept for a full disk: real blocks, given back whole, made again only where there is room to spare."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.kit.context import Reserve
from support.mounts import WHY_NOT, apart

MIB = 1 << 20


class Alerts:
    def __init__(self) -> None:
        self.words: list[str] = []

    def record(self, event: str, **_: Any) -> None:
        self.words.append(event)


def reserve_at(path: Path, alerts: Alerts | None = None) -> Reserve:
    events: Any = alerts or Alerts()
    return Reserve(path, events, MIB)


def test_it_takes_real_blocks_and_gives_them_back(tmp_path: Path) -> None:
    reserve = reserve_at(tmp_path / "reserve")
    assert reserve.held
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= MIB
    assert reserve.give_back("full") and not reserve.held and not (tmp_path / "reserve").exists()
    assert not reserve.give_back("full")


def test_one_that_a_crash_cut_short_is_filled_up(tmp_path: Path) -> None:
    file = tmp_path / "reserve"
    file.write_bytes(b"")
    os.truncate(file, MIB)  # all hole
    assert reserve_at(file).held
    assert file.stat().st_blocks * 512 >= MIB


def test_a_directory_that_is_not_there_holds_nothing_and_stops_nothing(tmp_path: Path) -> None:
    reserve = reserve_at(tmp_path / "away" / "reserve")
    assert not reserve.held and not reserve.give_back("full")


def test_a_reserve_is_given_back_once_and_made_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(bytes=100 * MIB)
    monkeypatch.setattr(Reserve, "_space", lambda self: (free.bytes, 200 * MIB))
    told = Alerts()
    reserve = reserve_at(tmp_path / "reserve", told)
    reserve.refresh()
    assert not reserve.spent and told.words == []
    free.bytes = 0
    reserve.refresh()
    reserve.refresh()
    assert reserve.spent and told.words == ["state_disk_full"]
    assert not (tmp_path / "reserve").exists()
    assert not reserve.give_back("a write failed")
    free.bytes = 3 * MIB  # not enough to spare
    reserve.refresh()
    assert reserve.spent
    free.bytes = 4 * MIB
    reserve.refresh()
    assert not reserve.spent and (tmp_path / "reserve").exists()
    assert told.words == ["state_disk_full", "state_disk_has_room"]


FILL = """
import errno, os, sys
from pathlib import Path
from types import SimpleNamespace
from stoker.kit.context import Reserve
from stoker.store.files import write_atomic
from support.mounts import mount_small

place = Path(sys.argv[1])
mount_small(place, 8 << 20)
events = SimpleNamespace(record=lambda *args, **fields: None)
reserve = Reserve(place / "reserve", events, 1 << 20)
assert reserve.held
with open(place / "filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(b"x" * 4096)
    except OSError as error:
        assert error.errno == errno.ENOSPC
try:
    write_atomic(place / "record", b"y" * 8192)
    raise SystemExit("the disk was not full")
except OSError as error:
    assert error.errno == errno.ENOSPC
reserve.refresh()
assert reserve.spent
for number in range(100):
    write_atomic(place / f"record-{number}", b"y" * 8192)
reserve.refresh()
assert reserve.spent and not reserve.held, "it must not take the room that records need"
os.unlink(place / "filler")
reserve.refresh()
assert reserve.held
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
