"""A trainer whose memory is short halves its micro-batch, goes on as that run, and ends with 71 at last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.sites import write_site
from support.trainer_run import TrainerRun
from support.waiting import LONG_S

LENGTH = 128
WIDE = {  # activations of 64 KiB a token and matrix, weights of 3 MiB
    **{"layers": 1, "width": 32, "heads": 4, "kv_heads": 2, "ffn_width": 8192},
    **{"rope_theta": 10000.0, "norm_eps": 1e-5, "tie_embeddings": False},
}
# Before the first step and after the last that is to succeed: what the process has and so much more.
_LIMITS = """
import resource, sys
if "stoker.training.trainer" in sys.orig_argv[1:4]:
    from pathlib import Path
    from stoker.supervise.run.metrics_log import MetricsLog

    def limit(more):
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + more, resource.RLIM_INFINITY))

    whole = MetricsLog.append
    def append(log, row):
        whole(log, row)
        if row["step"] == 0:
            limit(170 << 20)  # a step of 4 windows takes 130 MiB, one of 8 takes 230
        if row["step"] == 4:
            limit(1 << 20)
    MetricsLog.append = append
"""


@pytest.mark.long  # unit/test_training_memory proves the sizes, test_launch_policy what follows
def test_short_memory_halves_the_micro_batch_and_none_at_one_exits_71(tmp_path: Path) -> None:
    starved = _run(tmp_path / "starved")
    write_site(starved.root, _LIMITS)
    # The C library gives large blocks back at once and reserves none: the limit counts what is in use.
    malloc = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_ARENA_MAX": "1"}
    ended = starved.start(environ={"PYTHONPATH": str(starved.root), **malloc}).wait(LONG_S)
    assert ended == 71, starved.errors.read_text()
    assert "one window" in starved.errors.read_text()
    body = json.loads((starved.checkpoints()[-1] / "checkpoint.json").read_bytes())
    assert 1 <= body["micro_batch"] < 8

    small = _run(tmp_path / "small")
    assert small.start(micro_batch=body["micro_batch"], until=4).wait(LONG_S) == 0, small.errors.read_text()
    assert starved.rows() == small.rows()
    (ours,), (theirs,) = starved.checkpoints(), small.checkpoints()
    for file in theirs.glob("*.safetensors"):
        assert (ours / file.name).read_bytes() == file.read_bytes()


def _run(root: Path) -> TrainerRun:
    root.mkdir()
    cadence = {"every_s": None, "every_steps": 4}
    overrides = {"seq_len": LENGTH, "model": WIDE, "micro_batch": 8, "checkpoint": cadence}
    run = TrainerRun(root, steps=10, overrides=overrides)
    run.plan(100, seq_len=LENGTH)
    return run
