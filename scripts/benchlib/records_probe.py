"""Measures, in a process like the daemon's, what a loop with many records does; prints figures as JSON."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import stokerd.sharding.loop  # noqa: F401 - what the daemon has loaded before it reads a record
from stoker.config.load import load_pipeline
from stoker.corpus.records.index import Catalog
from stoker.corpus.records.receipts import Receipt, write_receipt
from stoker.corpus.records.record_dir import RecordDir
from stoker.corpus.records.sources import read_sources
from stoker.corpus.schedule.decide import decide, differs
from stoker.corpus.schedule.state import Limits, Situation
from stoker.shards.format.identity import set_key

T = TypeVar("T")
TURNS, CHANGES = 20, 5


def main(file: Path) -> None:
    """Measure the pipeline's records."""
    pipeline = load_pipeline(file)
    layout, dataset = pipeline.layout, pipeline.dataset.name
    figures: dict[str, float] = {}
    empty = rss()
    sources = Catalog(timed(figures, "read_sources_s", lambda: read_sources(layout, dataset)))
    gc.collect()
    figures["bytes_a_source"] = (rss() - empty) / len(sources)
    shelf = RecordDir(layout.receipts, dataset, Receipt.from_record, patient=True)
    held = rss()
    receipts = timed(figures, "read_receipts_s", lambda: read_all(shelf))
    gc.collect()
    figures["bytes_a_receipt"] = (rss() - held) / len(receipts)

    key = next(str(one.key) for one in sources.values() if one.key)
    published = {one.key16 for one in sources.values() if one.key}
    limits = Limits(1, 1, 8, 10**15, "never")
    unlike: set[str] = set()

    def key_of(sha256: str) -> str:
        return set_key(sha256, key)

    def turn() -> None:
        found = shelf.read()
        for path in shelf.take_changed():
            (unlike.add if differs(sources.get(path), found.get(path)) else unlike.discard)(path)
        situation = Situation(found, sources, limits, key_of, published=published, differing=unlike)
        decide(situation, time.monotonic())

    timed(figures, "first_decision_s", turn)
    time.sleep(0.2)  # the folder comes to rest
    turn()
    figures["quiet_turn_s"] = min(seconds(turn) for _ in range(TURNS))
    path, receipt = next(iter(receipts.items()))
    slowest = 0.0
    for number in range(CHANGES):
        other = replace(receipt, etag=f"{receipt.etag}-{number}")
        write_receipt(layout, other)
        seen = receipt
        while seen != other:
            slowest = max(slowest, seconds(turn))
            seen = shelf.read()[path]
            time.sleep(0.01)
    write_receipt(layout, receipt)
    figures["one_changed_s"] = slowest
    print(json.dumps(figures))


def read_all(shelf: RecordDir[Receipt]) -> Mapping[str, Receipt]:
    """Every receipt; the daemon decides for the first time after the first slice of them."""
    while True:
        found = shelf.read()
        if not shelf.behind:
            return found


def timed(figures: dict[str, float], name: str, do: Callable[[], T]) -> T:
    """What `do` returns; its time under a name."""
    began = time.monotonic()
    result = do()
    figures[name] = time.monotonic() - began
    return result


def seconds(do: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.monotonic()
    do()
    return time.monotonic() - began


def rss() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
