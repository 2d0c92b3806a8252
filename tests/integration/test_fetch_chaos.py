"""Many files, random faults, random kills of the fetch worker: every byte true, few fetched twice.

STOKER_FETCH_CHAOS="FILES KILLS SEED BYTES" (default "6 3 1 400000") makes it larger; BYTES are of a file,
about.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from stoker.corpus.fetch.landing import EVIDENCE, PARTS
from support.fetching import Fetching, fetch_task, hub_file
from support.loopback_hub import LoopbackHub, noise

FILES, KILLS, SEED, SIZE = map(int, os.environ.get("STOKER_FETCH_CHAOS", "6 3 1 400000").split())
HANDS = 4
# A kill costs each hand what it took since its last commit, and what the kernel had for it.
A_KILL = HANDS * (640 << 10)
LIMIT_S = 120 + 5 * KILLS + FILES


def random_fault(rng: random.Random, *, refetching: bool) -> dict[str, object]:
    """A fault that strikes once, at any file that asks next."""
    after = rng.randrange(SIZE)
    gentle = [
        {"kind": "stall", "after": after},
        {"kind": "reset", "after": after},
        {"kind": "short", "after": after},
        {"kind": "trickle", "after": after, "seconds": 0.02},
        {"kind": "status", "on": rng.choice(("cdn", "resolve")), "code": rng.choice((429, 500, 502, 503))},
        {"kind": "status", "on": "resolve", "code": 429, "retry_after": "0"},
        {"kind": "slow_head", "on": rng.choice(("cdn", "resolve"))},
        {"kind": "expired", "on": "resolve"},
    ]
    harsh = [{"kind": "wrong", "after": after}, {"kind": "etag", "after": after}, {"kind": "no_range"}]
    return rng.choice(harsh if refetching else gentle)


def until_interrupted(worker: Fetching, words: int, left: int) -> None:
    """Wait for so many words about bytes, or the end of all that is left."""

    def heard() -> bool:
        done = len(worker.of("done"))
        return done == left or done + len(worker.of("progress")) >= words

    worker.until_true(heard, "something to interrupt")


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("refetching", [False, True], ids=["gentle", "harsh"])
def test_every_byte_is_true_through_faults_and_kills(refetching: bool, tmp_path: Path) -> None:
    rng = random.Random(SEED * 2 + refetching)
    landing = tmp_path / "landing"
    task_changes = {
        "read_s": 0.5,
        "min_rate": 20_000,
        "attempts": 1000,
        "keep_files": 2,
    }
    with LoopbackHub(tmp_path / "hub") as hub:
        task = fetch_task(landing, hub, files_at_once=HANDS, **task_changes)
        contents = [noise(rng.randrange(SIZE // 2, SIZE * 3 // 2), n) for n in range(FILES)]
        for number, data in enumerate(contents):
            hub.put(f"c{number:03}.parquet", data)
        files = [hub_file(hub, f"c{number:03}.parquet", data) for number, data in enumerate(contents)]
        done: set[str] = set()
        kills = 0
        while len(done) < FILES:
            for _ in range(rng.randrange(1, 2 + FILES // 4)):
                hub.fault(**random_fault(rng, refetching=refetching))
            worker = Fetching(task)
            try:
                worker.fetch(*(file for file in files if file.path not in done))
                left = FILES - len(done)
                if kills < KILLS:
                    until_interrupted(worker, rng.randrange(1, 2 + 4 * FILES // KILLS), left)
                    kills += 1
                else:
                    worker.until("done", count=left)
            finally:
                worker.kill()
            done |= {each["path"] for each in worker.of("done")}
            assert not worker.of("failed"), worker.said
            assert "not what was written" not in str(worker.of("anew")), worker.said
            assert refetching or not worker.of("mismatch"), worker.said
        served = hub.served()
    for file, data in zip(files, contents, strict=True):
        assert (landing / file.path).read_bytes() == data
    assert list((landing / PARTS).iterdir()) == []
    assert refetching or not (landing / EVIDENCE).exists()
    whole = sum(map(len, contents))
    print(f"{kills} kills, {served / whole:.3f} x the content served")
    if not refetching:
        assert served <= whole + kills * A_KILL
