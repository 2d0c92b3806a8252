"""Lists a pipeline's source for a command; takes no lock and writes no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.cli.worker_jobs import Workers
from stoker.config.schema import Pipeline, Source
from stoker.corpus.http.client import HttpConfig
from stoker.corpus.http.hub import hub_token
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.http.retry_rules import REFUSALS, FetchFailed
from stoker.corpus.records.receipts import read_listing
from stoker.corpus.source.folder import FileSeen, Selection, look_through
from stoker.corpus.source.remote_listing import listing_task, origin_of, pinned_by, repo_of
from stoker.kit.workers.pool import Activity
from stoker.store.errors import ConfigError, StokerError, Transient, UnavailableError

LIST_QUIET_S = 60.0
CONNECT_S, READ_S = 20.0, 30.0


@dataclass(frozen=True)
class Listed:
    """The files of a source within dataset.limit.files, sorted by path.

    `refused` holds (path, reason) of some files that cannot have a place, `refused_in_all` the number of all
    of them.
    """

    origin: str
    files: Sequence[RemoteFile]
    refused: Sequence[tuple[str, str]]
    refused_in_all: int
    revision: str = ""
    # how to request the files; None for a folder, whose files are already local
    manners: HttpConfig | None = None


def list_source(pipeline: Pipeline) -> Listed:
    """Returns the listing of the source, at the pinned commit if a commit is pinned.

    Raises UnavailableError for a source that cannot be listed, Transient where a later try may succeed,
    ConfigError for a wrong list of URLs.
    """
    source = pipeline.dataset.source
    listed = _ask(pipeline, source) if source.spec.is_fetched else _look(pipeline.source_root, source)
    files = sorted(listed.files, key=lambda file: file.path)[: pipeline.dataset.limit.files]
    return replace(listed, files=files)


def _ask(pipeline: Pipeline, source: Source) -> Listed:
    rows: list[RemoteFile] = []

    def hear(message: Mapping[str, Any]) -> None:
        if message["kind"] == "files":
            rows.extend(RemoteFile.listed(*row) for row in message["files"])

    pinned = pinned_by(source, read_listing(pipeline.layout, pipeline.dataset.name))
    task = listing_task(source, pinned=pinned)
    origin, repo = origin_of(source), repo_of(source)
    what = f"{origin} cannot be listed"
    with Workers() as workers:
        result = workers.run(Activity("list", source.spec.lister, LIST_QUIET_S), task, what, hear)
    if result["status"] == "failed":
        failure = FetchFailed(result["class"], result["reason"], retry_after_s=result.get("retry_after_s"))
        raise error_of(failure, what)
    token_file = None if source.token_file is None else str(source.token_file)
    manners = HttpConfig(CONNECT_S, READ_S, repo, hub_token(token_file) if repo else None)
    return Listed(origin, rows, result["refused"], result["refused_in_all"], result["revision"], manners)


def _look(root: Path, source: Source) -> Listed:
    try:
        found = list(look_through(root, Selection(source.include, source.exclude)))
    except OSError as error:
        raise UnavailableError(
            f"the source folder {root} cannot be read: {error.strerror}; mount it or correct "
            "dataset.source.path"
        ) from error
    seen = [RemoteFile(one.path, one.size, one.etag) for one in found if isinstance(one, FileSeen)]
    others = [one for one in found if not isinstance(one, FileSeen) and one.kind != "unmanaged"]
    return Listed(str(root), seen, [(one.path, one.reason) for one in others], len(others))


def error_of(failure: FetchFailed, what: str) -> StokerError:
    """Returns the error with which a command ends after a failure; `what` begins its message."""
    if failure.kind == "list":  # the reason names the URL list's file and lines
        return ConfigError(failure.reason)
    if failure.kind in REFUSALS:
        return UnavailableError(f"{what}: {failure.reason}")
    when = f"in {failure.retry_after_s:.0f} s" if failure.retry_after_s else "later"
    return Transient(f"{what}: {failure.reason}; try again {when}")
