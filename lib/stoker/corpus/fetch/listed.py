"""What came of listing a source that is fetched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from stoker.corpus.http.remote_file import RemoteFile
from stoker.kit.workers.exit import WorkerExit
from stoker.store.errors import ConfigError, UnavailableError

# What a second try at once would not change: said in full, and tried again slowly.
REFUSALS = ("gated", "unauthorized", "forbidden", "missing", "vanished", "refused", "offline")


@dataclass(frozen=True)
class Listed:
    """What the source holds at `revision`, by path; `refused` are (path, reason) of some."""

    files: Mapping[str, RemoteFile]
    revision: str
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class NotListed:
    """Why there is no listing now; `cause` is one of retry_rules' names, "list" for a wrong list of URLs,
    "empty", or "died", with the worker's exit code."""

    cause: str
    reason: str
    code: int | None = None
    retry_after_s: float = 0.0

    @property
    def is_refusal(self) -> bool:
        """Whether only the source's owner, or its operator, can change that."""
        return self.cause in REFUSALS or self.cause == "empty"

    @property
    def is_config(self) -> bool:
        """Whether the configuration is wrong."""
        return self.cause == "list" or self.code == ConfigError.exit_code

    @property
    def is_final(self) -> bool:
        """Whether a second try at once would be the same."""
        return self.is_refusal or self.is_config or self.code == UnavailableError.exit_code


def listing_outcome(ended: WorkerExit, rows: Iterable[RemoteFile], shown: str) -> Listed | NotListed | None:
    """What a lister's end says, with the rows that it named before; None where nothing is new."""
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
