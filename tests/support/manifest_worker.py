"""Worker: lists a source of a kind that only a test has, the objects of a JSON list. Its row is MANIFEST."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from stoker.config.sources import SourceKind
from stoker.corpus.source.folder import Selection
from stoker.corpus.source.listing import Row, report_files, run_lister
from stoker.kit.workers.child import Report

MANIFEST = SourceKind(
    key="urls_file",
    advice="name the JSON file",
    lister="support.manifest_worker",
    source="stokerd.download.remote:RemoteSource",
)


def listed(task: dict[str, Any], selection: Selection, report: Report) -> dict[str, Any]:
    data = Path(task["file"]).read_bytes()
    rows: list[Row] = [(each["key"], each["size"], None, None, each["url"]) for each in json.loads(data)]
    chosen = [row for row in rows if selection.takes(row[0])]
    return report_files(report, hashlib.sha256(data).hexdigest(), chosen)


if __name__ == "__main__":
    run_lister(listed)
