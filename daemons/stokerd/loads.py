"""What a fork server of the stage-shard loop loads, and under which name; light, for it is needed first."""

from __future__ import annotations

from pathlib import Path

from stoker.store.layout import STAGE_SHARD

PRELOAD = "stoker.shards.preload"
LOAD_S = 60.0  # the longest that loading may take


def crew_name(state: str | Path) -> str:
    """The name of the loop's crew, by which its processes are known."""
    return f"{state}:{STAGE_SHARD}"
