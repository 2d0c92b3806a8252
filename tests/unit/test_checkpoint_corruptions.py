"""Corrupted checkpoints: none is ever taken for whole, and the newest that is whole is used."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.checkpoints.proof import prove_checkpoint
from stoker.checkpoints.proof_worker import as_message
from stoker.kit.workers.parent import WorkerExit
from stoker.plan.timelines import Timeline
from stoker.store.log import ChainedLog
from stoker.supervise.actions import Job
from stoker.supervise.state import Phase
from stokerd.supervision.jobs.proofs import CHECKPOINT
from support.checkpoint_data import seal
from support.run_ground import Ground

STEPS = (10, 20, 30)


def flip(file: Path, chance: random.Random) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def truncate(file: Path, chance: random.Random) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: chance.choice((0, len(data) - 1, chance.randrange(len(data))))])


def extend(file: Path, chance: random.Random) -> None:
    file.write_bytes(
        file.read_bytes() + chance.choice((b"\0", b"\n", chance.randbytes(chance.randrange(1, 5000))))
    )


def remove(file: Path, chance: random.Random) -> None:
    file.unlink()


def swap(file: Path, chance: random.Random) -> None:
    """Gives it the bytes of another file, of this checkpoint or of the same name in another one."""
    beside = [one for one in file.parent.iterdir() if one != file]
    like_it = [one / file.name for one in file.parent.parent.iterdir() if (one / file.name).exists()]
    other = chance.choice([*beside, *like_it])
    ours, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    if other.parent == file.parent:
        other.write_bytes(ours)


def blank(file: Path, chance: random.Random) -> None:
    """A block that never reached the disk."""
    data = bytearray(file.read_bytes())
    begin = chance.randrange(len(data))
    data[begin : begin + 512] = bytes(len(data[begin : begin + 512]))
    file.write_bytes(data)


def renumber(file: Path, chance: random.Random) -> None:
    """Another number in checkpoint.json: another step, position or timeline."""
    body = file.with_name("checkpoint.json")
    data = body.read_bytes()
    if numbers := list(re.finditer(rb"(?<=[:,\[])\d+(?=[,\]}])", data)):
        found = chance.choice(numbers)
        body.write_bytes(data[: found.start()] + b"%d" % chance.randrange(4) + data[found.end() :])


def link(file: Path, chance: random.Random) -> None:
    elsewhere = file.parents[3] / file.name
    shutil.copy(file, elsewhere)
    file.unlink()
    file.symlink_to(elsewhere)


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    flip,
    flip,
    truncate,
    extend,
    remove,
    swap,
    blank,
    renumber,
    link,
)


def content(checkpoint: Path) -> dict[str, bytes | None]:
    return {file.name: None if file.is_symlink() else file.read_bytes() for file in checkpoint.iterdir()}


def corrupt(checkpoint: Path, chance: random.Random) -> str:
    """Damages a file so that it differs; returns how."""
    before = content(checkpoint)
    while content(checkpoint) == before:
        damage = chance.choice(DAMAGES)
        damage(checkpoint / chance.choice(sorted(before)), chance)
    return damage.__name__


@pytest.mark.parametrize("corruptions", [15, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.timeout(3600)
def test_no_corrupted_checkpoint_is_accepted_and_the_newest_whole_one_is_used(
    tmp_path: Path, corruptions: int
) -> None:
    chance, done = random.Random(16), Counter[str]()
    ground = Ground(tmp_path)
    run, home = ground.run, ground.files.checkpoints
    whole = tmp_path / "whole"
    with contextlib.closing(ChainedLog(ground.files.timelines)) as log:
        log.append(Timeline(1, 0, 5, (), "a rollback").body())
    for step in STEPS:
        plan = b"".join(b'{"n":%d}\n' % number for number in range(step))
        shutil.rmtree(home / f"step-{step:09d}")
        files = {"timelines.jsonl": ground.files.timelines.read_bytes(), "plan.jsonl": plan}
        seal(home, step, files=files, timeline=1)
    shutil.copytree(home, whole)
    while done.total() < corruptions:
        bad = chance.choice(((30,), (30,), (30, 20), (20, 30, 10), (20,), (30, 10)))
        done.update(corrupt(home / f"step-{step:09d}", chance) for step in bad)
        run.change(phase=Phase.PROVING, proofs={})
        ground.requests.rollbacks.take_up()
        history = run.accounts.history()
        while (name := run.checkpoints.newest_candidate(history)) and run.state.proofs.get(name) != "proven":
            proof = as_message(prove_checkpoint(run.checkpoints.path(name)))
            assert (proof["verdict"] == "invalid") is (int(name[5:]) in bad), (name, bad, proof)
            end = WorkerExit("finished", result=proof)
            CHECKPOINT.end(run, Job("checkpoint", name), end)
        best = max({*STEPS} - {*bad}, default=None)
        assert name == (f"step-{best:09d}" if best else ""), (bad, name)
        for step in bad:
            shutil.rmtree(home / f"step-{step:09d}", ignore_errors=True)
            shutil.copytree(whole / f"step-{step:09d}", home / f"step-{step:09d}")
    print(dict(done))
    assert not list(ground.files.abandoned.iterdir()), "damage is no rollback"
