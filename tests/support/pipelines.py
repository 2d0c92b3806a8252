"""Small pipelines for tests of the data daemons: a file, its directories, the daemons run over it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import DatasetPin, read_pin
from stoker.corpus.records.receipts import (
    Listing,
    Receipt,
    read_listing,
    read_receipts,
    write_listing,
    write_receipt,
)
from stoker.corpus.records.sources import Source, read_sources
from stoker.kit.event_types import event_types
from stoker.kit.lock import read_holder
from stoker.observe.status import read_status
from stoker.store.log import read_log
from support.processes import RunningDaemon, daemon_command, start_daemon
from support.waiting import LONG_S


@dataclass
class DataPipeline:
    """A pipeline below one test directory; its source folder is `source`."""

    home: Path
    file: Path
    pipeline: Pipeline

    @property
    def source(self) -> Path:
        return self.home / "source"

    def receipts(self) -> dict[str, Receipt]:
        """The receipts on disk."""
        return read_receipts(self.pipeline.layout, self.pipeline.dataset.name)

    def sources(self) -> dict[str, Source]:
        """The source records on disk."""
        return read_sources(self.pipeline.layout, self.pipeline.dataset.name)

    def states(self) -> dict[str, str]:
        """The sources' states by path."""
        return {path: source.state for path, source in self.sources().items()}

    def pin(self) -> DatasetPin:
        """The dataset's pin."""
        pin = read_pin(self.pipeline.layout, self.pipeline.dataset.name)
        assert pin is not None
        return pin

    def sets(self) -> dict[str, dict[str, bytes]]:
        """Every published set: its files' bytes by name, build.json aside, which tells when and how long."""
        folder = self.pipeline.hot_layout.shards(self.pipeline.dataset.name)
        return {
            each.name: {
                file.name: file.read_bytes() for file in sorted(each.iterdir()) if file.name != "build.json"
            }
            for each in sorted(folder.iterdir())
        }

    def events(self, daemon: str, word: str | None = None) -> list[dict[str, Any]]:
        """What a daemon recorded."""
        entries = read_log(self.pipeline.layout.events(daemon)).entries
        assert {entry["event"] for entry in entries} <= event_types(daemon).keys(), "a word of no table"
        return [entry for entry in entries if word is None or entry["event"] == word]

    def status(self, daemon: str = "stage_shard") -> dict[str, Any]:
        """A daemon's last snapshot; {} before its first."""
        return dict(read_status(self.pipeline.layout)[daemon]["body"])

    def metrics(self, daemon: str) -> dict[tuple[str, ...], float]:
        """What Prometheus would see of a daemon: by name and the values of the labels."""
        holder = read_holder(self.pipeline.layout.lock(daemon))
        assert holder is not None
        with urllib.request.urlopen(f"http://{holder.extra['metrics']}/metrics", timeout=LONG_S) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in families for sample in family.samples]
        return {
            (one.name, *(value for name, value in one.labels.items() if name != "pipeline")): one.value
            for one in samples
        }

    def listed(self) -> dict[str, int]:
        """The listed files' sizes by path."""
        listing = read_listing(self.pipeline.layout, self.pipeline.dataset.name)
        return {} if listing is None else dict(listing.files)

    def reasons(self) -> dict[str, dict[str, Any]]:
        """The quarantine's reasons by path."""
        found = [
            json.loads(file.read_text()) for file in self.pipeline.layout.quarantine.glob("*/reason.json")
        ]
        return {each["path"]: each for each in found}

    def once(self, daemon: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a daemon with --once to its end."""
        return subprocess.run(
            daemon_command(daemon, self.file, "--once"),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def receive(self) -> None:
        """Write what a download watchdog leaves that saw the whole source folder: receipts and listing."""
        layout, dataset = self.pipeline.layout, self.pipeline.dataset
        layout.create()
        files = sorted(file for file in dataset.source.path.glob("*.parquet") if not file.is_symlink())
        for file in files:
            about, content = file.stat(), hashlib.sha256(file.read_bytes()).hexdigest()
            etag = f"{about.st_size}-{about.st_mtime_ns}-{about.st_ino}"
            receipt = Receipt(
                dataset.name, file.name, str(file), about.st_size, content, "", etag, "verified"
            )
            write_receipt(layout, receipt)
        listed = tuple((file.name, file.stat().st_size) for file in files)
        write_listing(layout, Listing(dataset.name, listed, complete=True, revision=""))

    def build(self) -> None:
        """Bring every received file to its shard set."""
        ended = self.once("stage_shard")
        assert ended.returncode == 0, ended.stderr

    def drain(self) -> None:
        """Shard sets of everything in the source folder."""
        self.receive()
        self.build()

    def start(self, daemon: str) -> RunningDaemon:
        """Start a daemon and wait until it is READY."""
        return start_daemon(daemon_command(daemon, self.file), self.home / f"{daemon}.err")


def make_pipeline(home: Path, name: str = "data", **changes: Any) -> DataPipeline:
    """Write a pipeline file; `changes` are keys by their dotted path with "__" for the dot."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "source").mkdir(exist_ok=True)
    body: dict[str, Any] = {
        "name": name,
        "state": str(home / "state"),
        "hot": str(home / "hot"),
        "dataset": {
            "name": "prose",
            "source": {"kind": "folder", "path": str(home / "source")},
            "filters": {"min_chars": 20},
        },
        "stage": {"settle": "0s", "free_floor": "1MiB"},
        "tokenizer": {"train": {"vocab_size": 400, "train_bytes": "60KB"}},
        "shard": {"val_ratio": 0.1, "shard_tokens": 8000, "workers": 1},
        "train": {
            "steps": 10,
            "start_when": {"tokens": "1000"},  # that fits on the smallest hot disk of a test
            "seq_len": 32,
            "global_batch": 2,
            "model": {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "ffn_width": 64},
        },
        "metrics": {"ports": {"download": 0, "shard": 0, "train": 0}},
    }
    for key, value in changes.items():
        *parents, last = key.split("__")
        section = body
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    file = home / f"{name}.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False))
    return DataPipeline(home, file, load_pipeline(file))


class Template:
    """A pipeline that was made once; each test works on a copy of what the daemons wrote."""

    def __init__(self, home: Path) -> None:
        self.made = opened(home)

    @property
    def tokenizer(self) -> dict[str, str]:
        """The tokenizer section of a pipeline that is given this one's: to train one takes longer."""
        return {"file": str(self.made.pipeline.layout.tokenizer(self.made.pipeline.dataset.name, 1))}

    def copy(self, home: Path, **changes: Any) -> DataPipeline:
        """A pipeline with copies of state and hot over the same source folder."""
        for part in ("state", "hot"):
            shutil.copytree(self.made.home / part, home / part, dirs_exist_ok=True)
        return self.again(home, **changes)

    def copy_with_source(self, home: Path) -> DataPipeline:
        """A pipeline with a source folder of its own too, received as it is now."""
        shutil.copytree(self.made.source, home / "source")
        data = self.copy(home, dataset__source__path=str(home / "source"))
        data.receive()
        return data

    def again(self, home: Path, **changes: Any) -> DataPipeline:
        """The pipeline of a copy with another configuration."""
        return make_pipeline(home, **{"dataset__source__path": str(self.made.source), **changes})


def opened(home: Path, name: str = "data") -> DataPipeline:
    """The pipeline that was made there before."""
    file = home / f"{name}.yaml"
    return DataPipeline(home, file, load_pipeline(file))
