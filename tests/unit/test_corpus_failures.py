"""Decisions after failures: what the evidence makes of an end, the memory ladder, full disks."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from stoker.corpus.schedule.outcome import (
    CLIMB_AFTER_S,
    FULL_BYTES,
    READ_ROWS,
    REST_S,
    SCARCE_BYTES,
    SMALLEST,
    Attempt,
    Evidence,
    Ladder,
    judge,
)
from stoker.kit.workers.parent import WorkerExit
from stoker.observe.ledger import ENOUGH_BYTES, Disk, has_room
from stoker.observe.machine import MemoryFacts, MemoryWatch

GIB, MIB = 1 << 30, 1 << 20


def killed(signum: int) -> WorkerExit:
    return WorkerExit("killed", None, signum, None, None, 0)


def failed(code: int, kind: str = "OSError", errno: int | None = None) -> WorkerExit:
    error = {"type": kind, "message": "", "exit_code": code, "errno": errno}
    return WorkerExit("failed", code, None, None, error, 0)


@pytest.mark.parametrize(
    ("end", "evidence", "kind"),
    [
        (killed(signal.SIGKILL), Evidence(), "killed"),
        (killed(signal.SIGKILL), Evidence(oom_killed=True), "out_of_memory"),
        (killed(signal.SIGSEGV), Evidence(oom_killed=True), "died"),
        (killed(signal.SIGABRT), Evidence(headroom_bytes=SCARCE_BYTES - 1), "out_of_memory"),
        (killed(signal.SIGABRT), Evidence(headroom_bytes=SCARCE_BYTES), "died"),
        (killed(signal.SIGSEGV), Evidence(headroom_bytes=0), "died"),
        (failed(74), Evidence(free_bytes=FULL_BYTES), "storage"),
        (failed(74), Evidence(free_bytes=0), "disk_full"),
        (failed(70, "ValueError"), Evidence(free_bytes=0), "disk_full"),
        (failed(65, "DataError"), Evidence(free_bytes=0), "died"),
        (failed(75, "LockHeld"), Evidence(free_bytes=0), "again"),
    ],
)
def test_the_machines_evidence_decides_before_the_file_is_suspected(
    end: WorkerExit, evidence: Evidence, kind: str
) -> None:
    assert judge(end, evidence).kind == kind


def test_the_ladder_makes_batches_smaller_then_builders_fewer_then_rests() -> None:
    ladder, seen = Ladder(), []
    for second in range(10):
        seen.append((READ_ROWS[ladder.rows], ladder.builders(8)))
        if ladder.paused:
            break
        ladder = ladder.down(ladder.step, 8, float(second))
    assert seen == [(250, 8), (60, 8), (15, 8), (15, 4), (15, 2), (15, 1), (15, 0)]


def test_what_began_on_an_earlier_rung_says_nothing_about_this_one() -> None:
    ladder = Ladder().down(0, 4, 1.0)
    assert ladder.down(0, 4, 2.0).step == 1  # killed in the same minute, begun before
    assert ladder.down(1, 4, 2.0).step == 2


def test_the_ladder_goes_up_slowly() -> None:
    ladder = Ladder(step=2, since=100.0)
    assert ladder.succeeded(99.0 + CLIMB_AFTER_S) == ladder
    up = ladder.succeeded(100.0 + CLIMB_AFTER_S)
    assert up == Ladder(step=1, since=100.0 + CLIMB_AFTER_S)
    assert up.succeeded(101.0 + CLIMB_AFTER_S) == up, "one rung at a time"
    assert Ladder().succeeded(1e9) == Ladder()


def test_a_pause_ends_with_headroom_and_not_at_once() -> None:
    paused = Ladder(step=2, since=100.0, paused=True)
    assert paused.rested(GIB, 640 * MIB, 100.0 + REST_S / 2).paused
    assert paused.rested(639 * MIB, 640 * MIB, 1000.0).paused
    rested = paused.rested(640 * MIB, 640 * MIB, 100.0 + REST_S)
    assert not rested.paused and rested.step == 2, "it goes on at the bottom"
    assert paused.succeeded(1e9).paused and paused.down(2, 4, 1e9).paused


@pytest.mark.parametrize(
    ("attempt", "blamed"),
    [
        (Attempt(SMALLEST, alone=True, headroom_bytes=GIB + 1), True),
        (Attempt(SMALLEST, alone=True, headroom_bytes=GIB), False),
        (Attempt(SMALLEST, alone=False, headroom_bytes=9 * GIB), False),
        (Attempt(0, alone=True, headroom_bytes=9 * GIB), False),
    ],
)
def test_a_file_is_blamed_only_alone_in_the_smallest_batches_with_memory_to_spare(
    attempt: Attempt, blamed: bool
) -> None:
    assert attempt.is_blamed(GIB) is blamed


def test_writers_go_on_when_statvfs_shows_room_and_on_a_small_disk_little_is_enough() -> None:
    for free, is_enough in ((ENOUGH_BYTES - 1, False), (ENOUGH_BYTES, True), (GIB, True)):
        assert has_room(Disk(1, 1000 * GIB, free)) is is_enough
    assert has_room(Disk(1, 64 * MIB, 2 * MIB))
    assert not has_room(None), "nothing is known of it now"


def fake_proc(root: Path, cgroup: str, mountinfo: str) -> Path:
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable:    4194304 kB\n")
    (proc / "vmstat").write_text("nr_free_pages 1\noom_kill 5\n")
    (proc / "self/cgroup").write_text(cgroup)
    (proc / "self/mountinfo").write_text(mountinfo)
    return proc


def test_headroom_is_the_least_of_the_machine_and_every_cgroup_above(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    unit = top / "system.slice" / "stoker.service"
    unit.mkdir(parents=True)
    proc = fake_proc(
        tmp_path,
        "1:name=systemd:/elsewhere\n0::/system.slice/stoker.service\n",
        f"30 20 0:26 / {top} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
    )
    assert MemoryWatch(proc).sample() == MemoryFacts(4 * GIB, 5)
    assert MemoryWatch(proc).tree_kills() == 5, "the machine's, where no group counts"
    for group, most, used in ((unit, "max", 1), (unit.parent, str(2 * GIB), 1 * GIB)):
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.events").write_text("low 0\nhigh 2\nmax 9\noom 1\noom_kill 1\n")
        (group / "memory.stat").write_text(f"anon 5\ninactive_file {256 * MIB}\nactive_file 0\n")
    facts = MemoryWatch(proc).sample()
    assert facts.headroom_bytes == GIB + 256 * MIB, "cache is given back before anybody is killed"
    assert facts.oom_kills == 5 + 1 + 1, "the machine's, and those of each group"
    (unit / "memory.events").write_text("oom_kill 3\n")
    assert MemoryWatch(proc).tree_kills() == 3, "those below our own group"


def test_version_1_is_read_too_and_no_limit_is_none(tmp_path: Path) -> None:
    top = tmp_path / "memory"
    unit = top / "docker" / "abc"
    unit.mkdir(parents=True)
    proc = fake_proc(
        tmp_path,
        "4:memory,blkio:/docker/abc\n0::/\n",
        f"31 20 0:27 / {top} rw shared:9 - cgroup cgroup rw,memory,blkio\n",
    )
    for group, most, used in ((unit, GIB, 900 * MIB), (top, (1 << 63) - 4096, 8 * GIB)):
        (group / "memory.limit_in_bytes").write_text(f"{most}\n")
        (group / "memory.usage_in_bytes").write_text(f"{used}\n")
        (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
        (group / "memory.stat").write_text(f"cache 1\ntotal_inactive_file {100 * MIB}\n")
    facts = MemoryWatch(proc).sample()
    assert facts.headroom_bytes == 224 * MIB
    assert facts.oom_kills == 5 + 2 + 2
    assert MemoryWatch(proc).tree_kills() == 5


def test_a_container_that_shows_its_own_group_only_is_read_from_there(tmp_path: Path) -> None:
    top = tmp_path / "memory"
    top.mkdir()
    proc = fake_proc(
        tmp_path,
        "4:memory:/docker/abc\n",
        f"31 20 0:27 /docker/abc {top} ro - cgroup cgroup rw,memory\n",
    )
    (top / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    (top / "memory.usage_in_bytes").write_text("0\n")
    assert MemoryWatch(proc).sample().headroom_bytes == GIB
