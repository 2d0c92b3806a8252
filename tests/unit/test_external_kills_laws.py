"""The laws of the kills of trainers of the user's own: what they find wrong in a ledger's notes."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.external_kills.laws import Disk, Ledger, lost, too_far_back, wrong_begin


def start(*stamps: tuple[int, int], told: str = "", problem: str = "") -> dict[str, Any]:
    parts = {f"part-{number}": list(stamp) for number, stamp in enumerate(stamps)}
    env = {"RESUME_FROM": "last" if stamps else "", "RESUME_STEP": told}
    return {
        "kind": "start",
        "path": "last" if stamps else None,
        "parts": parts,
        "problem": problem,
        "env": env,
    }


@pytest.mark.parametrize(
    ("begun", "wrong"),
    [
        (start(), []),
        (start((20, 7), (20, 7), told="20"), []),
        (start((20, 7), (20, 8)), ["begins from a mixture"]),
        (start((40, 7), (20, 7)), ["begins from a mixture"]),
        (start((20, 9), (20, 9)), ["begins from a state that no launch has saved"]),
        (start((20, 7), (20, 7), told="19"), ["STOKER_RESUME_STEP is 19"]),
        (start((20, 7), problem="cut off"), ["begins from half a state"]),
    ],
)
def test_a_launch_begins_from_one_save_and_with_its_step(begun: dict[str, Any], wrong: list[str]) -> None:
    saved = [{"kind": "writing", "path": "last", "step": 20, "nonce": nonce} for nonce in (7, 8)]
    found = list(wrong_begin(Ledger(Path(), notes=saved), begun))
    assert [one.startswith(word) for one, word in zip(found, wrong, strict=True)] == [True] * len(wrong)


@pytest.mark.parametrize(
    ("before", "finished", "last", "now", "is_told", "is_wrong"),
    [
        (0, [20, 40], 59, 40, True, False),
        (0, [20, 40], 59, 20, True, True),  # told: what was finished counts
        (0, [20, 40], 59, 20, False, False),  # not told: it may not have counted as over
        (0, [20, 40, 60], 61, 20, False, True),
        (40, [], 50, 40, True, False),
        (40, [], 50, 20, False, True),  # that of step 40 was proven
    ],
)
def test_a_launch_goes_back_by_one_interval_at_most(
    before: int, finished: list[int], last: int, now: int, *, is_told: bool, is_wrong: bool
) -> None:
    saves = [{"kind": "finished", "path": "last", "step": step} for step in finished]
    earlier = [start((before, 1)), *saves, {"kind": "step", "step": last}]
    assert bool(list(too_far_back(earlier, [start((now, 2))], 20, is_told=is_told))) is is_wrong


def test_what_a_stopped_trainer_saves_over_is_its_own_loss() -> None:
    saved = [{"kind": kind, "path": "last", "step": 40} for kind in ("writing", "finished")]
    earlier = [start((20, 1)), *saved, {"kind": "step", "step": 41}]
    assert list(too_far_back(earlier, [start((20, 1))], 20, is_told=True))
    over = [*earlier, {"kind": "writing", "path": "last", "step": 41}]
    assert not list(too_far_back(over, [start((20, 1))], 20, is_told=True))


def test_what_was_written_lies_somewhere_unless_the_trainer_wrote_over_it(tmp_path: Path) -> None:
    ledger, home = Ledger(tmp_path / "ledger"), tmp_path / "home"

    def save(step: int, path: Path) -> dict[str, Any]:
        path.mkdir(parents=True)
        files = {}
        for name in ("model", "optimizer"):
            (path / name).write_text(f"{name} {step}")
            files[f"{path.name}/{name}"] = hashlib.sha256(f"{name} {step}".encode()).hexdigest()
        return {"kind": "finished", "path": str(path), "step": step, "nonce": step, "files": files}

    def note(one: dict[str, Any]) -> None:
        with ledger.file.open("a") as file:
            file.write(json.dumps(one) + "\n")

    def missing() -> list[str]:
        return list(lost(ledger, Disk(home)))

    last = home / "out" / "last"
    note(save(20, last))
    assert missing() == []
    last.rename(home / "out" / "aside")
    assert missing() == []
    shutil.copytree(home / "out" / "aside", home / "sealed" / "last")
    (home / "out" / "aside" / "model").write_text("another")  # nor is one made of both places
    (home / "sealed" / "last" / "optimizer").unlink()
    assert missing() == [f"the finished state of step 20 is nowhere any more: {last}"]
    note({"kind": "writing", "path": str(last), "step": 40, "nonce": 40})
    assert missing() == []
