"""The chaos driver itself: its plan repeats, its kills hit and are booked, and what is wrong is found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest

from chaos import driver, strace
from chaos.driver import Launch, Scenario, run_scenario
from chaos.job import Job
from chaos.plan import plan_strikes
from chaos.scenarios import find_scenarios
from support.mounts import WHY_NOT, apart

needs_strace = pytest.mark.skipif(not strace.is_here(), reason="needs strace (apt install strace)")


class Counting(Scenario):
    """Counts to twenty in a file, one durable write a number; `body` is the script that does it."""

    name = "counting"
    longest_s = 0.15  # far less than a job takes: also a strike that comes late finds it at work
    body: ClassVar[str] = """
import json, os, sys, time
path = sys.argv[1] + "/count"
done = int(open(path).read()) if os.path.exists(path) else 0
for number in range(done + 1, 21):
    for phase in ("write", "sync", "rename"):
        print(json.dumps({"phase": phase}), flush=True)
        if phase == "write":
            fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(fd, b"%d" % number)
        elif phase == "sync":
            os.fsync(fd)
        else:
            os.rename(path + ".new", path)
        time.sleep(0.01)
"""

    def start(self, directory: Path) -> None:
        self.directory = directory

    def step(self, launch: Launch) -> Job:
        return Job(launch.command([sys.executable, "-c", self.body, str(self.directory)]))

    def check(self) -> None:
        assert (self.directory / "count").read_text() == "20"


class CountingUnderStrace(Counting):
    calls: ClassVar = {"fsync": 20, "rename": 20}


def test_a_seed_plans_the_same_kills_again_and_another_seed_others() -> None:
    calls = {"fsync": 100, "rename": 10}
    plans = [plan_strikes(50, seed, ("daemon", "worker"), 2.0, calls) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert {strike.call for strike in plans[0]} == {None, "fsync", "rename"}
    assert {strike.target for strike in plans[0]} == {"daemon", "worker", "any"}
    for strike in plans[0]:
        assert 0 <= strike.delay_s <= 2.0
        assert strike.call is None or 1 <= strike.when <= calls[strike.call] + 1


def test_processes_are_killed_their_phases_booked_and_the_work_still_comes_out_right(tmp_path: Path) -> None:
    report = run_scenario(Counting(), kills=6, seed=5, directory=tmp_path)
    assert report.kills >= 3
    assert len(report.hits) == 6
    assert set(report.phases()) <= {"start", "write", "sync", "rename"}
    assert f"{report.kills} kills" in report.table()


@pytest.mark.strace
@needs_strace
def test_kills_inside_a_system_call_are_booked_with_the_call_and_its_file(tmp_path: Path) -> None:
    report = run_scenario(CountingUnderStrace(), kills=6, seed=2, directory=tmp_path)
    inside = [hit for hit in report.hits if hit.strike.call is not None and hit.phase is not None]
    assert inside
    for hit in inside:
        assert hit.phase in ("fsync in sync", "rename in rename")
        assert hit.place.endswith("count.new")
    assert report.as_json()["phases"] == Counter(hit.phase for hit in report.hits if hit.phase)


def test_without_strace_its_kills_are_skipped_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver.strace, "is_here", lambda: False)
    report = run_scenario(CountingUnderStrace(), kills=4, seed=1, directory=tmp_path)
    assert report.skipped == 2
    assert "SKIPPED" in report.table()
    assert "2 kills inside system calls are skipped" in capsys.readouterr().err


def test_a_result_that_is_wrong_is_found(tmp_path: Path) -> None:
    class Forgetful(Counting):
        body = Counting.body.replace("range(done + 1, 21)", "range(done + 1, 20)")

    with pytest.raises(AssertionError, match="19"):
        run_scenario(Forgetful(), kills=1, seed=1, directory=tmp_path)


def test_a_process_that_fails_by_itself_is_found(tmp_path: Path) -> None:
    class Failing(Counting):
        longest_s = 600.0  # nobody waits so long: it has ended by itself when the strike would be due
        body = "raise SystemExit(3)"

    with pytest.raises(AssertionError, match="ended by itself with 3"):
        run_scenario(Failing(), kills=1, seed=0, directory=tmp_path)


def test_a_process_that_hangs_is_found(tmp_path: Path) -> None:
    class Hanging(Counting):
        limit_s = 0.5
        body = "import time; time.sleep(60)"

    with pytest.raises(AssertionError, match="hung"):
        run_scenario(Hanging(), kills=0, seed=0, directory=tmp_path)


def test_an_orphan_is_found_even_in_a_session_of_its_own_and_taken_away(tmp_path: Path) -> None:
    class Leaving(Counting):
        orphans_s = 0.5
        body = (
            "import subprocess\n"
            "subprocess.Popen(['sleep', '1000'], start_new_session=True, stdout=subprocess.DEVNULL)\n"
        )

    with pytest.raises(AssertionError, match="left behind"):
        run_scenario(Leaving(), kills=0, seed=0, directory=tmp_path)


def test_every_scenario_has_a_name_of_its_own_and_says_what_it_does() -> None:
    found = find_scenarios()
    assert "store" in found
    for name, scenario in found.items():
        assert scenario.name == name
        assert scenario.__doc__


@pytest.mark.strace
@needs_strace
def test_the_stores_files_survive_kills_inside_their_writes_and_syncs(tmp_path: Path) -> None:
    report = run_scenario(find_scenarios()["store"](), kills=8, seed=3, directory=tmp_path)
    assert report.kills >= 4


MOUNTING = """
import argparse, sys
from chaos.__main__ import _run
from chaos.driver import Scenario
from chaos.job import Job
from support.mounts import mount_small

class Mounting(Scenario):
    name = "mounting"

    def start(self, directory):
        mount_small(directory / "disk", 1 << 20)

    def step(self, launch):
        return Job(launch.command(["true"]))

    def check(self):
        pass

sys.exit(_run([Mounting()], argparse.Namespace(dir=None, kills=0, seed=1, json=None)))
"""


def test_what_a_scenario_mounted_is_unmounted_and_cleared_up_after_its_table(tmp_path: Path) -> None:
    command = apart([sys.executable, "-c", MOUNTING])
    if command is None:
        pytest.skip(WHY_NOT)
    paths = os.pathsep.join(map(str, (Path(__file__).parents[1], os.environ.get("PYTHONPATH", ""))))
    environ = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("mounting: 0 kills in 1 rounds")
    assert not list(tmp_path.iterdir())
