"""Shard sets on hot with copies on warm, made once, and runs over copies of them: for tests of whole runs."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.store.layout import STAGE_SHARD, TRAIN_SUPERVISOR
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, make_pipeline, opened
from support.processes import RunningDaemon
from support.training import TrainPipeline, small_trainer

FILES = 3
# Evict whatever may leave: nearly the whole disk is to be free. The whole of it would be refused.
ALMOST_ALL = shutil.disk_usage(tempfile.gettempdir()).total - (1 << 20)
EVERYTHING_OFF: dict[str, Any] = {"target_free": f"{ALMOST_ALL}B", "keep_hot_sets": 0}
SETTINGS: dict[str, Any] = {
    "shard__release": "after_sync",
    "evict": {"target_free": "0B"},
    "plan": {"segment_tokens": 1000, "epochs": 1, "hold": "1h"},
    "train": {
        "steps": 1000,
        "seq_len": 64,
        "global_batch": 16,
        "deterministic": True,
        "model": {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "ffn_width": 32},
        "start_when": {"tokens": "1000", "shard_sets": 1},
        "evaluate": {"every_steps": None, "tokens": 0},
        "checkpoint": {"every": None, "every_steps": 20, "keep_last": 2},
    },
    "supervise": {"stop_time": "20s", "backoff": {"first": "0.1s", "most": "0.2s"}},
}


class Ground:
    """Sets built and copied to warm, and a run over them that was left in peace."""

    def __init__(self, home: Path) -> None:
        self.made = opened(home)
        self.peace = TrainPipeline(opened(home / "peace"))

    @staticmethod
    def make(home: Path) -> None:
        made = make_pipeline(home, warm=str(home / "warm"), **SETTINGS)
        for number in range(FILES):
            write_fineweb(made.source / f"{number}.parquet", rows=150, seed=number)
        made.drain()
        peace = make_pipeline(
            home / "peace",
            **{**SETTINGS, "warm": str(home / "peace" / "warm"), "dataset__source__path": str(made.source)},
        )
        for part in ("state", "hot", "warm"):
            shutil.copytree(home / part, peace.home / part)
        ended = TrainPipeline(peace).once()
        assert ended.returncode == 0, ended.stderr

    def copy(self, home: Path, **changes: Any) -> DataPipeline:
        """A pipeline of its own with these sets, over the same source folder unless told otherwise."""
        return self._copy(self.made, home, changes)

    def copy_of_peace(self, home: Path, **changes: Any) -> DataPipeline:
        """The same with the run that is finished."""
        return self._copy(self.peace.data, home, changes)

    def _copy(self, made: DataPipeline, home: Path, changes: dict[str, Any]) -> DataPipeline:
        data = self.again(home, **changes)
        for part in ("state", "hot", "warm"):
            shutil.copytree(made.home / part, home / part, dirs_exist_ok=True)
        return data

    def again(self, home: Path, **changes: Any) -> DataPipeline:
        """The pipeline of a copy with another configuration."""
        given = {**SETTINGS, "warm": str(home / "warm"), "dataset__source__path": str(self.made.source)}
        return make_pipeline(home, **{**given, **changes})


@contextlib.contextmanager
def at_work(data: DataPipeline) -> Iterator[dict[str, RunningDaemon]]:
    """The loop and the supervisor, ended well."""
    daemons = {}
    try:
        with small_trainer():
            for name in (STAGE_SHARD, TRAIN_SUPERVISOR):
                daemons[name] = data.start(name)
        yield daemons
    finally:
        codes = [daemon.stop(40) for daemon in daemons.values()]
    assert codes == [0, 0]
