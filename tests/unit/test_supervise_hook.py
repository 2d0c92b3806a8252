"""train.on_checkpoint, on_promoted: one command at a time, for the newest of these checkpoints, once."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.checkpoints.retention import remove_checkpoint
from stoker.kit.loop import Waiter
from stoker.kit.process import ProcessId, children_tree
from stoker.store.record import read_record, write_record
from stoker.supervise.mirror.inventory import Checkpoint
from stoker.supervise.state import Phase
from stokerd.supervision.jobs.hook import HOOK, HOOK_PROMOTED
from stokerd.supervision.jobs.runner import Jobs
from stokerd.supervision.run import Counted, Run
from support.pipelines import make_pipeline
from support.processes import wait_gone
from support.sites import write_site
from support.waiting import wait_until


class Hook:
    """The job in a run of which the rest is made up, and its cycles."""

    def __init__(self, run: Any) -> None:
        self.jobs = Jobs(cast(Run, run), {each.kind: each for each in (HOOK, HOOK_PROMOTED)})
        self.stop = self.jobs.stop

    @property
    def pids(self) -> set[int]:
        return self.jobs.pids

    @property
    def is_busy(self) -> bool:
        """Whether a command runs or is due."""
        return self.jobs.awaited() is not None

    def look(self) -> None:
        self.jobs.hear()
        self.jobs.start_due()


class Ground:
    def __init__(self, root: Path) -> None:
        self.root, self.events, self.seconds = root, list[dict[str, Any]](), list[float]()
        self.newest: Checkpoint | None = None
        self.proven: dict[str, Checkpoint] = {}
        self.waiter, self.counted = Waiter(), Counted()

    def hook(self, command: str, key: str = "on_checkpoint") -> Hook:
        pipeline = make_pipeline(self.root, **{f"train__{key}": command}).pipeline
        pipeline.layout.create()
        self.run = pipeline.layout.run("main")
        self.run.create()
        train = SimpleNamespace(hook=pipeline.train.hook, run="main")
        self.made: Any = SimpleNamespace(
            pipeline=SimpleNamespace(train=train, layout=pipeline.layout),
            layout=self.run,
            context=SimpleNamespace(waiter=self.waiter, stopping=False, layout=pipeline.layout),
            counted=self.counted,
            timings=SimpleNamespace(hook=SimpleNamespace(observe=self.seconds.append)),
            events=SimpleNamespace(record=lambda word, **words: self.events.append(words)),
            newest=self.newest,
            checkpoints=SimpleNamespace(get=self.proven.get),
            accounts=SimpleNamespace(history=lambda: [(0, None)]),
            promoted=lambda: Run.promoted(self.made),
            state=SimpleNamespace(phase=Phase.FINISHED),
            change=lambda **_: None,
            jobs={},
            slices={},
        )
        return Hook(self.made)

    def prove(self, step: int) -> Path:
        path = self.run.checkpoints / f"step-{step:09d}"
        path.mkdir(exist_ok=True)
        self.newest = self.made.newest = Checkpoint(path, step, {}, digest=f"{step:064x}")
        self.proven[path.name] = self.newest
        return path

    def finish(self, hook: Hook) -> None:
        """Waits until a command has ended and none is due."""
        while hook.is_busy:
            hook.look()
            if hook.pids:
                self.waiter.wait(5.0)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.waiter.close()


def python(code: str, *arguments: object) -> str:
    return shlex.join([sys.executable, "-c", f"import os, sys; {code}", *map(str, arguments)])


def test_a_command_gets_the_checkpoint_and_its_words_as_they_are_and_runs_once(ground: Ground) -> None:
    told = ground.root / "told.jsonl"
    words = "[os.environ[f'STOKER_{name}'] for name in ('CHECKPOINT', 'STEP', 'RUN')] + sys.argv[2:]"
    code = f"import json; open(sys.argv[1], 'a').write(json.dumps({words}) + '\\n')"
    command = python(code, told, "$HOME; `x`")
    hook = ground.hook(command)
    assert not hook.is_busy
    path = ground.prove(10)
    ground.finish(hook)
    hook.look()
    ground.finish(ground.hook(command))  # a restart
    assert [json.loads(line) for line in told.read_text().splitlines()] == [
        [str(path), "10", "main", "$HOME; `x`"]
    ]
    assert (ground.counted.hooks, ground.events, len(ground.seconds)) == (Counter(ok=1), [], 1)


def test_the_newest_of_those_that_wait_is_next_and_none_that_is_read_is_removed(ground: Ground) -> None:
    told, gate = ground.root / "told", ground.root / "gate"
    os.mkfifo(gate)
    code = (
        "step = os.environ['STOKER_STEP']; step == '10' and open(sys.argv[1]).read(); "
        "open(sys.argv[2], 'a').write(step + ' ')"
    )
    hook = ground.hook(python(code, gate, told))
    first = ground.prove(10)
    hook.look()
    wait_until(lambda: children_tree(*hook.pids), what="the guard")
    for step in (20, 30):
        ground.prove(step)
        hook.look()
    assert not remove_checkpoint(first)
    gate.write_text("")  # returns once the command reads
    ground.finish(hook)
    assert told.read_text() == "10 30 "
    assert remove_checkpoint(first)


def test_a_promoted_checkpoint_has_its_command_once_and_only_if_it_is_the_proven_one(ground: Ground) -> None:
    told = ground.root / "told"
    command = python("open(sys.argv[1], 'a').write(os.environ['STOKER_STEP'] + ' '); sys.exit(3)", told)
    hook = ground.hook(command, "on_promoted")
    for step in (10, 20, 30):
        ground.prove(step)

    def promote(step: int, digest: int, **more: int) -> None:
        body = {"v": 1, "step": step, "checkpoint": f"step-{step:09d}", "digest": f"{digest:064x}", **more}
        write_record(ground.run.promoted, body)

    assert not hook.is_busy
    promote(20, 20)
    ground.finish(hook)
    ground.finish(ground.hook(command, "on_promoted"))  # a restart
    for other in ((30, 31), (40, 40)):  # another content, and none
        promote(*other)
        assert not hook.is_busy
    promote(30, 30, timeline=1)  # before a rollback took its step back
    assert not hook.is_busy
    promote(10, 10)
    ground.finish(hook)
    assert told.read_text() == "20 10 "
    assert (
        read_record(ground.run.hook("hook-promoted"))["step"] == 10 and not ground.run.hook("hook").exists()
    )
    assert [(event["key"], event["step"]) for event in ground.events] == [
        ("train.on_promoted", 20),
        ("train.on_promoted", 10),
    ]


@pytest.mark.parametrize(
    ("command", "how"),
    [(python("sys.exit(3)"), "exit code 3"), ("/no/such/program --x", "exit code 127")],
)
def test_a_failure_is_an_event_and_is_not_repeated(ground: Ground, command: str, how: str) -> None:
    hook = ground.hook(command)
    ground.prove(10)
    ground.finish(hook)
    (event,) = ground.events
    assert event["message"].startswith(how) and (event["step"], event["result"]) == (10, "failed")
    assert ground.counted.hooks == Counter(failed=1)


# Its time is over at once, but not before it has begun.
LATE = """
import os, sys, time
if "stoker.supervise.run.hook_worker" in sys.orig_argv:
    from stoker.kit import process
    readable = process.readable
    def late(*descriptors, timeout_s):
        while timeout_s == 0.0 and not os.path.exists({started!r}):
            time.sleep(0.01)
        return readable(*descriptors, timeout_s=timeout_s)
    process.readable = late
"""


def test_a_command_that_takes_too_long_ends_with_all_that_it_started(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stokerd.supervision.jobs.hook.GRACE_S", 0.5)
    started, site = ground.root / "pid", ground.root / "site"
    site.mkdir()
    write_site(site, LATE.format(started=str(started)))
    monkeypatch.setenv("PYTHONPATH", str(site))
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    child = "import subprocess; subprocess.Popen(['sleep', '600']); "
    code = f"{stubborn}{child}open(sys.argv[1], 'w').write('x'); signal.pause()"
    monkeypatch.setattr("stokerd.supervision.jobs.hook.LIMIT_S", 0.0)
    hook = ground.hook(python(code, started))
    ground.prove(10)
    hook.look()
    wait_until(started.exists, what="the command")
    tree = [*map(ProcessId.of, hook.pids), *children_tree(*hook.pids)]
    assert len(tree) == 4  # with its worker and guard
    ground.finish(hook)  # TERM, and KILL after the grace
    wait_gone(tree, 5.0)
    assert ground.events[0]["result"] == "timed_out" and ground.events[0]["message"].startswith("killed by")


SUPERVISOR = """
import signal, sys; from pathlib import Path; from unit.test_supervise_hook import Ground
ground = Ground(Path(sys.argv[1]))
hook = ground.hook("sh -c 'setsid sleep 600 & wait'")
ground.prove(10)
hook.look()
print(*hook.pids, flush=True)
signal.pause()
"""


def test_what_a_command_started_ends_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", SUPERVISOR, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": tests}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as supervisor:
        assert supervisor.stdout is not None
        try:
            worker = int(supervisor.stdout.readline())
            tree = wait_until(lambda: len(found := children_tree(worker)) == 3 and found, what="the command")
        finally:
            supervisor.kill()
    wait_gone(tree)


def test_what_a_command_leaves_behind_ends_with_it(ground: Ground) -> None:
    told = ground.root / "told"
    child = "import subprocess; child = subprocess.Popen(['sleep', '600']); "
    hook = ground.hook(python(f"{child}open(sys.argv[1], 'w').write(str(child.pid))", told))
    ground.prove(10)
    ground.finish(hook)
    wait_until(lambda: is_ended(int(told.read_text())), what="the end of the child")
    assert ground.counted.hooks == Counter(ok=1)


def is_ended(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"  # nobody reaps it
    return True


def test_a_command_that_a_stop_ended_runs_again_for_the_same_checkpoint(ground: Ground) -> None:
    hook = ground.hook("sleep 600")
    ground.prove(10)
    hook.look()
    hook.stop()
    assert (hook.pids, hook.is_busy, ground.events) == (set(), True, [])
    ground.made.context.stopping = True
    hook.look()
    assert hook.pids == set()


def test_without_a_command_nothing_is_due(ground: Ground) -> None:
    hook = ground.hook("true")
    ground.made.pipeline.train.hook = lambda _: ()
    ground.prove(10)
    hook.look()
    assert not hook.is_busy
