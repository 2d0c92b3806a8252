"""Fixtures of the fetch worker's tests: one hub a module, and workers that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.corpus.fetch.landing import PARTS, PartRecord
from stoker.corpus.http.remote_file import RemoteFile
from support.fetching import Fetching, fetch_task
from support.loopback_hub import LoopbackHub

SIZE = 3_000_000
CUT = 1_200_000  # where a transfer breaks off
Start = Callable[..., Fetching]


@pytest.fixture(name="served_hub", scope="module")
def served_hub_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHub]:
    with LoopbackHub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(name="hub")
def hub_fixture(served_hub: LoopbackHub) -> LoopbackHub:
    served_hub.control("clear")
    served_hub.control("forget")
    served_hub.control("set", gated={}, xet=False)
    return served_hub


@pytest.fixture(name="landing")
def landing_fixture(tmp_path: Path) -> Path:
    return tmp_path / "landing"


@pytest.fixture(name="start")
def start_fixture(hub: LoopbackHub, landing: Path) -> Iterator[Start]:
    workers: list[Fetching] = []

    def start(*, environ: dict[str, str] | None = None, **changes: Any) -> Fetching:
        workers.append(Fetching({**fetch_task(landing, hub), **changes}, environ=environ))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


def content(landing: Path, file: RemoteFile) -> bytes:
    return (landing / file.path).read_bytes()


def left(landing: Path) -> list[str]:
    """What lies there besides whole files."""
    return sorted(str(each.relative_to(landing)) for each in (landing / PARTS).rglob("*"))


def durable(landing: Path) -> dict[str, int]:
    """The bytes that are claimed durable of each unfinished file."""
    records = [PartRecord.read(each) for each in (landing / PARTS).glob("*.json")]
    return {record.path: record.offset for record in records if record is not None}


def until_durable(worker: Fetching, size: int, files: list[RemoteFile]) -> None:
    """Wait until so many bytes of each file are durable."""
    paths = {file.path for file in files}
    worker.until_true(
        lambda: {each["path"] for each in worker.of("progress") if each["bytes"] == size} == paths,
        f"{size} durable bytes of each file",
    )
