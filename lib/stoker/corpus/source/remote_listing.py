"""Listing of a fetched source: its task, its commit, and the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from stoker.config.schema import Source
from stoker.corpus.http.hub import HubRepo, endpoint_of
from stoker.corpus.http.remote_file import RemoteFile, shown
from stoker.corpus.http.retry_rules import REFUSALS
from stoker.corpus.records.receipts import Listing
from stoker.kit.workers.parent import WorkerExit
from stoker.store.errors import ConfigError, UnavailableError


def repo_of(source: Source) -> HubRepo | None:
    """Returns the repository on a hub; None for any other kind of source. ConfigError: see `endpoint_of`."""
    if source.repo is None:
        return None
    return HubRepo(source.repo, source.repo_type, endpoint_of(source.endpoint))


def access_to(source: Source) -> dict[str, Any]:
    """Returns the part of a worker's task that gives access to the source: `hub` and `token_file`."""
    repo, token_file = repo_of(source), source.token_file
    return {"hub": repo and asdict(repo), "token_file": None if token_file is None else str(token_file)}


def origin_of(source: Source) -> str:
    """Returns the origin of a listing's revision, readable and without secrets."""
    return shown_as(source) if repo_of(source) is None else f"{shown_as(source)}@{source.revision}"


def shown_as(source: Source) -> str:
    """Returns the source's name for people, without secrets."""
    repo = repo_of(source)
    return source.place if repo is None else shown(repo.page)


def pinned_by(source: Source, listing: Listing | None) -> str | None:
    """Returns the commit to use; None if new commits are followed or this origin has no listing yet."""
    if source.repo is None or source.follow or listing is None or listing.origin != origin_of(source):
        return None
    return listing.revision or None


def listing_task(
    source: Source, *, pinned: str | None = None, known: str | None = None, settle_s: float = 0.0
) -> dict[str, Any]:
    """Returns the task of the worker that lists the source.

    The revision `known` is not listed again, nor is a list of URLs that changed less than settle_s ago.
    """
    return {
        **access_to(source),
        "include": list(source.include),
        "exclude": list(source.exclude),
        "known": known,
        "revision": source.revision,
        "pinned": pinned,
        "file": source.place,
        "settle_s": settle_s,
    }


@dataclass(frozen=True)
class Listed:
    """The source's files at `revision`, by path; `refused` are (path, reason) of some."""

    files: Mapping[str, RemoteFile]
    revision: str
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class NotListed:
    """The reason why no listing exists now; `cause` is a name of retry_rules, "list" for a wrong list of
    URLs, "empty", or "died", with the worker's exit code."""

    cause: str
    reason: str
    code: int | None = None
    retry_after_s: float = 0.0

    @property
    def is_refusal(self) -> bool:
        """Whether only the source's owner or the operator can change that."""
        return self.cause in REFUSALS or self.cause == "empty"

    @property
    def is_config(self) -> bool:
        return self.cause == "list" or self.code == ConfigError.exit_code

    @property
    def is_final(self) -> bool:
        """Whether an immediate second try would end the same."""
        return self.is_refusal or self.is_config or self.code == UnavailableError.exit_code


def listing_outcome(ended: WorkerExit, rows: Iterable[RemoteFile], shown: str) -> Listed | NotListed | None:
    """Returns the result of a lister's end with the rows it named before; None for an unchanged source."""
    result = ended.result or {}
    match result.get("status"):
        case "unchanged":
            return None
        case "listed":
            files = {each.path: each for each in sorted(rows, key=attrgetter("path"))}
            revision = str(result["revision"])
            if files:
                refused = tuple((str(path), str(reason)) for path, reason in result["refused"])
                return Listed(files, revision, refused)
            correct = "correct dataset.source.include and exclude"
            return NotListed("empty", f"{shown} holds no file that is meant at {revision[:12]}; {correct}")
    cause = str(result.get("class", "died"))
    reason = f"the source cannot be listed: {result.get('reason') or ended.reason()}"
    return NotListed(cause, reason, ended.code, float(result.get("retry_after_s") or 0.0))
