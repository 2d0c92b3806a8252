"""Decides the next step after each answer and failure of a transfer: pure functions of the fetch worker.

No network and no disk. Seconds throughout; the wall clock only where servers give dates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from stoker.corpus.http.remote_file import RemoteFile

# Tried again without limit: they say nothing about the file.
TRANSIENT = ("connect", "stalled", "slow", "broken", "short", "throttled", "server", "anew")
# Tried again `attempts` times, then given up; only "expired" is forgotten after progress.
COUNTED = ("mismatch", "length", "redirects", "expired")
# A second try would change nothing; gated, unauthorized and vanished need the operator.
REFUSALS = ("gated", "unauthorized", "forbidden", "missing", "vanished", "refused", "encoded", "offline")
# Of this machine: the daemon tries again when the disk works.
LOCAL = ("disk_full", "gone", "storage")
OURS = ("storage", "bug")  # an unwritable place, or a bug in the worker: affects a single file
OF_THE_SOURCE = ("gated", "unauthorized", "forbidden", "vanished")  # of a repository: for all its files

LONGEST_RETRY_AFTER_S = 86_400.0
PROGRESS_BYTES = 1 << 16  # fewer bytes reset no backoff: a server may send a few and break off
_RATE_LIMIT = re.compile(r"\br\s*=\s*0\b.*?\bt\s*=\s*(\d+)")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")
_UNTOLD = "does not say whether it has the same content as before"


class FetchFailed(Exception):
    """An attempt failed; `kind` is a name above."""

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
        """Returns the result of a worker that ends with this failure."""
        fields = {"class": self.kind, "reason": self.reason, "retry_after_s": self.retry_after_s}
        return {"status": "failed", **fields}


def next_pause(
    failure: FetchFailed, counted: Mapping[str, int], attempts: int, backoff_s: float
) -> float | None:
    """Returns the seconds to wait before another try; None to give the file up, as after an unknown kind.

    `counted` are the file's failures by kind, including this failure; `backoff_s` is the backoff's own pause.
    """
    if failure.kind not in (*COUNTED, *TRANSIENT):
        return None
    if failure.kind in COUNTED and counted[failure.kind] >= attempts:
        return None
    if failure.kind == "anew" or (failure.kind == "expired" and counted["expired"] == 1):
        return 0.0  # a new address, or a start from 0: a pause would not help
    return max(backoff_s, failure.retry_after_s or 0.0)


def retry_after(headers: Mapping[str, str], wall_now: float) -> float | None:
    """Returns the seconds a server asks to wait, by Retry-After (seconds or date) or its rate limit's reset.

    None without a readable request; never more than a day.
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
    """Returns the Unix time of an HTTP date."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class Answer:
    """An answer's head. `at_hub`: from the hub; `redirected`: reached by a redirect."""

    status: int
    headers: Mapping[str, str]
    where: str
    at_hub: bool = False
    redirected: bool = False

    @property
    def etag(self) -> str:
        """The entity tag as sent, with quotes; empty if missing."""
        return self.headers.get("etag", "").strip()

    @property
    def validator(self) -> str:
        """The value for If-Range: a strong entity tag, else the date of the last change, else empty."""
        if self.etag and not self.etag.startswith("W/"):
            return self.etag
        return "" if self.etag else self.headers.get("last-modified", "").strip()


@dataclass(frozen=True)
class PartialContent:
    """The durable bytes of earlier attempts: `offset` bytes of content with this validator and size."""

    offset: int = 0
    validator: str = ""
    total: int | None = None


def resume_offset(kept: PartialContent, file: RemoteFile, part_bytes: int) -> int:
    """Returns the byte to continue from: the kept offset, or 0 if the content may be another.

    part_bytes is the partial file's length: if shorter than claimed, it is not the file that was made
    durable.
    """
    if part_bytes < kept.offset:
        return 0
    if file.size is not None and (kept.offset > file.size or kept.total not in (None, file.size)):
        return 0
    if not kept.validator and not file.sum:
        return 0  # neither the server nor the listing could show that the file changed meanwhile
    return kept.offset


def written_end(kept: PartialContent, file: RemoteFile, part_bytes: int, offset: int) -> int:
    """Returns the end of the bytes in a partial file that a process wrote.

    A kill loses no written bytes, only a loss of power may. Bytes beyond `offset` are still unproven, so they
    are used only in a file whose sum is known: the sum of the whole file proves them.
    """
    total = kept.total if file.size is None else file.size
    if not file.sum or offset != kept.offset or (total is not None and part_bytes > total):
        return offset
    return part_bytes


def judge(answer: Answer, kept: PartialContent, file: RemoteFile) -> int | None:
    """Returns the whole file's size by an answer to a request from kept.offset on, None if not given.

    Raises FetchFailed for an answer to another request. 200 to a ranged request means a server without
    ranges, or changed content: the file is then read from 0.
    """
    encoding = answer.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise FetchFailed("encoded", f"{answer.where} insists on Content-Encoding {encoding}")
    if answer.status == 206:
        found = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "").strip())
        if found is None or int(found[1]) != kept.offset:
            raise FetchFailed("anew", f"{answer.where} answers with another range than asked for")
        total = None if found[3] == "*" else int(found[3])
        known = answer.validator or not file.sum  # without a sum only the validator shows other content
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
    """Returns the failure for an answer that is neither 200, 206 nor a redirect; hub.explain() explains the
    hub's own 401 to 404."""
    status = answer.status
    kind, said = _REFUSALS.get(status, ("server" if status >= 500 else "refused", ""))
    if status in (401, 403) and answer.redirected and not answer.at_hub:
        kind, said = "expired", ": a signed address may have expired"
    wait_s = retry_after(answer.headers, wall_now) if kind in ("server", "throttled") else None
    text = f"{answer.where} answers {status}{said}"
    return FetchFailed(kind, text, status=status, retry_after_s=wait_s)
