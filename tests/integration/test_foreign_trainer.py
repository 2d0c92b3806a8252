"""A trainer of the user's own under the supervisor, without data: launched, restarted, stopped, finished."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stoker.store.record import read_record
from support.foreign import make_foreign

# Tells in a file how each launch was started; ends as the next word of `ends` says.
TELLS = """
import json, os, sys
import beside
with open("launches.jsonl", "a") as told:
    told.write(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "environ": dict(os.environ)}) + "\\n")
launches = len(open("launches.jsonl").readlines())
sys.exit(int(sys.argv[1:][launches - 1]))
"""
OURS = {"STOKER_NOTIFY_SOCKET", "STOKER_LAUNCH", "STOKER_RUN_DIR", "STOKER_MICRO_BATCH"}
OURS |= {"STOKER_RESUME_FROM", "STOKER_RESUME_STEP", "PYTHONUNBUFFERED"}


def told(home: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (home / "launches.jsonl").read_text().splitlines()]


def test_it_runs_beside_its_modules_with_the_environment_of_the_protocol_until_it_ends_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("WATCHDOG_USEC", "1000000000")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    home = tmp_path / "home"
    run = make_foreign(home, TELLS, "1", "0", train__external={"resume": ["--resume", "{path}"]})
    (home / "beside.py").touch()
    monkeypatch.chdir(tmp_path)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    first, second = told(home)
    assert first["argv"] == second["argv"] == ["1", "0"]
    assert first["cwd"] == str(home)
    environ = first["environ"]
    assert isinstance(environ, dict)
    assert {name for name in set(environ) - set(os.environ) if name.startswith(("STOKER", "PYTHON"))} == OURS
    assert not {"PYTHONSAFEPATH", "WATCHDOG_USEC"} & set(environ)
    assert environ["STOKER_RESUME_FROM"] == environ["STOKER_MICRO_BATCH"] == ""
    assert [one["exit_class"] for one in run.events("trainer_exited")] == ["crashed", "finished"]
    record = run.record()
    assert (record["state"], record["finished"], record["launches"]) == ("finished", "trainer", 2)
    assert "command" not in read_record(run.run.launch)
    assert run.once().returncode == 0
    assert len(told(home)) == 2  # it stays finished
