"""The samples on disk: rows below their header, rotated in little room, whatever a crash left."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stoker.observe.machine import Pressure
from stoker.observe.samples import Samples, sample
from stoker.store.errors import StorageError


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_row_has_the_roles_disks_waits_and_gpus_and_leaves_open_what_is_not_known() -> None:
    role = {"count": 1, "rss_bytes": 7, "pss_bytes": 5, "swap_bytes": 0}
    none = {"count": 0, "rss_bytes": 0, "pss_bytes": None, "swap_bytes": 0}
    status: dict[str, Any] = {
        "processes": {"daemon": role, "guard": none},
        "headroom_bytes": 9,
        "disks": {"state": {"free_bytes": 3}, "hot": {"trouble": "away"}},
    }
    row = sample("2026-11-20T12:00:00Z", 60.4, status, None)
    assert list(row)[:3] == ["time", "elapsed_s", "daemon_rss_bytes"] and row["elapsed_s"] == 60
    assert (row["daemon_pss_bytes"], row["guard_pss_bytes"], row["processes"]) == (5, None, 1)
    assert (row["headroom_bytes"], row["state_free_bytes"], row["hot_free_bytes"]) == (9, 3, None)
    assert [row[name] for name in list(row)[-5:]] == [None] * 5

    gpus = {"up": True, "memory_used_bytes": {"0": 10, "1": 5}, "utilization_ratio": {"0": 0.5, "1": None}}
    row = sample("", 0.0, status | {"gpus": gpus}, Pressure(2.0, 1.0, 0.25, 0.0, None))
    assert (row["cpu_some"], row["io_some"], row["memory_some"]) == (0.25, 0.0, None)
    assert (row["gpu_memory_used_bytes"], row["gpu_utilization_ratio"]) == (15, 0.5)


def test_rows_go_below_one_header_over_restarts_and_after_a_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "daemon.csv"
    Samples(file).add({"a": 1, "b": None})
    Samples(file).add({"a": 2, "b": 0.5})
    assert file.read_bytes() == b"a,b\n1,\n2,0.5\n"
    with file.open("ab") as stream:
        stream.write(b"3,")
    Samples(file).add({"a": 4, "b": 4})
    assert file.read_bytes().endswith(b"\n3,\n4,4\n")
    assert file.stat().st_mode & 0o777 == 0o640


def test_other_columns_begin_a_new_file_and_the_old_one_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "daemon.csv"
    Samples(file).add({"a": 1})
    Samples(file).add({"a": 2, "warm": 3})
    assert file.read_bytes() == b"a,warm\n2,3\n"
    assert (tmp_path / "daemon.csv.1").read_bytes() == b"a\n1\n"


def test_old_rows_thin_out_in_the_room_that_there_is_and_none_is_out_of_order(tmp_path: Path) -> None:
    file, older, room = tmp_path / "daemon.csv", tmp_path / "daemon.csv.1", 2000
    samples = Samples(file, room)
    for minute in range(2000):
        samples.add({"minute": f"{minute:08d}"})
        if older.exists() and minute % 50 == 0:
            assert older.stat().st_size <= room >= file.stat().st_size
    kept = [int(row["minute"]) for each in (older, file) for row in rows(each)]
    assert kept == sorted(set(kept)) and kept[-1] == 1999
    apart = [after - before for before, after in pairwise(kept)]
    assert kept[0] < 200 and apart[-1] == 1 and apart == sorted(apart, reverse=True)


def test_a_place_that_cannot_be_written_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Samples(tmp_path / "away" / "daemon.csv").add({"a": 1})
    (tmp_path / "daemon.csv").mkdir()
    with pytest.raises(StorageError, match=r"daemon\.csv"):
        Samples(tmp_path / "daemon.csv").add({"a": 1})
