"""Worker: lists a repository of a hub at a commit. See `listing`.

It imports huggingface_hub, without telemetry and xet. It sends each request once: the daemon makes the
pauses. It is silent while the hub does not answer.

task, besides: {"hub": {"repo", "repo_type", "endpoint"}, "token_file", "revision",
    "pinned": the commit to list, or null for what `revision` means now}
messages, besides: {"kind": "pinned", "revision"}, {"kind": "reading", "files"} now and then
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stoker.corpus.http.hub import HubRepo, explain, hub_token, is_commit, origin
from stoker.corpus.http.remote_file import clashes, printable, unsafe
from stoker.corpus.http.retry_rules import Answer, FetchFailed, refusal
from stoker.corpus.source.folder import Selection
from stoker.corpus.source.listing import FILES_A_MESSAGE, Row, report_files, run_lister, unchanged
from stoker.kit.workers.child import Report

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_CONNECT_S, _READ_S = 20.0, 30.0
_AGENT = "stoker"


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
                    blob = str(entry.blob_id) if sha256 is None else None
                    yield entry.path, int(entry.size), sha256, blob, ""

    def _client(self) -> HfApi:
        os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "DO_NOT_TRACK": "1"}
        import huggingface_hub  # noqa: PLC0415 - its settings are read when it is imported
        from huggingface_hub.hf_api import RepoFile  # noqa: PLC0415

        self._file_type = RepoFile
        try:
            session = huggingface_hub.get_session()
        except Exception as error:
            from stoker.corpus.http.client import client_does_not_start  # noqa: PLC0415 - as below

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
        from stoker.corpus.http.client import advice  # noqa: PLC0415 - loads an HTTP client of its own

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
    run_lister(listed)
