"""Quarantined checkpoints that somebody wants gone: the train supervisor keeps them, so it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.corpus.quarantine.directory import QuarantineShelf
from stoker.kit.context import DaemonContext
from stoker.shards.audit.recheck import DROP
from stoker.store.files import remove_tree
from stoker.store.requests import Request

__all__ = ["DROP", "CheckpointDrops"]


class CheckpointDrops:
    """Removes places of quarantined checkpoints, the reason with it: an emptied one would count as kept."""

    def __init__(self, context: DaemonContext) -> None:
        self._directory, self._events = context.layout.quarantine, context.events

    def consider(self, request: Request) -> Mapping[str, Any]:
        """Do it, or say why not; one that is gone already is gone."""
        name = str(request.args.get("name"))
        kept = next((one for one in QuarantineShelf(self._directory).read() if one.name == name), None)
        if kept is None:
            return {"dropped": name, "bytes": 0}
        if kept.kind != "checkpoint":
            return {"refused": f"{name} is no checkpoint; the stage-shard loop keeps what else there is"}
        remove_tree(self._directory / name)
        why = f"asked for by {request.by}"
        self._events.record(
            "quarantine_dropped", kind=kept.kind, path=kept.path, folder=name, bytes=kept.bytes, why=why
        )
        return {"dropped": name, "bytes": kept.bytes}
