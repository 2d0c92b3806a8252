"""Checkpoints of a trainer of the user's own under a real supervisor: sealed, restored, rolled back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.foreign import make_foreign
from support.training import TrainPipeline

# Trains to `steps` from the newest `out/step-N.bin` it is given; saves every 10 steps; ends as the files
# `crash-<launch>` say.
SAVES = """
import os, sys, time
steps, resume = int(sys.argv[1]), os.environ["STOKER_RESUME_FROM"]
done = int(open(resume).read()) if resume else 0
with open("launches", "a") as told:
    told.write(f"{done} {resume}\\n")
launch = len(open("launches").readlines())
os.makedirs("out", exist_ok=True)
for step in range(done + 1, steps + 1):
    print(f"iter {step}: loss {9 / step}, time 1.00ms", flush=True)
    if step % 10 == 0:
        open(f"out/step-{step}.bin", "w").write(str(step))
    if os.path.exists(f"die-{launch}-{step}"):
        os.kill(os.getpid(), 9)
"""


def launches(home: Path) -> list[str]:
    return (home / "launches").read_text().splitlines()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def make(home: Path, script: str = SAVES, *words: str, **keys: Any) -> TrainPipeline:
    return make_foreign(home, script, *(words or ("40",)), train__external={"checkpoints": "out/*"}, **keys)


def test_it_resumes_from_its_own_path_restored_from_the_proven_copy(tmp_path: Path) -> None:
    run = make(tmp_path)
    (tmp_path / "die-1-25").touch()
    (tmp_path / "die-2-25").touch()
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert launches(tmp_path) == ["0 ", *[f"20 {tmp_path}/out/step-20.bin"] * 2]
    assert {one["step"] for one in run.events("checkpoint_sealed")} == {10, 20, 30, 40}
    assert run.record()["finished"] == "trainer"
    newest = run.run.checkpoints / "step-000000040"
    assert (newest / "files" / "step-40.bin").read_text() == "40"
    assert json.loads((newest / "checkpoint.json").read_bytes())["loss"] is not None
