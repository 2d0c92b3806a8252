"""Worker: lists a list of URLs, whose revision is the sha256 of its bytes. See `listing`.

It is silent while the disk of the list does not answer.

task, besides: {"file": the list, "settle_s": a changed list counts once it was not written to for so long}
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

from stoker.corpus.http.remote_file import MOST_LIST_BYTES, read_urls
from stoker.corpus.http.retry_rules import FetchFailed
from stoker.corpus.source.folder import Selection
from stoker.corpus.source.listing import report_files, run_lister, unchanged
from stoker.kit.workers.child import Report
from stoker.store.errors import ConfigError


def listed(task: dict[str, Any], selection: Selection, report: Report) -> dict[str, Any]:
    file, known = Path(task["file"]), task["known"]
    try:
        text, revision = _read(file)
        if known and (revision == known or _is_written(file, task["settle_s"])):
            return unchanged(known)
        named = read_urls(text, str(file))
    except OSError as error:
        why = f"{file} cannot be read: {error.strerror}; mount its disk, or correct dataset.source.urls_file"
        raise FetchFailed("list", why) from error
    except ConfigError as error:
        raise FetchFailed("list", str(error)) from error
    chosen = [each for each in named if selection.takes(each.path)]
    rows = [(each.path, each.size, each.sha256, each.git, each.url) for each in chosen]
    return report_files(report, revision, rows)


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
    run_lister(listed)
