"""A download watchdog on a hub or a list of URLs on loopback, and what it made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.corpus.records.receipts import ReceiptState, write_receipt
from stoker.corpus.records.sources import Source, SourceState, write_source
from support.loopback_hub import LoopbackHub
from support.pipelines import DataPipeline, make_pipeline

WATCHDOG = "download_watchdog"


def from_hub(
    home: Path, hub: LoopbackHub, repo: str, more: Mapping[str, Any] | None = None, **changes: Any
) -> DataPipeline:
    """A pipeline that fetches this repository's parquet; `more` are keys of its source."""
    source = {"kind": "hub", "repo": repo, "endpoint": hub.endpoint, **(more or {})}
    return make_pipeline(home, dataset__source=source, **{"download__files_at_once": 2, **changes})


def from_urls(home: Path, lines: list[str], **changes: Any) -> DataPipeline:
    """A pipeline that fetches what these lines name, whatever it is called."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "urls.txt").write_text("".join(f"{line}\n" for line in lines))
    source = {"kind": "urls", "urls_file": str(home / "urls.txt"), "include": ["*"]}
    return make_pipeline(home, dataset__source=source, **{"download__files_at_once": 2, **changes})


def put(hub: LoopbackHub, repo: str, files: Mapping[str, bytes]) -> None:
    """Store files in a repository of their own."""
    for path, data in files.items():
        hub.put(path, data, repo=f"dataset/{repo}")


def landed(data: DataPipeline) -> dict[str, bytes]:
    """The whole files in the landing, by path."""
    root = data.pipeline.source_root
    names = sorted(str(file.relative_to(root)) for file in root.rglob("*") if file.is_file())
    return {name: (root / name).read_bytes() for name in names if not name.startswith(".")}


def receipt_states(data: DataPipeline) -> dict[str, str]:
    """By path."""
    return {path: receipt.state for path, receipt in data.receipts().items()}


def set_receipt(data: DataPipeline, path: str, state: ReceiptState) -> None:
    """Leave the receipt as a kill would."""
    write_receipt(data.pipeline.layout, replace(data.receipts()[path], state=state))


def pretend_built(data: DataPipeline, path: str, state: SourceState = "released") -> None:
    """A source record as the stage-shard loop leaves it for a receipt's content."""
    receipt = data.receipts()[path]
    source = Source(receipt.dataset, path, receipt.size, receipt.sha256, state=state, key="0" * 64)
    write_source(data.pipeline.layout, source)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
