"""A file of a version that is not known: every reader stops, names it, and leaves everything as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.corpus.fetch.landing import PARTS, Landing
from stoker.corpus.records.dataset import read_pin
from stoker.corpus.records.receipts import read_listing, read_receipts
from stoker.corpus.records.sources import read_source, read_sources
from stoker.kit.workers.parent import WorkerExit
from stoker.kit.workers.pool import raise_unknown_format
from stoker.plan.timelines import read_timelines
from stoker.shards.build.commit import PROGRESS, recover
from stoker.store.errors import UnknownFormat
from stoker.store.layout import STAGE_SHARD, StateLayout
from stoker.store.log import GENESIS
from stoker.store.record import RecordDamaged, read_or_set_aside, read_record, write_record
from stoker.store.requests import file_request, pending_requests
from stoker.supervise.mirror.inventory import MirrorState
from stoker.supervise.run.launch_record import read_launches

NEWER = {"v": 2, "dataset": "data", "path": "a", "key": "k", "origin": [1, 2, 3], "files": []}
Reader = Callable[[StateLayout], object]
RECORDS: dict[str, tuple[Reader, Reader]] = {  # by name: where it lies, and who reads it
    "pin": (lambda at: at.dataset("data"), lambda at: read_pin(at, "data")),
    "listing": (lambda at: at.listing("data"), lambda at: read_listing(at, "data")),
    "receipt": (lambda at: at.receipt("data", "a"), lambda at: read_receipts(at, "data")),
    "source": (lambda at: at.source("data", "a"), lambda at: read_sources(at, "data")),
    "one source": (lambda at: at.source("data", "a"), lambda at: read_source(at, "data", "a")),
    "run": (lambda at: at.run("main").record, lambda at: read_or_set_aside(at.run("main").record, at.state)),
    "mirror": (
        lambda at: at.run("main").mirror, lambda at: MirrorState(at.run("main").mirror, at.quarantine)
    ),
    "build": (
        lambda at: at.state / "building" / PROGRESS, lambda at: recover(at.state / "building", "k", (1, 2, 3))
    ),
    "landing": (
        lambda at: at.state / "landing" / PARTS / "a.json",
        lambda at: Landing(at.state / "landing", "data", expected=True).sweep(),
    ),
}  # fmt: skip


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    layout = StateLayout(tmp_path)
    layout.create()
    return layout


@pytest.mark.parametrize("name", RECORDS)
def test_no_reader_takes_a_newer_record_for_damage_or_for_nothing(layout: StateLayout, name: str) -> None:
    place, read = RECORDS[name]
    path = Path(str(place(layout)))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, NEWER)
    (path.parent / "a.part").write_bytes(b"what it speaks of")
    before = sorted(layout.state.rglob("*"))
    with pytest.raises(UnknownFormat) as stopped:
        read(layout)
    assert str(stopped.value).startswith(f"{path} is of format version 2, this Stoker reads version 1")
    assert stopped.value.exit_code == 78
    assert sorted(layout.state.rglob("*")) == before


def test_what_rotted_is_damaged_whatever_version_it_says(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", {"v": 1})
    (tmp_path / "a.json").write_bytes((tmp_path / "a.json").read_bytes().replace(b'"v":1', b'"v":3'))
    with pytest.raises(RecordDamaged):
        read_record(tmp_path / "a.json")


@pytest.mark.parametrize("read", [read_timelines, read_launches])
def test_a_newer_line_of_a_log_stops_its_reader(tmp_path: Path, read: Callable[[Path], object]) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"v": 2, "prev": GENESIS}) + "\n")
    with pytest.raises(UnknownFormat, match=r"log\.jsonl.* is of format version 2"):
        read(log)


def test_a_request_of_a_newer_command_is_refused_and_ends_no_daemon(layout: StateLayout) -> None:
    asked = file_request(layout, STAGE_SHARD, "prove_set", {})
    path = layout.requests(STAGE_SHARD) / f"{asked}.json"
    write_record(path, {**read_record(path), "v": 2})
    (request,) = pending_requests(layout, STAGE_SHARD)
    assert (request.id, "is of format version 2" in request.verb) == (asked, True)


def test_a_worker_that_met_a_newer_version_ends_its_daemon_too() -> None:
    error = {"type": "UnknownFormat", "message": "x.json is of format version 2", "exit_code": 78}
    with pytest.raises(UnknownFormat, match=r"x\.json is of format version 2"):
        raise_unknown_format(WorkerExit("failed", 78, None, None, error, 0))
    raise_unknown_format(WorkerExit("failed", 78, None, None, {**error, "type": "ConfigError"}, 0))
    raise_unknown_format(WorkerExit("killed", None, 9, None, None, 0))
