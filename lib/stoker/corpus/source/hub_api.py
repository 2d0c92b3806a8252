"""A hub's own client, huggingface_hub, without telemetry and xet, which sends each request once.

Each refusal is a FetchFailed at once; the caller makes the pauses.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stoker.corpus.http.hub import HubRepo, explain, is_commit, origin
from stoker.corpus.http.retry_rules import Answer, FetchFailed, refusal
from stoker.corpus.source.listing import Row

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_CONNECT_S, _READ_S = 20.0, 30.0
_AGENT = "stoker"
_SAID = 300  # characters of a hub's own words


class HubApi:
    """The hub's client, changed to report each refusal at once instead of retrying silently."""

    def __init__(self, hub: HubRepo, token: str | None) -> None:
        self.hub, self._token = hub, token
        self._revision, self._pinned = "", False  # the requested revision, and whether it is a commit
        self._answered: set[str] = set()
        self.api = self._client()

    def commit(self, revision: str) -> str:
        """Returns the commit that the revision means now."""
        with self.asking(revision):
            found = self.api.repo_info(
                self.hub.repo, repo_type=self.hub.repo_type, revision=revision, timeout=_READ_S
            )
        commit = str(found.sha)
        if not is_commit(commit):
            raise FetchFailed("broken", f"{self.hub.page}: {commit[:80]!r} is no commit; is that a hub?")
        return commit

    def files(self, commit: str) -> Iterator[Row]:
        """Yields every file of the commit, page by page."""
        with self.asking(commit, pinned=True):
            for entry in self.api.list_repo_tree(
                self.hub.repo, repo_type=self.hub.repo_type, revision=commit, recursive=True, expand=False
            ):
                if isinstance(entry, self._file_type):  # else a folder
                    sha256 = None if entry.lfs is None else str(entry.lfs.sha256)
                    blob = str(entry.blob_id) if sha256 is None else None
                    yield entry.path, int(entry.size), sha256, blob, ""

    @contextlib.contextmanager
    def asking(self, revision: str, *, pinned: bool = False) -> Iterator[None]:
        """Turns the failures of requests about a revision into FetchFailed; see `explain` for `pinned`."""
        self._revision, self._pinned = revision, pinned
        self._answered.clear()
        with hub_failures(self.hub):
            yield

    def _client(self) -> HfApi:
        os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "DO_NOT_TRACK": "1"}
        import huggingface_hub  # noqa: PLC0415 - its settings are read when it is imported
        from huggingface_hub.hf_api import RepoFile  # noqa: PLC0415

        self._file_type = RepoFile
        try:
            huggingface_hub.set_client_factory(self._session)  # it replaces a session that cannot connect
            huggingface_hub.get_session()
        except Exception as error:
            from stoker.corpus.http.client import client_does_not_start  # noqa: PLC0415 - as below

            raise client_does_not_start(error) from error
        return huggingface_hub.HfApi(
            endpoint=self.hub.endpoint, token=self._token or False, library_name=_AGENT
        )

    def _session(self) -> Any:
        from huggingface_hub.utils._http import default_client_factory  # noqa: PLC0415 - as above

        session = default_client_factory()
        session.event_hooks = {
            "request": [*session.event_hooks["request"], self._before],
            "response": [*session.event_hooks["response"], self._after],
        }
        return session

    def _before(self, request: Any) -> None:
        # The client gives some requests no time limit, and follows the next page to any address.
        request.extensions = {
            **request.extensions,
            "timeout": {"connect": _CONNECT_S, "read": _READ_S, "write": _READ_S, "pool": _CONNECT_S},
        }
        if origin(str(request.url)) != origin(self.hub.endpoint):
            request.headers.pop("Authorization", None)
        if request.method == "GET" and str(request.url) in self._answered:
            raise FetchFailed("broken", f"{self.hub.page}: the pages of its listing lead in a circle")

    def _after(self, response: Any) -> None:
        # An exception raised here prevents the client's own silent retries, which last minutes.
        status = response.status_code
        if status < 400:
            self._answered.add(str(response.request.url))
            return
        headers = {name.lower(): value for name, value in response.headers.items()}
        to_signed = response.request.method == "PUT"
        if status in (401, 403, 404, 410) and not to_signed:
            about = {"token": self._token is not None, "pinned": self._pinned}
            code = headers.get("x-error-code", "")
            kind, reason = explain(status, code, self.hub, revision=self._revision, **about)
            failure = FetchFailed(kind, reason, status=status)
        else:
            failure = refusal(Answer(status, headers, self.hub.page, not to_signed, to_signed), time.time())
        # A store's words about a signed address may repeat its signature.
        if self.hub.commanded and not to_signed and failure.kind in ("refused", "forbidden"):
            said = headers.get("x-error-message") or response.read().decode(errors="replace")
            failure.reason += f": {said[:_SAID]}"
        raise failure


@contextlib.contextmanager
def hub_failures(hub: HubRepo) -> Iterator[None]:
    """Turns exceptions of the hub's client into FetchFailed."""
    where = hub.page
    try:
        yield
    except FetchFailed:
        raise
    except Exception as raised:
        from stoker.corpus.http.client import advice  # noqa: PLC0415 - loads an HTTP client of its own

        error = raised
        if type(raised) is RuntimeError and isinstance(raised.__cause__, Exception):
            error = raised.__cause__  # an upload's, which the client wraps
        if isinstance(error, FetchFailed):
            raise error from raised
        name = type(error).__name__
        transport = any(each.__name__ == "TransportError" for each in type(error).__mro__)
        if name == "OfflineModeIsEnabled":
            kind, reason = (
                "offline",
                f"HF_HUB_OFFLINE is set; unset it to {'ask the hub' if hub.commanded else 'fetch'}",
            )
        elif "Timeout" in name:
            kind, reason = "stalled", f"{where} does not answer in time"
        elif name == "HFValidationError":
            kind, reason = "refused", f"{hub.key('repo')}: {error}"
        elif transport or name in ("ConnectionError", "OSError", "TooManyRedirects"):
            kind, reason = "connect", f"{where}: {error}{advice(error, where)}"
        else:
            kind, reason = "broken", f"{where}: {name}: {error}"
        raise FetchFailed(kind, reason) from raised
