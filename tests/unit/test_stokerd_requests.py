"""A daemon's requests: one that can be neither read nor moved is told once and keeps no other waiting."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.kit.events import Events, EventTail, Log
from stoker.kit.metrics import Metrics
from stoker.store.layout import STAGE_SHARD, StateLayout
from stoker.store.requests import file_request
from stokerd.common.loop import RequestBox


def test_what_cannot_be_moved_is_told_once_and_moved_when_it_can(tmp_path: Path) -> None:
    layout = StateLayout(tmp_path)
    layout.create()
    metrics = Metrics(STAGE_SHARD, "demo")
    box = RequestBox(
        layout,
        STAGE_SHARD,
        Events(layout, Log(STAGE_SHARD, "demo", environ={}), metrics.events),
    )
    directory = layout.requests(STAGE_SHARD)
    (directory / os.fsdecode(b"\xff.json")).write_bytes(b"{}")
    layout.quarantine.rmdir()
    layout.quarantine.write_bytes(b"")  # nothing can be moved into it
    asked = file_request(layout, STAGE_SHARD, "verify", {})
    for _ in range(3):
        assert [request.id for request in box.read()] == [asked]
    (told,) = EventTail(layout).new()
    assert (told["event"], told["path"]) == ("request_stuck", f"{directory}/\\udcff.json")

    layout.quarantine.unlink()
    layout.quarantine.mkdir()
    assert [request.id for request in box.read()] == [asked]
    assert [file.name for file in directory.iterdir()] == [f"{asked}.json"]
    assert len(list(layout.quarantine.glob("*/reason.json"))) == 1
    metrics.close()
