"""Three daemons that are started again whenever they end, and a choice of victims below them."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stoker.kit.exec import launch_command
from stoker.kit.process import ProcessId, processes_with_environment, signal_process
from stoker.store.layout import DAEMONS
from stoker.store.record import utc_now
from support.mounts import free_bytes
from support.pipelines import DataPipeline
from support.processes import daemon_command
from support.training import TRAINER, TrainPipeline, on_one_core, runs, small_trainer
from support.waiting import rest, used_s, wait_until

MARK = "STOKER_TEST_SIEGE"
HOPELESS = (64, 65, 78)  # a daemon that ends so would end so again
_NAME = re.compile(
    r"stoker(?:\.\w+)+\.(\w+)_worker|from stokerd\.(\w+)|stoker\.kit\.(guard)|stoker\.training\.(trainer)"
)


class Siege:
    """The daemons of one pipeline: `tend()` starts what is down, `victim()` finds whom to kill.

    With `never_exits` a daemon may end by kill -9 alone, as long as nobody asked it to.
    """

    def __init__(
        self,
        data: DataPipeline,
        daemons: Sequence[str] = DAEMONS,
        *,
        environ: Mapping[str, str] | None = None,
        never_exits: bool = False,
        with_torch: bool = True,
    ) -> None:
        self.trainer = on_one_core if with_torch else small_trainer
        self.data, self.daemons = data, daemons
        self.environ, self.never_exits = dict(environ or {}), never_exits
        self.mark = secrets.token_hex(8)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts: dict[str, int] = dict.fromkeys(daemons, 0)

    def said(self, name: str) -> Path:
        """Where a daemon's words go, of all its lives."""
        return self.data.home / f"{name}.err"

    def start(self, name: str, through: Callable[[list[str]], list[str]] = list) -> None:
        """Start a daemon; `through` may wrap its command. It ends when we do."""
        with self.said(name).open("ab") as stream, self.trainer():
            self.running[name] = subprocess.Popen(
                launch_command(through(daemon_command(name, self.data.file))),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, **self.environ, MARK: self.mark},
                start_new_session=True,
            )

    def tend(self) -> None:
        """Start again what was killed; AssertionError where one ended by itself for good."""
        for name in self.daemons:
            process = self.running.get(name)
            code = None if process is None else process.poll()
            if process is not None and code is None:
                continue
            hopeless = code in HOPELESS or (self.never_exits and code not in (None, -signal.SIGKILL))
            assert not hopeless, f"{name} ended with {code}:\n{self.last_words(name)}"
            self.restarts[name] += 1
            self.start(name)

    def restart(self, name: str, through: Callable[[list[str]], list[str]] = list) -> None:
        """Kill a daemon, and start it through another command."""
        self.kill(name)
        self.start(name, through)

    def kill(self, name: str) -> None:
        """kill -9 a daemon, not what it was started through, and reap it."""
        process = self.running.get(name)
        if process is None:
            return
        for found in self.below(process.pid):
            if _named(found) == name:
                kill(found)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait(20)

    def last_words(self, name: str) -> str:
        """The end of what a daemon said."""
        return self.said(name).read_text(errors="replace")[-3000:]

    def below(self, pid: int) -> list[int]:
        """A process and what it started, by the kernel's lists: cheap enough to ask often."""
        found, queue = [], [pid]
        while queue:
            current = queue.pop()
            found.append(current)
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{current}/task").iterdir():
                    queue += map(int, (task / "children").read_text().split())
        return found

    def names(self) -> dict[int, str]:
        """What runs now: daemons, guard, trainer, and workers by their module, by pid."""
        pids = (pid for process in self.running.values() for pid in self.below(process.pid))
        return {pid: name for pid in pids if (name := _named(pid))}

    def victim(self, wanted: str) -> tuple[int, str] | None:
        """The newest process of that name (`worker`: any of a room's), None while there is none."""
        for pid, name in sorted(self.names().items(), reverse=True):
            is_worker = name not in (*DAEMONS, "guard", "trainer", "lister")
            if name == wanted or (wanted == "worker" and is_worker):
                return pid, name
        return None

    def stop(self, timeout_s: float = 60.0) -> dict[str, int]:
        """TERM all daemons; their exit codes. AssertionError where something of theirs outlives them."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        codes = {name: process.wait(timeout_s) for name, process in self.running.items()}
        wait_until(lambda: not self.members(), 20.0, "the end of every process of the siege")
        return codes

    def members(self) -> list[ProcessId]:
        """Every live process of this siege, whatever became of its parent."""
        return processes_with_environment(MARK, self.mark)

    def end(self) -> None:
        """Leave nothing behind, whatever was found."""
        for process in self.members():
            signal_process(process, signal.SIGKILL)
        for child in self.running.values():
            child.kill()
            child.wait(20)


class Watch(threading.Thread):
    """Looks all the time: the least free space on hot, the most trainers of a run at once."""

    def __init__(self, siege: Siege) -> None:
        super().__init__(daemon=True)
        self.least_free: float = float("inf")
        self.most_trainers = 0
        self.shrunk = False  # hot was made smaller: what is free now does not count
        self.fullest = ""  # what lay on hot at that moment, and when
        self._siege = siege
        self._run = TrainPipeline(siege.data)
        self._done = threading.Event()

    def run(self) -> None:
        turn = 0
        began = used_s()
        while not self._done.is_set():
            began = rest(began)
            with contextlib.suppress(OSError):
                free = free_bytes(self._siege.data.pipeline.hot)
                if free < self.least_free and not self.shrunk:
                    self.least_free, self.fullest = free, self._on_hot()
            turn += 1
            if turn % 20 == 0:
                found = [one for one in self._run.processes() if runs(one, TRAINER)]
                self.most_trainers = max(self.most_trainers, len(found))

    def _on_hot(self) -> str:
        hot = self._siege.data.pipeline.hot
        sizes: dict[str, int] = {}
        for path in hot.rglob("*"):
            with contextlib.suppress(OSError):
                place = "/".join(path.relative_to(hot).parts[:3])
                sizes[place] = sizes.get(place, 0) + path.stat().st_blocks * 512
        return f"{utc_now()}: {sizes}"

    def stop(self) -> None:
        """End the looking."""
        self._done.set()
        self.join()


def _named(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""
    found = _NAME.search(words)
    if found is None or words.startswith("strace"):
        return ""
    return next(group for group in found.groups() if group)


def kill(pid: int) -> None:
    """kill -9, whether it still lives or not."""
    with contextlib.suppress(ProcessLookupError):
        signal_process(ProcessId.of(pid), signal.SIGKILL)
