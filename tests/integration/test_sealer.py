"""The sealer as a process: what was handed over is sealed, whatever stops, dies or fills up meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crash import Crash, acknowledge, check_crashes
from stoker.checkpoints import handover
from stoker.checkpoints.handover import Memory, Sealer, lay_out
from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.retention import sweep_leftovers
from stoker.checkpoints.saver import Copier, Saver, is_due
from stoker.checkpoints.seal import CheckpointWriter, Tensor, tensor_files
from stoker.checkpoints.sealer import seal_memory
from stoker.kit.lock import Lock, read_holder
from stoker.kit.process import ProcessId, children_tree, processes_with_environment
from stoker.store.errors import DataError, StorageError
from support.checkpoint_data import body_of
from support.halting import halts_at, wait_halted
from support.processes import wait_gone
from support.waiting import LONG_S, wait_until

STATE_BYTES = 3 * 4096 + 40  # pages, and a rest that is none


class Trainer:
    """What a trainer does to save: its state is one tensor, its words are kept."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.state = bytearray(STATE_BYTES)
        self.words: list[dict[str, object]] = []
        self.done: list[object] = []  # told after each second of a wait
        self.sealer = Sealer(directory, "l1", keeps=options.pop("keeps", ()))
        options = {"step": 0, "every": (None, 1), **options}
        self.saver = Saver(self.sealer, Copier(), self.say, **options)

    def say(self, **words: object) -> None:
        if "done" in words:
            self.done.append(words["done"])
        else:
            self.words.append(words)

    def contents(self, step: int) -> tuple[list[Any], dict[str, Any]]:
        self.state[:] = bytes([step]) * STATE_BYTES
        tensor = Tensor("w", "U8", (STATE_BYTES,), memoryview(self.state))
        files = [*tensor_files("model", [tensor]), ("trainer.json", [b"{", b"}"]), ("plan.jsonl", [b""])]
        return files, body_of(step)

    def save(self, step: int) -> None:
        self.saver.save(*self.contents(step))

    def sealers(self) -> list[ProcessId]:
        return [each for each in children_tree(os.getpid()) if b"checkpoints.sealer" in _command(each)]

    def signal(self, signum: int) -> None:
        (sealer,) = wait_until(
            self.sealers, what="the sealer"
        )  # whose command shows a moment after its start
        os.kill(sealer.pid, signum)
        if signum == signal.SIGSTOP:
            wait_halted(sealer.pid)
        if signum == signal.SIGKILL:
            wait_gone([sealer])

    def sealed(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("step-*"))


def _command(process: ProcessId) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return b""


Start = Callable[..., Trainer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    trainers: list[Trainer] = []

    def start(**options: Any) -> Trainer:
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        trainers.append(Trainer(tmp_path / "checkpoints", **options))
        return trainers[-1]

    yield start
    for trainer in trainers:
        for sealer in trainer.sealers():
            os.kill(sealer.pid, signal.SIGCONT)
        trainer.sealer.end()


def test_what_is_sealed_beside_training_equals_what_is_written_while_it_waits(
    start: Start, tmp_path: Path
) -> None:
    trainer = start()
    trainer.save(7)
    trainer.saver.wait()
    files, body = trainer.contents(7)
    with CheckpointWriter(tmp_path, 7, "l2") as writer:
        for name, parts in files:
            writer.add(name, parts)
        in_place = writer.seal(body)
    beside = trainer.directory / "step-000000007"
    assert prove_checkpoint(beside).verdict == "proven"
    names = sorted(path.name for path in in_place.iterdir())
    assert sorted(path.name for path in beside.iterdir()) == names
    assert all((beside / name).read_bytes() == (in_place / name).read_bytes() for name in names)
    assert trainer.words == [{"checkpoint": "step-000000007"}]


def test_a_checkpoint_holds_the_state_of_its_step_however_late_it_is_sealed(start: Start) -> None:
    trainer = start()
    trainer.save(1)
    trainer.saver.wait()
    trainer.signal(signal.SIGSTOP)
    trainer.save(2)
    trainer.state[:] = b"x" * STATE_BYTES  # training goes on
    trainer.saver.poll()
    assert trainer.sealed() == ["step-000000001"] and len(trainer.words) == 1, "told at the seal, not before"
    trainer.signal(signal.SIGCONT)
    trainer.saver.wait()
    model = (trainer.directory / "step-000000002" / "model-00001.safetensors").read_bytes()
    assert model.endswith(b"\2" * STATE_BYTES)
    assert trainer.words[1:] == [{"checkpoint": "step-000000002"}]


def test_a_save_that_is_due_meanwhile_waits_or_is_skipped(start: Start) -> None:
    trainer = start(skips=True)
    trainer.save(1)
    trainer.saver.wait()
    assert not trainer.saver.is_due(1) and trainer.saver.is_due(2)
    trainer.signal(signal.SIGSTOP)
    trainer.save(2)
    assert not trainer.saver.is_due(3)
    trainer.signal(signal.SIGCONT)
    wait_until(lambda: trainer.saver.is_due(3), what="the seal")

    waiting = start()
    waiting.save(4)
    assert waiting.saver.is_due(5)
    waiting.save(5)
    assert waiting.words[0] == {"checkpoint": "step-000000004"}


def test_stops_that_come_before_it_has_begun_or_while_it_works_are_ignored(
    start: Start, tmp_path: Path
) -> None:
    trainer = start()
    first = wait_until(trainer.sealers, what="the sealer")
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        trainer.signal(signum)
    trainer.save(1)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        trainer.signal(signum)
    trainer.saver.wait()
    assert trainer.sealed() == ["step-000000001"] and trainer.sealers() == first


# Hands a state over to a sealer that stands still from its first file on, and dies.
DIES = """
import os, signal, sys
from pathlib import Path
from stoker.checkpoints.handover import Memory, Sealer, lay_out
from stoker.kit.lock import Lock
from support.checkpoint_data import body_of
directory = Path(sys.argv[1])
lock = Lock.acquire(directory / "rank0.lock", purpose="trainer")
sealer = Sealer(directory, "l1", keeps=(lock.fileno(),))
layout = lay_out([("model.bin", [b"x" * 10000])], body_of(3))
memory = Memory()
memory.reserve(layout.size)
for part, start, end in layout.parts:
    memory.view[start:end] = part
memory.view[layout.at : layout.size] = layout.description
sealer.give(memory, layout)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_state_is_sealed_after_its_trainers_death_and_the_run_stays_locked_until_then(
    tmp_path: Path,
) -> None:
    environ = {**os.environ, "STOKER_RUN_DIR": str(tmp_path), **halts_at(tmp_path / "halts", ["begun-3"])}
    environ["PYTHONPATH"] += os.pathsep + str(Path(__file__).parents[1])
    died = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], env=environ, check=False)
    assert died.returncode == -signal.SIGKILL
    (sealer,) = processes_with_environment("STOKER_RUN_DIR", str(tmp_path))
    wait_halted(sealer.pid)
    os.kill(sealer.pid, signal.SIGTERM)
    assert not list(tmp_path.glob("step-*"))
    assert read_holder(tmp_path / "rank0.lock") is not None
    os.kill(sealer.pid, signal.SIGCONT)
    wait_gone([sealer])
    assert prove_checkpoint(tmp_path / "step-000000003").verdict == "proven"
    Lock.acquire(tmp_path / "rank0.lock", purpose="the next").release()


def test_a_sealer_that_died_is_told_and_replaced(start: Start) -> None:
    trainer = start()
    trainer.save(1)
    trainer.saver.wait()
    trainer.signal(signal.SIGKILL)  # idle: nothing is lost
    trainer.save(2)
    trainer.saver.wait()
    assert [*trainer.words[-1]] == ["checkpoint"]

    trainer.signal(signal.SIGSTOP)
    trainer.save(3)
    trainer.signal(signal.SIGKILL)
    trainer.saver.wait()
    assert "killed by SIGKILL" in str(trainer.words[-1]["save_failed"])
    assert trainer.saver.is_due(3), "it is not saved"
    trainer.save(4)
    trainer.saver.wait()
    assert trainer.sealed() == ["step-000000001", "step-000000002", "step-000000004"]
    assert len(trainer.sealers()) == 1


def test_two_failures_in_a_row_are_raised(start: Start) -> None:
    trainer = start()
    trainer.save(1)
    trainer.saver.wait()
    trainer.signal(signal.SIGSTOP)
    trainer.save(2)
    trainer.signal(signal.SIGKILL)
    trainer.saver.wait()
    (trainer.directory / ".tmp-step-l1-000000003").write_text("in its way: no directory")
    with pytest.raises(StorageError) as raised:
        trainer.save(3)
        trainer.saver.wait()
    assert raised.value.exit_code == 74


def test_another_checkpoint_of_the_name_stops_the_run_at_once(start: Start) -> None:
    trainer = start()
    (trainer.directory / "step-000000001").mkdir()
    with pytest.raises(DataError, match="is there already"):
        trainer.save(1)
        trainer.saver.wait()


def test_who_waits_for_a_slow_save_tells_how_much_is_written(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "WAIT_S", 0.02)
    trainer = start()
    trainer.save(1)
    trainer.saver.wait()
    wrote = trainer.sealer.written_bytes
    trainer.signal(signal.SIGSTOP)
    trainer.save(2)
    trainer.done.clear()

    def say(**words: object) -> None:
        trainer.say(**words)
        if len(trainer.done) == 3:
            trainer.signal(signal.SIGCONT)

    trainer.saver._say = say
    trainer.saver.wait()
    assert trainer.done[:3] == [wrote] * 3, "a stopped sealer makes no progress"
    assert trainer.sealer.written_bytes >= wrote and trainer.sealed()[-1] == "step-000000002"


@pytest.mark.parametrize("how", ["the machine has none", "the kernel gives none"])
def test_without_memory_for_a_copy_it_is_written_in_place_and_told_once(start: Start, how: str) -> None:
    trainer = start(headroom=lambda: 1 << 20 if how == "the machine has none" else 1 << 40)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if how == "the kernel gives none":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        trainer.save(1)
        trainer.save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert trainer.sealed() == ["step-000000001", "step-000000002"]
    assert [[*word] for word in trainer.words] == [["save_in_place"], ["checkpoint"], ["checkpoint"]]
    assert "while training waits" in str(trainer.words[0]["save_in_place"])


def test_the_memory_of_a_copy_is_taken_before_the_first_save(start: Start) -> None:
    looked: list[int] = []
    trainer = start(headroom=lambda: looked.append(1) or 1 << 40)
    trainer.saver.prepare(*trainer.contents(1))
    wait_until(lambda: looked, what="a look at the memory")
    trainer.save(1)
    trainer.save(2)
    assert len(looked) == 1, "and reused"


@pytest.mark.root
def test_a_full_disk_in_the_sealer_is_told_and_a_save_after_it_is_sealed(start: Start) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    trainer = start()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={STATE_BYTES // 4096 * 4096 + 3 * 4096}", "tmpfs"]
    subprocess.run([*mount, trainer.directory], check=True)
    try:
        blocker = trainer.directory / "blocker"
        blocker.write_bytes(bytes(4 * 4096))
        trainer.save(1)
        trainer.saver.wait()
        assert "free space" in str(trainer.words[0]["save_failed"])
        assert sorted(path.name for path in trainer.directory.iterdir()) == ["blocker"]
        blocker.unlink()
        subprocess.run([*mount[:3], "-o", "remount,size=1m", "tmpfs", trainer.directory], check=True)
        trainer.save(2)
        trainer.saver.wait()
        assert prove_checkpoint(trainer.directory / "step-000000002").verdict == "proven"
    finally:
        subprocess.run(["umount", trainer.directory], check=True)


def test_the_sealers_writes_survive_every_crash() -> None:
    def write(root: Path) -> None:
        files = [("model.bin", [b"x" * 5000, b"y"]), ("trainer.json", [b"{}"])]
        layout = lay_out(files, body_of(16))
        memory = bytearray(layout.size)
        for part, begin, end in layout.parts:
            memory[begin:end] = part
        description = {"step": 16, "body": body_of(16), "files": [["model.bin", 0, 5001]]}
        description["files"].append(["trainer.json", 8192, 2])
        (root / "checkpoints").mkdir(exist_ok=True)
        acknowledge(seal_memory(memoryview(memory), description, root / "checkpoints", "l1").name)

    def invariant(root: Path, crash: Crash) -> None:
        there = {path.name for path in (root / "checkpoints").iterdir()}
        assert {*crash.acknowledged} <= there <= {"step-000000016"}
        assert all(prove_checkpoint(root / "checkpoints" / name).verdict == "proven" for name in there)

    report = check_crashes(
        write,
        lambda root: sweep_leftovers(root / "checkpoints"),
        invariant,
        prepare=lambda root: (root / "checkpoints").mkdir(),
        max_states=600,
    )
    assert report.trees > 30


def test_the_sealer_writes_whole_pages_past_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [("a.bin", [b"x" * 5000, bytes(9 << 20)]), ("b.bin", [bytes(1 << 20)])]
    layout = lay_out(files, body_of(1))
    memory = Memory()
    memory.reserve(layout.size)
    direct, pwrite = [0], os.pwrite

    def counting(descriptor: int, data: Any, offset: int) -> int:
        written = pwrite(descriptor, data, offset)
        direct[0] += written if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT else 0
        return written

    monkeypatch.setattr(os, "pwrite", counting)
    seal_memory(memory.view, json.loads(layout.description), tmp_path, "l1")
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT))
    except OSError:
        pytest.skip(f"{tmp_path} is on a file system without O_DIRECT")
    assert direct[0] == 9 << 20, "all of both but the end of a.bin, which is no whole page"


def test_the_sealer_starts_quickly_without_torch_or_numpy() -> None:
    code = "import stoker.checkpoints.sealer, sys; print(*{name.split('.')[0] for name in sys.modules})"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "pydantic", "psutil", "yaml"} & {*done.stdout.split()}
    assert time.monotonic() - began < LONG_S


@pytest.mark.parametrize(
    ("every_s", "every_steps", "step", "now", "due"),
    [
        (60.0, None, 5, 59.0, False),
        (60.0, None, 5, 60.0, True),
        (60.0, None, 0, 99.0, False),  # nothing done since the last one
        (None, 10, 9, 99.0, False),
        (None, 10, 10, 0.0, True),
        (60.0, 10, 7, 61.0, True),
        (None, None, 10, 99.0, False),
    ],
)
def test_a_checkpoint_is_due_by_time_or_by_steps(
    every_s: float | None, every_steps: int | None, step: int, now: float, due: bool
) -> None:
    assert is_due(every_s, every_steps, step=step, saved_step=0, unsaved_s=now) is due
