"""What the workers that list a fetched source share.

task: {"include": [...], "exclude": [...],
       "known": the revision of an earlier listing or null; while it is the present one, no file is listed},
    and what its own module names
messages: as often as needed, {"kind": "files", "files": [[path, size, sha256, git blob name, url]]}, with
    null where size, sum or name is not known, in no order promised
result: {"status": "listed", "revision", "files", "refused": [[path, reason]], "refused_in_all"},
    {"status": "unchanged", "revision"},
    {"status": "failed", "class", "reason", "retry_after_s"}: class is one of gated,
    unauthorized, forbidden, missing, vanished, refused, offline (nothing that a second try would change),
    throttled, server, connect, stalled, broken (to be tried again, after retry_after_s where the source says
    so) and list (the list of URLs cannot be read, or has wrong lines, with their numbers)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stoker.corpus.http.retry_rules import FetchFailed
from stoker.corpus.source.folder import Selection
from stoker.kit.workers.child import Report, run_worker

FILES_A_MESSAGE = 500  # well below a message's size limit for names of any length
_REFUSED_SHOWN = 100

Row = tuple[str, int | None, str | None, str | None, str]
Lister = Callable[[dict[str, Any], Selection, Report], dict[str, Any]]


def run_lister(listed: Lister) -> None:
    """Runs the worker; `listed` lists the source, and may raise FetchFailed."""

    def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
        try:
            return listed(task, Selection(task["include"], task["exclude"]), report)
        except FetchFailed as failure:
            return failure.result()

    run_worker(main, stop_anywhere=True)


def unchanged(revision: str) -> dict[str, Any]:
    return {"status": "unchanged", "revision": revision}


def report_files(
    report: Report, revision: str, files: Sequence[Row], refused: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Reports the files in batches; returns the worker's result."""
    for start in range(0, len(files), FILES_A_MESSAGE):
        report("files", files=files[start : start + FILES_A_MESSAGE])
    shown = {"refused": list(refused[:_REFUSED_SHOWN]), "refused_in_all": len(refused)}
    return {"status": "listed", "revision": revision, "files": len(files), **shown}
