"""Worker: lists a hub's repository at a commit. It imports huggingface_hub, without telemetry and xet.

task: {"hub": {"repo", "repo_type", "endpoint"}, "token_file", "revision", "include": [...], "exclude": [...],
       "pinned": the commit to list, or null for what `revision` means now,
       "known": a commit; while `revision` still means that commit, no file is listed}
messages: {"kind": "pinned", "revision"}, {"kind": "reading", "files"} now and then, and, as often as needed,
    {"kind": "files", "files": [[path, size, sha256 or null, git blob name or null]]}, in no order promised
result: {"status": "listed", "revision", "files", "refused": [[path, reason]], "refused_in_all"},
    {"status": "unchanged", "revision"},
    {"status": "failed", "class", "reason", "retry_after_s"}: class is one of gated,
    unauthorized, forbidden, missing, vanished, refused, offline (nothing that a second try would change) and
    throttled, server, connect, stalled, broken (to be tried again, after retry_after_s where the hub says so)
Each request is sent once: the daemon makes the pauses. This worker is silent while a hub does not answer.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stoker.corpus.http.client import advice, client_does_not_start
from stoker.corpus.http.hub import HubRepo, explain, hub_token, is_commit, origin
from stoker.corpus.http.remote_file import clashes, printable, unsafe
from stoker.corpus.http.retry_rules import Answer, FetchFailed, refusal
from stoker.corpus.source.folder import Selection
from stoker.corpus.source.listed_files import FILES_A_MESSAGE, tell_files
from stoker.kit.workers.child import Report, run_worker

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_CONNECT_S, _READ_S = 20.0, 30.0
_AGENT = "stoker"

Row = tuple[str, int, str | None, str | None]


def main(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Pins, lists and reports."""
    try:
        return _list(task, report, _Asked(HubRepo(**task["hub"]), hub_token(task["token_file"])))
    except FetchFailed as failure:
        return failure.result()


def _list(task: dict[str, Any], report: Report, asked: _Asked) -> dict[str, Any]:
    commit = task["pinned"] or asked.commit(task["revision"])
    if commit == task["known"]:
        return {"status": "unchanged", "revision": commit}
    report("pinned", revision=commit)
    selection = Selection(task["include"], task["exclude"])
    rows, refused = _sift(_counted(asked.files(commit), report), selection)
    return tell_files(report, commit, rows, refused)


def _counted(rows: Iterator[Row], report: Report) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if number % FILES_A_MESSAGE == 0:
            report("reading", files=number)  # so that a long listing does not look like a hang
        yield row


def _sift(rows: Iterator[Row], selection: Selection) -> tuple[list[Row], list[list[str]]]:
    """Returns the selected files with a possible place below the landing, and the others with reasons."""
    good, refused = [], []
    for row in rows:
        if reason := unsafe(row[0]):
            # Reported even if not selected: a name made to deceive may match or not.
            refused.append([printable(row[0]), reason])
        elif selection.takes(row[0]):
            good.append(row)
    clashing = clashes([row[0] for row in good])
    refused += [[printable(path), reason] for path, reason in clashing.items()]
    return [row for row in good if row[0] not in clashing], refused


class _Asked:
    """The hub's client, changed to report each refusal at once instead of retrying silently."""

    def __init__(self, hub: HubRepo, token: str | None) -> None:
        self._hub, self._token = hub, token
        self._revision, self._pinned = "", False  # the requested revision, and whether it is a commit
        self._answered: set[str] = set()
        self._api = self._client()

    def commit(self, revision: str) -> str:
        """Returns the commit that the revision means now."""
        self._revision = revision
        with _failures(self._hub.page):
            found = self._api.repo_info(
                self._hub.repo, repo_type=self._hub.repo_type, revision=revision, timeout=_READ_S
            )
        commit = str(found.sha)
        if not is_commit(commit):
            raise FetchFailed("broken", f"{self._hub.page}: {commit[:80]!r} is no commit; is that a hub?")
        return commit

    def files(self, commit: str) -> Iterator[Row]:
        """Yields every file of the commit, page by page."""
        self._revision, self._pinned = commit, True
        with _failures(self._hub.page):
            for entry in self._api.list_repo_tree(
                self._hub.repo, repo_type=self._hub.repo_type, revision=commit, recursive=True, expand=False
            ):
                if isinstance(entry, self._file_type):  # else a folder
                    sha256 = None if entry.lfs is None else str(entry.lfs.sha256)
                    yield entry.path, int(entry.size), sha256, str(entry.blob_id) if sha256 is None else None

    def _client(self) -> HfApi:
        os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "DO_NOT_TRACK": "1"}
        import huggingface_hub  # noqa: PLC0415 - its settings are read when it is imported
        from huggingface_hub.hf_api import RepoFile  # noqa: PLC0415

        self._file_type = RepoFile
        try:
            session = huggingface_hub.get_session()
        except (ImportError, ValueError, OSError) as error:
            raise client_does_not_start(error) from error
        session.event_hooks = {
            "request": [*session.event_hooks["request"], self._before],
            "response": [*session.event_hooks["response"], self._after],
        }
        return huggingface_hub.HfApi(
            endpoint=self._hub.endpoint, token=self._token or False, library_name=_AGENT
        )

    def _before(self, request: Any) -> None:
        # The client gives some requests no time limit, and follows the next page to any address.
        request.extensions = {
            **request.extensions,
            "timeout": {"connect": _CONNECT_S, "read": _READ_S, "write": _READ_S, "pool": _CONNECT_S},
        }
        if origin(str(request.url)) != origin(self._hub.endpoint):
            request.headers.pop("Authorization", None)
        if str(request.url) in self._answered:
            raise FetchFailed("broken", f"{self._hub.page}: the pages of its listing lead in a circle")

    def _after(self, response: Any) -> None:
        # An exception raised here prevents the client's own silent retries, which last minutes.
        status = response.status_code
        if status < 400:
            self._answered.add(str(response.request.url))
            return
        headers = {name.lower(): value for name, value in response.headers.items()}
        if status in (401, 403, 404, 410):
            about = {"token": self._token is not None, "pinned": self._pinned}
            code = headers.get("x-error-code", "")
            kind, reason = explain(status, code, self._hub, revision=self._revision, **about)
            raise FetchFailed(kind, reason, status=status)
        raise refusal(Answer(status, headers, self._hub.page, at_hub=True), time.time())


@contextlib.contextmanager
def _failures(where: str) -> Iterator[None]:
    """Turns exceptions of the hub's client into FetchFailed."""
    try:
        yield
    except FetchFailed:
        raise
    except Exception as error:
        name = type(error).__name__
        transport = any(each.__name__ == "TransportError" for each in type(error).__mro__)
        if name == "OfflineModeIsEnabled":
            kind, reason = "offline", "HF_HUB_OFFLINE is set; unset it to fetch"
        elif "Timeout" in name:
            kind, reason = "stalled", f"{where} does not answer in time"
        elif name == "HFValidationError":
            kind, reason = "refused", f"dataset.source.repo: {error}"
        elif transport or name in ("ConnectionError", "OSError", "TooManyRedirects"):
            kind, reason = "connect", f"{where}: {error}{advice(error, where)}"
        else:
            kind, reason = "broken", f"{where}: {name}: {error}"
        raise FetchFailed(kind, reason) from error


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
