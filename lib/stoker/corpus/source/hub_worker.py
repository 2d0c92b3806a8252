"""Worker: lists a repository of a hub at a commit, by the hub's API. See `listing`.

It sends each request once: the daemon makes the pauses. It is silent while the hub does not answer.

task, besides: {"hub": {"repo", "repo_type", "endpoint"}, "token_file", "revision",
    "pinned": the commit to list, or null for what `revision` means now}
messages, besides: {"kind": "pinned", "revision"}, {"kind": "reading", "files"} now and then
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urljoin

from stoker.corpus.http.client import Caller, Manners
from stoker.corpus.http.hub import HubRepo, hub_token, is_commit
from stoker.corpus.http.remote_file import clashes, printable, unsafe
from stoker.corpus.http.retry_rules import FetchFailed
from stoker.corpus.source.folder import Selection
from stoker.corpus.source.listing import FILES_A_MESSAGE, Row, report_files, run_lister, unchanged
from stoker.kit.workers.child import Report
from stoker.store.record import parse_json

# Together shorter than the daemon waits for a word.
_CONNECT_S, _READ_S, _HEAD_S = 20.0, 30.0, 45.0
_NEXT = re.compile(r'<([^>]*)>\s*;\s*rel="?next"?')  # of the header Link (RFC 8288)


def listed(task: dict[str, Any], selection: Selection, report: Report) -> dict[str, Any]:
    hub = _Hub(HubRepo(**task["hub"]), hub_token(task["token_file"]))
    commit = task["pinned"] or hub.commit(task["revision"])
    if commit == task["known"]:
        return unchanged(commit)
    report("pinned", revision=commit)
    good: list[Row] = []
    refused: list[tuple[str, str]] = []
    for number, row in enumerate(hub.files(commit), 1):
        if number % FILES_A_MESSAGE == 0:
            report("reading", files=number)  # so that a long listing does not look like a hang
        if reason := unsafe(row[0]):
            # Reported even if not selected: a name made to deceive may match or not.
            refused.append((printable(row[0]), reason))
        elif selection.takes(row[0]):
            good.append(row)
    clashing = clashes([row[0] for row in good])
    refused += [(printable(path), reason) for path, reason in clashing.items()]
    return report_files(report, commit, [row for row in good if row[0] not in clashing], refused)


class _Hub:
    """The two questions to a hub's API: what a revision means, and which files a commit holds."""

    def __init__(self, repo: HubRepo, token: str | None) -> None:
        self._repo, self._token = repo, token
        self._api = f"{repo.endpoint}/api/{repo.repo_type}s/{repo.repo}"
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise FetchFailed("offline", "HF_HUB_OFFLINE is set; unset it to fetch")

    def commit(self, revision: str) -> str:
        """Returns the commit that the revision means now."""
        caller = self._caller(revision, pinned=False)
        found, _ = self._ask(caller, f"{self._api}/revision/{quote(revision, safe='')}")
        commit = str(found.get("sha")) if isinstance(found, dict) else ""
        if not is_commit(commit):
            raise self._broken(f"{commit[:80]!r} is no commit; is that a hub?")
        return commit

    def files(self, commit: str) -> Iterator[Row]:
        """Yields every file of the commit, page by page."""
        caller, asked = self._caller(commit, pinned=True), set[str]()
        url = f"{self._api}/tree/{commit}?recursive=true&expand=false"
        while url:
            if url in asked:
                raise self._broken("the pages of its listing lead in a circle")
            asked.add(url)
            entries, url = self._ask(caller, url)
            try:
                for entry in entries:
                    if entry["type"] == "file":
                        sha256 = str(entry["lfs"]["oid"]) if entry.get("lfs") else None
                        git = None if sha256 else str(entry["oid"])
                        yield entry["path"], int(entry["size"]), sha256, git, ""
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise self._broken(f"its listing cannot be read ({error!r}); is that a hub?") from error

    def _caller(self, revision: str, *, pinned: bool) -> Caller:
        return Caller(
            Manners(_CONNECT_S, _READ_S, self._repo, self._token, _HEAD_S, revision=revision, pinned=pinned)
        )

    def _ask(self, caller: Caller, url: str) -> tuple[Any, str]:
        """Returns what the answer's JSON holds, and the address of the next page, empty at the last."""
        with caller.open(url) as (answer, chunks):
            data, following = b"".join(chunks), _NEXT.search(answer.headers.get("link", ""))
        try:
            return parse_json(data), urljoin(url, following[1]) if following else ""
        except ValueError as error:
            raise self._broken(f"its answer is no JSON ({error}); is that a hub?") from error

    def _broken(self, why: str) -> FetchFailed:
        return FetchFailed("broken", f"{self._repo.page}: {why}")


if __name__ == "__main__":
    run_lister(listed)
