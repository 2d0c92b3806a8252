"""What durability costs: entries appended and records written, with and without their fsyncs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchlib.runner import Measures, Scenario
from stoker.store.direct import hash_file
from stoker.store.files import canonical_json, write_atomic
from stoker.store.log import ChainedLog

COUNT = 200
FILE_BYTES = 64 * 2**20


class StoreScenario(Scenario):
    """Appends and atomic writes a second, not durable (the scale) and durable."""

    name = "store"

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            "not durable": lambda directory: _writes(directory, durable=False),
            "durable": lambda directory: _writes(directory, durable=True),
        }


class HashScenario(Scenario):
    """Bytes hashed a second, from the page cache (the scale) and past it."""

    name = "hash"

    def prepare(self, directory: Path) -> None:
        (directory / "file").write_bytes(secrets.token_bytes(FILE_BYTES))

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            "cached": lambda directory: _hash(directory / "file", past_cache=False),
            "past the cache": lambda directory: _hash(directory / "file", past_cache=True),
        }


def _writes(directory: Path, *, durable: bool) -> Measures:
    log = ChainedLog(directory / f"log-{secrets.token_hex(4)}")
    began = time.monotonic()
    for number in range(COUNT):
        log.append({"v": 1, "n": number, "event": "measured"}, durable=durable)
    appended = time.monotonic()
    for number in range(COUNT):
        write_atomic(directory / "record", canonical_json({"v": 1, "n": number}), durable=durable)
    written = time.monotonic()
    log.close()
    return {"appends_per_s": COUNT / (appended - began), "writes_per_s": COUNT / (written - appended)}


def _hash(path: Path, *, past_cache: bool) -> Measures:
    began = time.monotonic()
    hash_file(path, past_cache=past_cache)
    return {"rate_bytes_per_s": FILE_BYTES / (time.monotonic() - began)}
