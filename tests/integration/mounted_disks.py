"""Disks that hang, die, go away or turn read-only under the data daemons: a pause with a reason, no verdict.

And small disks under files that expand to more than anybody expected.

Run by test_dead_mounts.py, in mounts of their own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.kit.process import children_tree, signal_process
from stoker.shards.format.proof import prove_set
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, WarmLayout
from support.audits import STOKER, audit_of
from support.external_trainer import make_external
from support.fuse import WHY_NO_FUSE, FuseMount, fuse_is_here
from support.halting import wait_halted
from support.mounts import free_bytes, is_apart, mount_small
from support.parquet import prose, write_fineweb, write_repeated
from support.pipelines import DataPipeline, make_pipeline
from support.processes import RunningDaemon, daemon_command, has_ended
from support.waiting import wait_until

if not is_apart():
    pytest.skip("only in mounts of its own: run test_dead_mounts.py", allow_module_level=True)

FILES = 2
# How long a disk may say nothing before it is said to hang, and how often it is asked: too long for a test.
_SITE = """
import sys
if "from stokerd.stage_shard" in " ".join(sys.orig_argv[1:4]):
    from stokerd.sharding import disk, loop
    disk.ANSWERS_WITHIN_S = 1.5
    disk.MEASURE_EVERY_S = loop.LONGEST_WAIT_S = 0.5
elif "from stokerd.train_supervisor" in " ".join(sys.orig_argv[1:4]):
    from stokerd.supervision.jobs import external as external_checkpoints
    for activity in (external_checkpoints.LOOK, external_checkpoints.RESTORE, external_checkpoints.WATCH):
        object.__setattr__(activity, "silent_s", 2.0)
    external_checkpoints.LOOK_S, external_checkpoints.AGAIN_S = 0.1, 0.5
elif "stoker.cli.doctor.worker" in sys.orig_argv:
    from stoker.cli.doctor import checks
    checks.ANSWERS_S = 0.5
elif "stoker.checkpoints.external.worker" in sys.orig_argv:
    from stoker.kit.workers import child
    child.ALIVE_EVERY_S = 0.5
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose daemons are less patient with a silent disk."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    return tmp_path


Mounts = Callable[..., FuseMount]


@pytest.fixture
def mounts() -> Iterator[Mounts]:
    """Makes mounts that can be made to hang; they answer again before anything is waited for at the end."""
    if not fuse_is_here():
        pytest.skip(WHY_NO_FUSE)
    made: list[FuseMount] = []

    def make(*places: Path, **options: str) -> FuseMount:
        made.append(FuseMount(*places, **options))
        return made[-1]

    yield make
    for mount in made:
        mount.end()


def write_files(data: DataPipeline, first: int = 0, count: int = FILES) -> None:
    for number in range(first, first + count):
        write_fineweb(data.source / f"{number}.parquet", 150, seed=number)


def plain(home: Path, **changes: Any) -> DataPipeline:
    """A pipeline with as few workers as can be, for each takes a moment to start."""
    tokenizer = {"file": os.environ["STOKER_TEST_TOKENIZER"], "engine": "tokenizers"}
    return make_pipeline(home, shard__release="never", tokenizer=tokenizer, **changes)


def pipeline(home: Path, **changes: Any) -> DataPipeline:
    """Files with receipts, which a loop can begin with."""
    data = plain(home, **changes)
    write_files(data)
    data.receive()
    return data


def with_warm(home: Path) -> DataPipeline:
    return pipeline(home, warm=str(home / "warm"), evict={"target_free": "0B"})


@contextmanager
def at_work(data: DataPipeline, name: str = STAGE_SHARD) -> Iterator[RunningDaemon]:
    """A daemon that never ends by itself, and ends well when asked."""
    daemon = data.start(name)
    try:
        yield daemon
        assert daemon.process.poll() is None, daemon.said()
    finally:
        code = daemon.stop()
    assert code == 0, daemon.said()


def wait_for(data: DataPipeline, state: str, files: int = FILES) -> None:
    wait_until(lambda: list(data.states().values()) == [state] * files, what=f"{files} files {state}")


def wait_for_trouble(data: DataPipeline, words: str) -> None:
    wait_until(lambda: words in data.status().get("trouble", ""), what=f"the word of {words}")


def wait_for_event(data: DataPipeline, word: str) -> None:
    wait_until(lambda: data.events(STAGE_SHARD, word), what=f"the event {word}")


def still_turns(data: DataPipeline) -> None:
    """The daemon goes on telling its status: its loop, which feeds the watchdog, is not held up."""
    before = data.status()["uptime_s"]
    wait_until(lambda: data.status()["uptime_s"] > before, what="another turn of the loop")


def nothing_was_blamed(data: DataPipeline) -> None:
    assert not data.reasons()
    assert all(source.deaths == () for source in data.sources().values())


def complaints(data: DataPipeline) -> list[dict[str, Any]]:
    """What the loop recorded that somebody should look at."""
    return [event for event in data.events(STAGE_SHARD) if event["level"] != "info"]


def warm_is_whole(data: DataPipeline) -> None:
    for source in data.sources().values():
        copy = WarmLayout(data.home / "warm").shard_set("prose", str(source.key))
        assert prove_set(copy, key=source.key).verdict == "proven"
    assert not list((data.home / "warm").rglob(".tmp-*"))


def test_a_warm_disk_that_hangs_in_mid_copy_holds_up_its_copies_alone(home: Path, mounts: Mounts) -> None:
    warm = mounts(home / "disk", home / "warm", halts_at="write")
    data = with_warm(home)
    with at_work(data):
        wait_for(data, "synced")
        warm.arm()
        write_files(data, first=FILES, count=1)
        data.receive()
        warm.wait_halted()
        wait_for_trouble(data, "waiting for the warm directory")
        wait_for_event(data, "warm_unavailable")
        write_files(data, first=FILES + 1, count=1)
        data.receive()
        wait_until(lambda: data.states().get(f"{FILES + 1}.parquet") == "proven", what="the new file's set")
        still_turns(data)
        assert data.states()[f"{FILES}.parquet"] == "proven"
        warm.go_on()
        wait_for(data, "synced", FILES + 2)
        wait_for_event(data, "warm_available")
    nothing_was_blamed(data)
    warm_is_whole(data)


@pytest.mark.long
def test_a_warm_disk_whose_server_died_is_waited_for(home: Path, mounts: Mounts) -> None:
    warm = mounts(home / "disk", home / "warm", halts_at="write")
    data = with_warm(home)
    with at_work(data):
        wait_for(data, "synced")
        warm.arm()
        write_files(data, first=FILES, count=1)
        data.receive()
        warm.wait_halted()  # in the middle of its copy
        warm.die()
        wait_for_event(data, "warm_unavailable")
        still_turns(data)
        assert data.states()[f"{FILES}.parquet"] == "proven"
        warm.come_back()
        wait_for(data, "synced", FILES + 1)
    nothing_was_blamed(data)
    warm_is_whole(data)


def test_a_source_folder_that_hangs_while_it_is_hashed_or_staged(home: Path, mounts: Mounts) -> None:
    source = mounts(home / "disk", home / "source", halts_at="read")
    data = plain(home)
    write_files(data)
    with at_work(data), at_work(data, DOWNLOAD_WATCHDOG) as watchdog:
        source.arm()
        source.wait_halted()
        still_turns(data)
        assert watchdog.process.poll() is None
        source.go_on()
        wait_for(data, "proven")
        source.arm()
        write_files(data, first=FILES, count=1)
        source.wait_halted()
        still_turns(data)
        source.go_on()
        wait_for(data, "proven", FILES + 1)
    nothing_was_blamed(data)


@pytest.mark.long
def test_a_source_folder_whose_server_died_is_waited_for(home: Path, mounts: Mounts) -> None:
    source = mounts(home / "disk", home / "source", halts_at="read")
    data = pipeline(home)
    source.arm()
    with at_work(data), at_work(data, DOWNLOAD_WATCHDOG):
        source.wait_halted()
        source.die()
        wait_until(lambda: complaints(data), what="a word of the copy that failed")
        still_turns(data)
        source.come_back()
        wait_for(data, "proven")
    nothing_was_blamed(data)


def test_a_hot_disk_that_hangs_pauses_everything(home: Path, mounts: Mounts) -> None:
    hot = mounts(home / "disk", home / "hot", halts_at="write")
    data = pipeline(home)
    with at_work(data):
        wait_until(data.states, what="the records")
        hot.arm()
        hot.wait_halted()
        wait_for_trouble(data, "waiting for the hot directory")
        wait_for_event(data, "list_failed")
        still_turns(data)
        hot.go_on()
        wait_for(data, "proven")
        wait_until(lambda: not data.status()["trouble"], what="the end of the trouble")
    nothing_was_blamed(data)
    assert len(data.sets()) == FILES


def test_a_read_only_hot_disk_pauses_everything(home: Path) -> None:
    mount_small(home / "hot", 64 << 20)
    data = pipeline(home)
    with at_work(data) as daemon:
        wait_until(lambda: "building" in data.states().values(), what="a build")
        turn_read_only(home / "hot", daemon)
        wait_for_trouble(data, "read-only")
        wait_for_event(data, "hot_read_only")
        still_turns(data)
        assert set(data.states().values()) <= {"seen", "staged", "building", "proven"}
        subprocess.run(["mount", "-o", "remount,rw", str(home / "hot")], check=True, timeout=20)
        wait_for(data, "proven")
        wait_until(lambda: not data.status()["trouble"], what="the end of the trouble")
    nothing_was_blamed(data)


def turn_read_only(place: Path, daemon: RunningDaemon) -> None:
    """As the kernel does after an error. Who has files open for writing stands in the way, and goes first."""
    daemon.process.send_signal(signal.SIGSTOP)
    wait_halted(daemon.pid)
    workers = children_tree(daemon.pid)
    for worker in workers:
        signal_process(worker, signal.SIGKILL)
    wait_until(lambda: all(has_ended(worker.pid) for worker in workers), what="the end of the workers")

    def remounted() -> bool:  # a thread that goes after its process has ended still holds the files
        command = ["mount", "-o", "remount,ro", str(place)]
        return subprocess.run(command, check=False, timeout=20).returncode == 0

    wait_until(remounted, what="nobody who writes there")
    daemon.process.send_signal(signal.SIGCONT)


@pytest.mark.long
def test_a_hot_disk_that_is_unmounted_is_waited_for(home: Path) -> None:
    disk, hot = home / "disk", home / "hot"
    for place in (disk, hot):
        place.mkdir()

    def plug_in() -> None:
        subprocess.run(["mount", "--bind", str(disk), str(hot)], check=True, timeout=20)

    plug_in()
    data = pipeline(home)
    with at_work(data):
        wait_until(lambda: "building" in data.states().values(), what="a build")
        subprocess.run(["umount", "--lazy", str(hot)], check=True, timeout=20)
        wait_for_event(data, "list_failed")
        wait_for_trouble(data, "mount the disk")
        still_turns(data)
        assert not list(hot.iterdir()), "what was there is not made again in an empty folder"
        plug_in()
        wait_for(data, "proven")
    nothing_was_blamed(data)
    assert len(data.sets()) == FILES


MIB = 1 << 20
HOT, FLOOR = 4 * MIB, MIB


# Says its steps, and leaves its checkpoints to the test.
STEPS = """
import time
for step in range(1, 10**6):
    print(f"iter {step}: loss 1.0, time 1.00ms", flush=True)
    time.sleep(0.1)
"""


@pytest.mark.long
def test_a_trainers_directory_that_hangs_holds_up_its_checkpoints_alone(home: Path, mounts: Mounts) -> None:
    out = mounts(home / "beneath", home / "out")
    run = make_external(home, STEPS, train__external={"checkpoints": "out/*", "quiet": "0.3s"})
    supervisor = run.start()
    try:
        wait_until(run.last_step, what="training")
        (home / "beneath" / "step-1.bin").write_bytes(b"1")
        wait_until(lambda: run.checkpoints() == ["step-000000001"], what="the seal")
        out.halt()
        (home / "beneath" / "step-2.bin").write_bytes(b"2")
        wait_until(lambda: run.events("external_unavailable"), what="the event")
        step = run.last_step()
        wait_until(lambda: run.last_step() > step + 20, what="training")
        assert run.checkpoints() == ["step-000000001"]
        assert len(run.events("external_unavailable")) == 1
        out.go_on()
        wait_until(lambda: run.checkpoints()[1:] == ["step-000000002"], what="the seal")
        wait_until(lambda: run.events("external_available"), what="the event")
    finally:
        supervisor.stop()


def small(home: Path) -> DataPipeline:
    """A pipeline on a small disk whose tokenizer costs little: a token a byte."""
    tokenizer = {"train": {"vocab_size": 257, "train_bytes": "20KB"}, "engine": "fastokens"}
    stage = {"settle": "0s", "free_floor": f"{FLOOR}B"}
    shard = {"val_ratio": 0.1, "shard_tokens": 100_000_000, "release": "never"}
    return make_pipeline(home, tokenizer=tokenizer, stage=stage, shard=shard)


def test_a_file_that_expands_to_more_than_the_disk_is_set_aside_and_the_others_are_built(home: Path) -> None:
    mount_small(home / "hot", HOT)
    data = small(home)
    write_files(data)
    write_repeated(data.source / "0-bomb.parquet", prose(random.Random(1), 5_000)[: MIB // 4], rows=200)
    data.receive()
    least = drained_with_least_free(data)
    states = data.states()
    assert states.pop("0-bomb.parquet") == "quarantined"
    assert list(states.values()) == ["proven"] * FILES
    finding = data.reasons()["0-bomb.parquet"]
    assert finding["reason"] == "exceeds_disk"
    assert HOT // 2 < finding["needed_bytes"] < HOT + (16 << 20), "what it took, and one piece more"
    assert HOT // 2 < finding["room_bytes"] < HOT
    assert least >= FLOOR, "the build went into the floor"
    assert not list((home / "hot" / ".building").iterdir()), "what was begun of it is gone"
    audit = audit_of(data.file, deep=True)
    assert audit["balanced"], audit["findings"]
    assert "exceeds_disk" in quarantine(data, "list")
    assert "at its next start" in quarantine(data, "release", "0-bomb.parquet"), "once there is a larger disk"


def quarantine(data: DataPipeline, verb: str, *words: str) -> str:
    """What `stoker quarantine` says."""
    command = [STOKER, "quarantine", verb, str(data.file), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.long
def test_a_file_that_expands_beyond_its_claim_is_built_where_there_is_room(home: Path) -> None:
    mount_small(home / "hot", 2 * HOT)
    data = small(home)
    write_files(data, count=1)
    write_repeated(data.source / "1-repeated.parquet", prose(random.Random(1), 80), rows=600)
    data.receive()
    assert drained_with_least_free(data) >= FLOOR
    assert list(data.states().values()) == ["proven"] * 2 and not data.reasons()
    built = data.sources()["1-repeated.parquet"]
    assert built.books is not None and built.books.tokens * 2 > 100 * built.size


def drained_with_least_free(data: DataPipeline) -> int:
    """Have all shard sets made; returns the fewest bytes that were free on hot meanwhile."""
    least = free_bytes(data.pipeline.hot)
    command = daemon_command(STAGE_SHARD, data.file, "--once")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as loop:
        while loop.poll() is None:
            least = min(least, free_bytes(data.pipeline.hot))
            time.sleep(0.005)
        assert loop.stderr is not None
        assert loop.returncode == 0, loop.stderr.read()
    return least


def findings_of(data: DataPipeline) -> tuple[int, dict[str, str], float]:
    """What `stoker doctor` says: its exit code, the outcome of each check that is not well, its seconds."""
    began = time.monotonic()
    command = [STOKER, "doctor", str(data.file), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    rows = json.loads(ended.stdout)["checks"]
    found = {row["name"]: row["outcome"] for row in rows if row["outcome"] != "ok"}
    return ended.returncode, found, time.monotonic() - began


SKIPPED = dict.fromkeys(("config", "disks", "permissions", "units"), "skipped")


def test_doctor_names_a_mount_that_hangs_is_held_up_by_none_and_finds_a_full_disk(
    home: Path, mounts: Mounts
) -> None:
    mount_small(home / "warm", MIB)
    train = {"train__schedule": {"warmup_steps": 2}, "train__evaluate": {"tokens": 1000}}
    data = make_pipeline(home, warm=str(home / "warm"), **train)
    write_fineweb(data.source / "a.parquet", 150)
    hot = mounts(home / "below", home / "hot")
    (home / "warm" / "filling").write_bytes(bytes(free_bytes(home / "warm")))
    assert findings_of(data)[:2] == (2, {"disks": "broken"})
    hot.halt()
    code, found, _ = findings_of(data)
    assert (code, found) == (2, {"mounts": "broken", **SKIPPED})
    hot.go_on()


@pytest.mark.long
def test_doctor_is_done_in_half_a_minute_though_its_worker_cannot_be_killed(
    home: Path, mounts: Mounts
) -> None:
    away = mounts(home / "below", home / "away")
    named = make_pipeline(home, "named", tokenizer={"file": str(home / "away" / "tokenizer.json")})
    hot = make_pipeline(home / "second", hot=str(home / "away"))
    away.swallow()
    code, found, seconds = findings_of(named)  # no directory of the pipeline, and yet a check hangs on it
    assert code == 2 and found["config"] == found["source"] == "broken" and seconds < 30
    code, found, seconds = findings_of(hot)
    assert code == 2 and found == {"mounts": "broken", **SKIPPED} and seconds < 20, "it said that it is done"
    away.go_on()
