"""Worker: reads a list of URLs, which may be on a disk that does not answer.

task: {"file", "include": [...], "exclude": [...], "known": the revision of an earlier reading, or null,
       "settle_s": a changed list counts once it was not written to for so long}
messages: {"kind": "files", "files": [[path, null, sha256 or null, null, url]]}
result: {"status": "listed", "revision", "files", "refused": [], "refused_in_all"},
    {"status": "unchanged", "revision"} or {"status": "failed", "class": "list", "reason"}, with every wrong
    line's number. The revision is the sha256 of the list's bytes.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

from stoker.corpus.http.remote_file import MOST_LIST_BYTES, read_urls
from stoker.corpus.source.folder import Selection
from stoker.corpus.source.listed_files import tell_files
from stoker.kit.workers.child import Report, run_worker
from stoker.store.errors import ConfigError


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Reads, selects, reports."""
    file = Path(task["file"])
    try:
        text, revision = _read(file)
        if revision == task["known"] or (task["known"] and _is_written(file, task["settle_s"])):
            return {"status": "unchanged", "revision": task["known"]}
        named = read_urls(text, str(file))
    except OSError as error:
        why = f"{file} cannot be read: {error.strerror}; mount its disk, or correct dataset.source.urls_file"
        return {"status": "failed", "class": "list", "reason": why}
    except ConfigError as error:
        return {"status": "failed", "class": "list", "reason": str(error)}
    selection = Selection(task["include"], task["exclude"])
    chosen = [
        [each.path, each.size, each.sha256, each.git, each.url]
        for each in named
        if selection.takes(each.path)
    ]
    return tell_files(report, revision, chosen)


def _is_written(file: Path, settle_s: float) -> bool:
    """Whether the list may still be being written: half a list would drop files in progress."""
    return 0 <= time.time() - file.stat().st_mtime < settle_s


def _read(file: Path) -> tuple[str, str]:
    with file.open("rb") as stream:
        data = stream.read(MOST_LIST_BYTES + 1)
    if len(data) > MOST_LIST_BYTES:
        raise ConfigError(f"{file} is larger than {MOST_LIST_BYTES} bytes; split it over several datasets")
    try:
        return data.decode(), hashlib.sha256(data).hexdigest()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}") from error


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
