"""What many listed files cost the download watchdog: to read their receipts, list them, and find all here."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from benchlib.runner import Measures, Scenario
from benchlib.scenarios.download import peaks_until_end
from benchlib.scenarios.records import write_record_undurably
from stoker.config.load import load_pipeline
from stoker.corpus.fetch.landing import PARTS
from stoker.corpus.records.receipts import Receipt, read_listing
from stoker.store.layout import record_name

COUNTS = (20, 50_000)
PLACE = "http://127.0.0.1:9/data/"  # nothing is asked there: all is here

PIPELINE = """\
name: bench
state: state
hot: hot
dataset: {name: prose, source: {kind: urls, urls_file: urls.txt}}
tokenizer: {file: tokenizer.json}
train: {steps: 10, model: demo, seq_len: 256, global_batch: 16, micro_batch: 16}
metrics: {ports: {download: 0, shard: 0, train: 0}}
"""


class Listed(Scenario):
    """A download watchdog with 20 (the scale) and 50,000 files listed and receipted: its time, its memory."""

    name = "listed"
    repeats = 3
    limits: ClassVar = {"rss_bytes": 68e6}

    def prepare(self, directory: Path) -> None:
        for count in COUNTS:
            _write_state(directory / str(count), count)

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            f"{count:,} files": lambda directory, count=count: _once(directory / str(count), count)
            for count in COUNTS
        }


def _once(home: Path, count: int) -> Measures:
    """From the launch until all was listed and found, the listing written."""
    file = home / "bench.yaml"
    layout = load_pipeline(file).layout
    layout.listing("prose").unlink(missing_ok=True)
    shutil.rmtree(layout.events("download_watchdog").parent, ignore_errors=True)
    with (home / "stderr.log").open("wb") as errors:
        began = time.monotonic()
        daemon = subprocess.Popen(
            [str(Path(sys.executable).parent / "stoker-download-watchdog"), str(file), "--once"],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )
        peaks = peaks_until_end(daemon)
        wall_s = time.monotonic() - began
    listing = read_listing(layout, "prose")
    if daemon.returncode or listing is None or not listing.complete or len(listing.files) != count:
        raise RuntimeError(f"the watchdog said:\n{(home / 'stderr.log').read_text()[-2000:]}")
    return {"wall_s": wall_s, "rss_bytes": peaks["daemon"]}


def _write_state(home: Path, count: int) -> None:
    home.mkdir()
    (home / "bench.yaml").write_text(PIPELINE)
    (home / "tokenizer.json").write_text("{}\n")  # not read here
    pipeline = load_pipeline(home / "bench.yaml")
    layout, landing = pipeline.layout, pipeline.source_root
    layout.create()
    (landing / PARTS).mkdir(parents=True)
    with (home / "urls.txt").open("w") as urls:
        for number in range(count):
            path = f"{number // 1000:03}_{number % 1000:05}.parquet"
            sha256 = hashlib.sha256(path.encode()).hexdigest()
            urls.write(f"{PLACE}{path} {sha256}\n")
            file = str(landing / path)
            receipt = Receipt("prose", path, file, 2**31, sha256, "", f"sha256:{sha256}", "verified")
            record = layout.receipts / f"{record_name('prose', path)}.json"
            write_record_undurably(record, receipt.to_record())
    os.sync()
