"""What a pipeline's source holds, asked by a command: nothing is locked and nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from stoker.cli.worker_jobs import work
from stoker.config.schema import Pipeline
from stoker.corpus.fetch.listed import REFUSALS
from stoker.corpus.http.client import Manners
from stoker.corpus.http.hub import HubRepo, hub_token
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import FetchFailed
from stoker.corpus.records.listing import read_listing
from stoker.corpus.source.folder import FileSeen, Selection, look_through
from stoker.corpus.source.remote_listing import listing_task, origin_of, pinned_by, repo_of
from stoker.kit.workers.activity import Activity
from stoker.store.errors import ConfigError, StokerError, Transient, UnavailableError

LIST_QUIET_S = 60.0
CONNECT_S, READ_S = 20.0, 30.0


@dataclass(frozen=True)
class Listed:
    """The files within dataset.limit.files, sorted by path: `wanted` are fetched, `seen` lie in a folder.

    `refused` are (path, reason) of some that can have no place, `refused_in_all` how many there are.
    """

    origin: str
    revision: str
    wanted: tuple[RemoteFile, ...]
    seen: tuple[FileSeen, ...]
    refused: tuple[tuple[str, str], ...]
    refused_in_all: int
    repo: HubRepo | None = None
    token_file: str | None = None

    @property
    def manners(self) -> Manners:
        """How to ask for these files."""
        return Manners(CONNECT_S, READ_S, self.repo, hub_token(self.token_file) if self.repo else None)


def list_source(pipeline: Pipeline) -> Listed:
    """Ask the source what it holds, at the commit that is pinned if one is.

    Raises UnavailableError for what cannot be listed, Transient where a later try may go well, ConfigError
    for a wrong list of URLs.
    """
    if pipeline.dataset.source.kind == "folder":
        return _look(pipeline)
    source = pipeline.dataset.source
    pinned = pinned_by(source, read_listing(pipeline.layout, pipeline.dataset.name))
    rows: list[RemoteFile] = []

    def hear(message: Mapping[str, Any]) -> None:
        if message["kind"] == "files":
            rows.extend(RemoteFile.listed(*row) for row in message["files"])

    module, task = listing_task(source, pinned=pinned)
    origin = origin_of(source)
    listing = Activity("list", module, LIST_QUIET_S)
    result = work(listing, task, f"{origin} cannot be listed", hear)
    if result["status"] == "failed":
        failure = FetchFailed(result["class"], result["reason"], retry_after_s=result.get("retry_after_s"))
        raise error_of(failure, f"{origin} cannot be listed")
    rows.sort(key=lambda wanted: wanted.path)
    return Listed(
        origin=origin,
        revision=result["revision"],
        wanted=tuple(islice(rows, pipeline.dataset.limit.files)),
        seen=(),
        refused=tuple((str(path), str(reason)) for path, reason in result["refused"]),
        refused_in_all=result["refused_in_all"],
        repo=repo_of(source),
        token_file=None if source.token_file is None else str(source.token_file),
    )


def _look(pipeline: Pipeline) -> Listed:
    root, source = pipeline.source_root, pipeline.dataset.source
    seen: list[FileSeen] = []
    refused: list[tuple[str, str]] = []
    try:
        for found in look_through(root, Selection(source.include, source.exclude)):
            if isinstance(found, FileSeen):
                seen.append(found)
            elif found.kind != "foreign":
                refused.append((found.path, found.reason))
    except OSError as error:
        raise UnavailableError(
            f"the source folder {root} cannot be looked at: {error.strerror}; mount it or correct "
            "dataset.source.path"
        ) from error
    seen.sort(key=lambda file: file.path)
    kept = tuple(islice(seen, pipeline.dataset.limit.files))
    return Listed(str(root), "", (), kept, tuple(refused), len(refused))


def error_of(failure: FetchFailed, what: str) -> StokerError:
    """The error that ends a command because of a failure; `what` was to be done."""
    if failure.kind == "list":  # the list of URLs names its own file and lines
        return ConfigError(failure.reason)
    if failure.kind in REFUSALS:
        return UnavailableError(f"{what}: {failure.reason}")
    when = f"in {failure.retry_after_s:.0f} s" if failure.retry_after_s else "later"
    return Transient(f"{what}: {failure.reason}; try again {when}")
