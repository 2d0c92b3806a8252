"""How a source that is fetched is listed: which worker, with which task; the commit that stays pinned."""

from __future__ import annotations

from typing import Any

from stoker.config.schema import Source
from stoker.corpus.http.hub import HubRepo, endpoint_of
from stoker.corpus.http.remote_file import shown
from stoker.corpus.records.listing import Listing

HUB_WORKER, URLS_WORKER = "stoker.corpus.source.hub_worker", "stoker.corpus.source.urls_worker"


def repo_of(source: Source) -> HubRepo | None:
    """The repository on a hub; None for any other kind of source."""
    if source.kind != "hub" or source.repo is None:
        return None
    return HubRepo(source.repo, source.repo_type, endpoint_of(source.endpoint))


def origin_of(source: Source) -> str:
    """Of what a listing's revision is the revision; for people too, so without secrets."""
    return shown_as(source) if repo_of(source) is None else f"{shown_as(source)}@{source.revision}"


def shown_as(source: Source) -> str:
    """Its name for people, without secrets."""
    repo = repo_of(source)
    return str(source.urls_file) if repo is None else shown(repo.page)


def pinned_by(source: Source, listing: Listing | None) -> str | None:
    """The commit to go on with; None where new ones are followed, or none was listed of this origin yet."""
    if source.kind != "hub" or source.follow or listing is None or listing.origin != origin_of(source):
        return None
    return listing.revision or None


def listing_task(
    source: Source, *, pinned: str | None = None, known: str | None = None, settle_s: float = 0.0
) -> tuple[str, dict[str, Any]]:
    """(module, task) of the worker that lists it; `known` is a revision that need not be listed again, nor a
    list of URLs that was changed since, but less than settle_s ago."""
    task: dict[str, Any] = {
        "include": list(source.include),
        "exclude": list(source.exclude),
        "known": known,
    }
    repo = repo_of(source)
    if repo is None:
        return URLS_WORKER, {**task, "file": str(source.urls_file), "settle_s": settle_s}
    return HUB_WORKER, {
        **task,
        "repo": repo.repo,
        "repo_type": repo.repo_type,
        "revision": source.revision,
        "endpoint": repo.endpoint,
        "token_file": None if source.token_file is None else str(source.token_file),
        "pinned": pinned,
    }
