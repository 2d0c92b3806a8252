"""What to do after each answer and failure of a transfer: pure decisions of the fetch worker.

Nothing here touches the network or a disk. Seconds throughout; the wall clock only where servers give dates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from stoker.corpus.http.remote_file import RemoteFile

# Tried again for as long as it takes: they say nothing about the file.
TRANSIENT = ("connect", "stalled", "slow", "broken", "short", "throttled", "server", "anew")
# Tried again `attempts` times, then given up; of these only "expired" is forgotten after progress.
COUNTED = ("mismatch", "length", "redirects", "expired")
# Nothing that a second try would change; gated, unauthorized and vanished say what the operator must do.
REFUSALS = ("gated", "unauthorized", "forbidden", "missing", "vanished", "refused", "encoded", "offline")
# Of this machine: whoever gave the task tries again when the disk is well.
LOCAL = ("disk_full", "gone", "storage")
OURS = ("storage", "bug")  # a place that cannot be written, or a mistake in the worker: met by one file
OF_THE_SOURCE = ("gated", "unauthorized", "forbidden", "vanished")  # of a repository: for all its files

LONGEST_RETRY_AFTER_S = 86_400.0
PROGRESS_BYTES = 1 << 16  # an attempt that brought fewer resets no backoff: a server may drip and break off
_RATE_LIMIT = re.compile(r"\br\s*=\s*0\b.*?\bt\s*=\s*(\d+)")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")
_UNTOLD = "does not say whether it has the same content as before"


class FetchFailed(Exception):
    """One attempt at a file ended without it; `kind` is one of the names above."""

    def __init__(
        self,
        kind: str,
        reason: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.status = kind, reason, status
        self.retry_after_s = retry_after_s

    def result(self) -> dict[str, Any]:
        """What a worker returns that ends with it."""
        told = {"class": self.kind, "reason": self.reason, "retry_after_s": self.retry_after_s}
        return {"status": "failed", **told}


def next_pause(
    failure: FetchFailed, counted: Mapping[str, int], attempts: int, backoff_s: float
) -> float | None:
    """The seconds to wait before another try; None to give the file up, as after any kind that is not known.

    `counted` are the file's failures by kind, this one among them; `backoff_s` is the backoff's own pause.
    """
    if failure.kind not in (*COUNTED, *TRANSIENT):
        return None
    if failure.kind in COUNTED and counted[failure.kind] >= attempts:
        return None
    if failure.kind == "anew" or (failure.kind == "expired" and counted["expired"] == 1):
        return 0.0  # a new address, or a start from 0: nothing that a pause would better
    return max(backoff_s, failure.retry_after_s or 0.0)


def retry_after(headers: Mapping[str, str], wall_now: float) -> float | None:
    """The seconds a server asks to wait, from Retry-After (seconds or a date) or its rate limit's reset.

    None where it asks for nothing we can read; never more than a day.
    """
    value = headers.get("retry-after", "").strip()
    seconds: float | None = None
    if value.isdecimal():
        seconds = float(value)
    elif (until := _moment(value)) is not None:
        now = _moment(headers.get("date", ""))  # by the server's clock, which may differ from ours
        seconds = until - (wall_now if now is None else now)
    if seconds is None and (limit := _RATE_LIMIT.search(headers.get("ratelimit", ""))):
        seconds = float(limit[1])
    return None if seconds is None else min(max(0.0, seconds), LONGEST_RETRY_AFTER_S)


def _moment(date: str) -> float | None:
    """The Unix time of an HTTP date."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class Answer:
    """An answer's head. `at_hub`: from the hub itself; `redirected`: from where another answer sent us."""

    status: int
    headers: Mapping[str, str]
    where: str
    at_hub: bool = False
    redirected: bool = False

    @property
    def etag(self) -> str:
        """The entity tag as it stands, quotes and all; empty where there is none."""
        return self.headers.get("etag", "").strip()

    @property
    def validator(self) -> str:
        """What If-Range may carry: a strong entity tag, else the date of the last change, else nothing."""
        if self.etag and not self.etag.startswith("W/"):
            return self.etag
        return "" if self.etag else self.headers.get("last-modified", "").strip()


@dataclass(frozen=True)
class Kept:
    """What an earlier attempt left durable: `offset` bytes of content with this validator and total size."""

    offset: int = 0
    validator: str = ""
    total: int | None = None


def resume_offset(kept: Kept, file: RemoteFile, part_bytes: int) -> int:
    """From which byte to go on: what is kept, or 0 where it cannot be trusted to be the same content.

    part_bytes is what the partial file holds now: fewer than claimed and it is not what was made durable.
    """
    if part_bytes < kept.offset:
        return 0
    if file.size is not None and (kept.offset > file.size or kept.total not in (None, file.size)):
        return 0
    if not kept.validator and not file.sum:
        return 0  # neither the server nor the listing could tell that the file changed meanwhile
    return kept.offset


def written_end(kept: Kept, file: RemoteFile, part_bytes: int, offset: int) -> int:
    """Up to where a partial file may be believed that a process wrote.

    A kill takes nothing that was written, only a loss of power may. Beyond `offset` nothing is proven all the
    same, so that only a file whose sum is known is continued there: its end tells.
    """
    total = kept.total if file.size is None else file.size
    if not file.sum or offset != kept.offset or (total is not None and part_bytes > total):
        return offset
    return part_bytes


def judge(answer: Answer, kept: Kept, file: RemoteFile) -> int | None:
    """The whole file's size by an answer to a request from kept.offset on, None where it tells none; raises
    FetchFailed where it is not what was asked for.

    200 to a ranged request is a server without ranges, or another content since: the file is taken from 0.
    """
    encoding = answer.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise FetchFailed("encoded", f"{answer.where} insists on Content-Encoding {encoding}")
    if answer.status == 206:
        found = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "").strip())
        if found is None or int(found[1]) != kept.offset:
            raise FetchFailed("anew", f"{answer.where} answers with another range than asked for")
        total = None if found[3] == "*" else int(found[3])
        known = answer.validator or not file.sum  # without a sum nothing else would tell another content
        if kept.validator and known and answer.validator != kept.validator:
            said = f"has another content than before ({answer.etag})" if answer.validator else _UNTOLD
            raise FetchFailed("anew", f"{answer.where} {said}")
        if kept.total is not None and total not in (None, kept.total):
            raise FetchFailed("anew", f"{answer.where} has {total} bytes, {kept.total} before")
    else:
        length = answer.headers.get("content-length", "")
        total = int(length) if length.isdecimal() else None
    if file.size is not None and total not in (None, file.size):
        raise FetchFailed("length", f"{answer.where} has {total} bytes, the listing says {file.size}")
    return total


_REFUSALS = {
    401: ("unauthorized", ": it wants to know who asks"),
    403: ("forbidden", ": not for this account"),
    404: ("missing", ""),
    408: ("server", ""),
    410: ("missing", ""),
    416: ("anew", ": what is kept does not belong to it"),
    425: ("server", ""),
    429: ("throttled", ""),
}


def refusal(answer: Answer, wall_now: float) -> FetchFailed:
    """What an answer that is neither 200, 206 nor a redirect means; hub.explain() explains the hub's own 401
    to 404."""
    status = answer.status
    kind, said = _REFUSALS.get(status, ("server" if status >= 500 else "refused", ""))
    if status in (401, 403) and answer.redirected and not answer.at_hub:
        kind, said = "expired", ": a signed address may have expired"
    wait_s = retry_after(answer.headers, wall_now) if kind in ("server", "throttled") else None
    text = f"{answer.where} answers {status}{said}"
    return FetchFailed(kind, text, status=status, retry_after_s=wait_s)
