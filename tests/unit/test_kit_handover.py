"""What a process that begins again by execv still has, and what it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import stoker.kit
from stoker.kit.handover import VARIABLE, AdoptedChild, take_over
from stoker.kit.process import ProcessId
from stoker.store.errors import Transient
from support.waiting import LONG_S, wait_until

PROGRAM = """
import os, signal, subprocess, sys
from stoker.kit.handover import VARIABLE, AdoptedChild, Handover, become, signals_blocked, take_over
from stoker.kit.process import ProcessId

came = []
before = take_over()
signal.signal(signal.SIGTERM, lambda *_: came.append("TERM"))
if before is None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    kept, stray = os.pipe(), os.dup(1)
    os.write(kept[1], b"kept")
    os.set_inheritable(stray, True)
    facts = {"child": ProcessId.of(child.pid), "stray": stray}
    with signals_blocked(frozenset([signal.SIGTERM])):
        os.kill(os.getpid(), signal.SIGTERM)
        become(Handover({"pipe": kept[0]}, {}, facts))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
assert VARIABLE not in os.environ
pipe = before.descriptors["pipe"]
assert not os.get_inheritable(pipe)
child = AdoptedChild(ProcessId(*before.work["child"]))
while (code := child.poll()) is None:
    pass
child.send_signal(signal.SIGKILL)  # it has ended, and its pid may be another's
try:
    os.fstat(before.work["stray"])
    strayed = True
except OSError:
    strayed = False
print(os.read(pipe, 9).decode(), code, child.poll(), came, strayed)
"""


def test_children_descriptors_and_signals_survive_and_nothing_else_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert (done.stdout, done.stderr) == ("kept 7 7 ['TERM'] False\n", "")


UPGRADED = """
import os, sys
from stoker.kit.handover import Handover, become, interpreter, take_over

if take_over() is None:
    print(sys.executable, interpreter(), flush=True)
    current = os.path.dirname(os.path.dirname(sys.argv[0]))
    os.symlink("2", current + ".part")
    os.replace(current + ".part", current)
    become(Handover({}, {}, {}))
print(sys.executable, sys.argv[0])
"""


def test_after_an_upgrade_a_command_begins_again_with_the_other_environments_interpreter(
    tmp_path: Path,
) -> None:
    for version in "12":
        folder = tmp_path / version / "bin"
        folder.mkdir(parents=True)
        (folder / "python").symlink_to(sys.executable)
        (folder / "command").write_text(f"#!{folder}/python\n{UPGRADED}")
        (folder / "command").chmod(0o755)
    (tmp_path / "current").symlink_to("1")
    command = tmp_path / "current/bin/command"
    environ = {**os.environ, "PYTHONPATH": str(Path(stoker.kit.__file__).parents[2])}
    done = subprocess.run([command], capture_output=True, text=True, timeout=LONG_S, check=True, env=environ)
    old, new = (str(tmp_path / version / "bin/python") for version in "12")
    assert done.stdout.splitlines() == [f"{old} {old}", f"{new} {command}"], done.stderr


def test_a_record_of_another_process_is_not_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{os.getppid()} 0")
    assert take_over() is None
    assert VARIABLE not in os.environ


def test_a_child_that_is_not_there_is_not_adopted() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        child = ProcessId.of(process.pid)
        with pytest.raises(Transient):
            AdoptedChild(child._replace(start_ticks=child.start_ticks + 1))
        adopted = AdoptedChild(child)
        assert adopted.poll() is None
        adopted.kill()
        assert wait_until(adopted.poll, what="its end") == -signal.SIGKILL
    with pytest.raises(Transient):
        AdoptedChild(child)
