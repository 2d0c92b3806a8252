"""What a daemon's processes hold and use, summed by role."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from stoker.kit.process import ProcessId, Usage, Used, family, pss_of, usage_of
from stoker.observe.processes import ProcessTotals

ME, PARENT = ProcessId(1, 10), 0
ROLES = ("daemon", "guard", "trainer", "sealer", "worker")
NONE = dict.fromkeys(("count", "rss_bytes", "pss_bytes", "swap_bytes"), 0)


class Machine:
    """Processes with what they hold and have used; one that is not in `usages` has ended."""

    def __init__(
        self, special: dict[int, str] | None = None, commands: dict[int, bytes] | None = None
    ) -> None:
        self.usages: dict[ProcessId, Usage] = {}
        self.tree: dict[ProcessId, int] = {}
        self.special = {ME.pid: "daemon", **(special or {})}
        self.totals = ProcessTotals(ROLES, self.read, lambda pid: (commands or {}).get(pid, b"python"))
        self.read_alone: set[int] = set()
        self.runs(ME, PARENT)

    def read(self, process: ProcessId, /, *, of_children: bool) -> Usage | None:
        if not of_children:
            self.read_alone.add(process.pid)
        return self.usages.get(process)

    def runs(
        self, process: ProcessId, parent: int, used: Iterable[float] = (), *, rss: int = 0, swap: int = 0
    ) -> None:
        self.tree[process] = parent
        self.usages[process] = Usage(rss, swap, Used(*used))

    def ends(self, process: ProcessId) -> None:
        del self.tree[process], self.usages[process]

    def look(self, **pss: int) -> dict[str, dict[str, float]]:
        known = {each: pss[f"p{each.pid}"] for each in self.tree if f"p{each.pid}" in pss}
        return self.totals.sample(self.tree, self.special, known)

    def used(self, role: str) -> tuple[float, ...]:
        seen = self.look()[role]
        return tuple(seen[name] for name in Used._fields)


def test_every_role_is_there_from_the_start_and_gauges_are_of_the_living() -> None:
    machine = Machine({3: "guard"})
    seen = machine.look()
    assert {role: seen[role]["count"] for role in ROLES} == dict.fromkeys(ROLES, 0) | {"daemon": 1}
    assert {name: seen["trainer"][name] for name in NONE} == NONE
    one, two = ProcessId(5, 50), ProcessId(6, 60)
    machine.runs(one, ME.pid, rss=100, swap=1)
    machine.runs(two, one.pid, rss=20)
    seen = machine.look(p5=70)
    assert (seen["worker"]["count"], seen["worker"]["rss_bytes"], seen["worker"]["swap_bytes"]) == (2, 120, 1)
    assert seen["worker"]["pss_bytes"] == 70, "of those whose size is known"
    assert machine.look()["worker"]["pss_bytes"] is None, "not 0: nobody knows"
    assert machine.totals.rss_bytes[5] == 100
    machine.ends(two)
    assert machine.look()["worker"]["rss_bytes"] == 100


def test_counters_rise_by_what_is_new_and_never_fall_when_a_process_ends() -> None:
    machine, one, two = Machine(), ProcessId(5, 50), ProcessId(6, 60)
    machine.runs(one, ME.pid, (1.5, 3, 1000, 10))
    assert machine.used("worker") == (1.5, 3, 1000, 10)
    machine.runs(one, ME.pid, (2.0, 3, 1500, 10))
    machine.runs(two, ME.pid, (1.0, 1, 1, 1))
    assert machine.used("worker") == (3.0, 4, 1501, 11)
    machine.ends(one)
    assert machine.used("worker") == (3.0, 4, 1501, 11)
    machine.ends(two)
    machine.runs(ProcessId(5, 70), ME.pid, (0.5, 0, 100, 0))  # the pid again
    assert machine.used("worker") == (3.5, 4, 1601, 11)


def test_a_process_that_one_look_misses_is_not_counted_anew() -> None:
    machine, one = Machine(), ProcessId(5, 50)
    machine.runs(one, ME.pid, (1.0, 0, 1000, 0), rss=7)
    machine.look()
    del machine.tree[one]
    assert machine.look()["worker"]["rss_bytes"] == 7, "it is alive"
    machine.runs(one, ME.pid, (1.0, 0, 1200, 0))
    assert machine.used("worker") == (1.0, 0, 1200, 0)


def test_figures_that_proc_hides_for_a_while_count_once() -> None:
    machine, one = Machine(), ProcessId(5, 50)
    for read_bytes in (0, 1000, 0, 1000, 1100):
        machine.runs(one, ME.pid, (1.0, 0, read_bytes, 0))
        machine.look()
    assert machine.used("worker") == (1.0, 0, 1100, 0)


def test_bytes_of_a_reaped_process_are_not_counted_again_as_its_parents() -> None:
    machine = Machine({3: "guard"})
    guard, trainer, loader, helper = (ProcessId(pid, pid) for pid in (3, 4, 5, 6))
    machine.runs(guard, ME.pid)
    machine.runs(trainer, guard.pid, (0.0, 0, 100, 0))
    machine.runs(loader, trainer.pid, (1.0, 0, 1000, 5))
    machine.runs(helper, loader.pid, (0.0, 0, 50, 0))
    assert machine.used("trainer") == (1.0, 0, 1150, 5)
    machine.ends(helper)
    machine.ends(loader)  # not reaped yet
    assert machine.used("trainer") == (1.0, 0, 1150, 5)
    machine.runs(trainer, guard.pid, (0.0, 0, 100 + 1010 + 50, 5))  # with its last 10 bytes
    assert machine.used("trainer") == (1.0, 0, 1160, 5)
    machine.runs(trainer, guard.pid, (0.0, 0, 1200, 5))
    assert machine.used("trainer") == (1.0, 0, 1200, 5)
    assert machine.read_alone >= {ME.pid, guard.pid}, "what only starts others counts its own bytes alone"
    assert trainer.pid not in machine.read_alone


def test_a_process_has_the_role_of_who_started_it_for_its_whole_life() -> None:
    machine = Machine({3: "guard", 9: "worker"}, {7: b"python\0-m\0stoker.checkpoints.seal\0"})
    for pid, parent in ((3, 1), (4, 3), (5, 4), (7, 4), (8, 7), (9, 1), (10, 9), (11, 1)):
        machine.runs(ProcessId(pid, pid), parent)
    counts = {"daemon": 1, "guard": 1, "trainer": 2, "sealer": 2, "worker": 3}
    assert {role: each["count"] for role, each in machine.look().items()} == counts
    machine.ends(ProcessId(4, 4))
    for pid in (5, 7):  # its guard inherits them
        machine.tree[ProcessId(pid, pid)] = 3
    assert {role: each["count"] for role, each in machine.look().items()} == counts | {"trainer": 1}


# Against the kernel

STARTER = """
import subprocess, sys, threading
def start():
    global cat
    subprocess.run(["dd", "if=/dev/zero", "of=" + sys.argv[1], "bs=1M", "count=4", "conv=fsync"], stderr=-3)
    cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    print(cat.pid, flush=True)
    threading.Event().wait()
threading.Thread(target=start, daemon=True).start()
sys.stdin.readline()
cat.communicate()
"""


def test_a_family_is_found_and_read_however_the_kernel_tells_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path / "written")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    me, parent = os.getpid(), ProcessId.of(child.pid)
    try:
        cat = ProcessId.of(int(child.stdout.readline()))
        found = family(me)
        assert (found[parent], found[cat]) == (me, parent.pid) and list(found).index(cat) > 0
        with monkeypatch.context() as patch:
            patch.setattr("os.path.exists", lambda _path: False)  # a kernel that does not list children
            assert family(me) == found

        usage, alone = usage_of(parent), usage_of(parent, of_children=False)
        assert usage is not None and alone is not None
        assert usage.rss_bytes > 1 << 20 and usage.used.cpu_s > 0
        assert usage.used.write_bytes >= 4 << 20 > alone.used.write_bytes, "its reaped child wrote them"
        pss = pss_of(parent.pid)
        assert pss is not None and 0 < pss < usage.rss_bytes
        assert usage_of(ProcessId(parent.pid, parent.start_ticks + 1)) is None, "the pid was used again"
    finally:
        child.stdin.write(b"\n")
        child.stdin.flush()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert usage_of(parent) is None and pss_of(parent.pid) is None, "a zombie"
        child.communicate()
    assert usage_of(parent) is None and family(me).keys().isdisjoint((parent, cat))
