"""What came of listing a source that is fetched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.records.by_path import by_path
from stoker.kit.workers.exit import WorkerExit

# What a second try at once would not change: said in full, and tried again slowly.
REFUSALS = ("gated", "unauthorized", "forbidden", "missing", "vanished", "refused", "offline")
EX_UNAVAILABLE, EX_CONFIG = 69, 78


@dataclass(frozen=True)
class Listed:
    """What the source holds at `revision`, by path; `refused` are (path, reason), some of all."""

    files: Mapping[str, RemoteFile]
    revision: str
    refused: tuple[tuple[str, str], ...]
    refused_in_all: int


@dataclass(frozen=True)
class NotListed:
    """Why there is no listing now; `cause` is one of retry_rules' names, "list" for a wrong list of URLs,
    "empty", or "died". `is_final`: a second try at once would be the same. `is_config`: so says the exit."""

    cause: str
    reason: str
    is_final: bool = True
    is_config: bool = False
    retry_after_s: float = 0.0

    @property
    def is_refusal(self) -> bool:
        """Whether only the source's owner, or its operator, can change that."""
        return self.cause in REFUSALS or self.cause == "empty"


def listing_outcome(ended: WorkerExit, rows: Iterable[RemoteFile], shown: str) -> Listed | NotListed | None:
    """What a lister's end says, with the rows that it named before; None where nothing is new."""
    result = ended.result or {}
    match result.get("status"):
        case "unchanged":
            return None
        case "listed":
            files, revision = by_path((each.path, each) for each in rows), str(result["revision"])
            if files:
                refused = tuple((str(path), str(reason)) for path, reason in result["refused"])
                return Listed(files, revision, refused, int(result["refused_in_all"]))
            correct = "correct dataset.source.include and exclude"
            return NotListed("empty", f"{shown} holds no file that is meant at {revision[:12]}; {correct}")
    cause = str(result.get("class", "died"))
    return NotListed(
        cause,
        f"the source cannot be listed: {result.get('reason') or ended.reason()}",
        is_final=cause in (*REFUSALS, "list") or ended.code in (EX_UNAVAILABLE, EX_CONFIG),
        is_config=cause == "list" or ended.code == EX_CONFIG,
        retry_after_s=float(result.get("retry_after_s") or 0.0),
    )
