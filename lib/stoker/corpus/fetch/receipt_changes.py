"""Decides a file's receipt and the event to record: pure functions of the download watchdog."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.corpus.fetch.messages import Said
from stoker.corpus.fetch.selection import speaks_of
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.records.receipts import Receipt, ReceiptState, Unneeded
from stoker.corpus.records.sources import Source
from stoker.corpus.source.arrivals import is_rot
from stoker.corpus.source.folder import FileSeen


@dataclass(frozen=True)
class Change:
    """A receipt to write, the event to record once it is durable, and the answer to its request."""

    receipt: Receipt | None = None
    event: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    level: str = "info"
    answer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def refusal(self) -> str:
        """Why the request is refused; empty if it is not."""
        return str(self.answer.get("refused", ""))


def refused(reason: str) -> Change:
    return Change(answer={"refused": reason})


def _as_it_is(receipt: Receipt) -> Change:
    return Change(answer={"receipt": receipt.state, "sha256": receipt.sha256})


# Results of workers


def hashed(
    before: Receipt | None, dataset: str, place: str, file: FileSeen, sha256: str, *, cached: bool
) -> Change:
    """Returns the change after a folder's file at `place` was hashed."""
    told: dict[str, Any] = {"path": file.path, "size": file.size, "sha256": sha256, "cached": cached}
    if before is not None and is_rot(before, file, sha256):
        reason = (
            "its content changed, its size, time and inode did not; nothing is built of it: put a good copy "
            f"in its place, or take it as it is with stoker verify downloads --accept {file.path}"
        )
        told |= {"before": before.sha256, "reason": reason}
        return Change(
            replace(before, file=place, state="disputed", found=sha256), "source_rotten", told, "error"
        )
    receipt = Receipt(dataset, file.path, place, file.size, sha256, "", file.etag, "verified")
    if before is None or before.sha256 == sha256:
        return Change(receipt, "file_reverified" if before else "file_verified", told)
    return Change(receipt, "source_changed", {**told, "before": before.sha256}, "warning")


def fetched(before: Receipt | None, dataset: str, place: str, wanted: RemoteFile, done: Said) -> Change:
    """Returns the change after a file was fetched, or found whole, at `place` in the landing."""
    state: ReceiptState = "unproven" if done.unproven else "verified"
    identity, revision = wanted.identity, wanted.revision
    receipt = Receipt(dataset, wanted.path, place, done.size, done.sha256, revision, identity, state)
    names = ("path", "size", "sha256", "how", "cached")
    told = {name: getattr(done, name) for name in names}
    if done.unproven:
        told["reason"] = "it came without a length, and no sum is listed: nothing tells whether it is whole"
        return Change(receipt, "file_unproven", told, "warning")
    known = before is not None and before.sha256 == done.sha256
    return Change(receipt, "file_reverified" if known else "file_verified", told)


def given_up(before: Receipt | None, dataset: str, place: str, wanted: RemoteFile) -> Change:
    """Returns the change after a file could not be fetched."""
    if before is not None and before.state == "given_up" and speaks_of(before, wanted):
        return Change()
    size, sha256, revision = wanted.size or 0, wanted.sha256 or "", wanted.revision
    return Change(Receipt(dataset, wanted.path, place, size, sha256, revision, wanted.identity, "given_up"))


def listed_otherwise(receipt: Receipt) -> Change:
    """Returns the change that removes a file because other content is listed for it."""
    told = {"path": receipt.path, "before": receipt.sha256, "reason": "listed anew"}
    return Change(replace(receipt, state="releasing"), "source_changed", told)


def removed(receipt: Receipt | None) -> Change:
    """Returns the change after a file was unlinked."""
    if receipt is None or receipt.state != "releasing":
        return Change()
    told = {"path": receipt.path, "size": receipt.size}
    return Change(replace(receipt, state="released"), "file_released", told)


# Requests


def disputed(receipt: Receipt | None, path: str, sha256: str | None, by: str) -> Change:
    """Returns the change for content that was found wrong: the file is checked again."""
    if receipt is None:
        return refused(f"no receipt for {path}")
    if receipt.sha256 != sha256 or not (receipt.usable or receipt.state == "disputed"):
        return _as_it_is(receipt)  # already checked since, or not in the landing
    return looked_at_again(receipt, by)


def looked_at_again(receipt: Receipt, by: str) -> Change:
    """Returns the change that has a file hashed again, and fetched again if it differs from its receipt."""
    answer = {"receipt": "disputed"}
    if receipt.state == "disputed" and not receipt.found:
        return Change(answer=answer)
    disputed = replace(receipt, state="disputed", found="")
    return Change(disputed, "receipt_disputed", {"path": receipt.path, "by": by}, "warning", answer)


def accepted(receipt: Receipt | None, path: str, sha256: str | None, by: str) -> Change:
    """Returns the change by which an operator accepts a rotten file as it is."""
    if receipt is None or not receipt.rotten or receipt.found != sha256:
        return refused(f"{path} is not rotten with that content")
    told = {"path": path, "sha256": sha256, "before": receipt.sha256, "by": by}
    taken = replace(receipt, state="verified", sha256=receipt.found, found="")
    return Change(taken, "source_changed", told, "warning", {"receipt": "verified"})


def released(receipt: Receipt | None, path: str, sha256: str, still_needed: Callable[[], str]) -> Change:
    """Returns the intent to remove a file that the stage-shard loop no longer needs, before the unlink."""
    if receipt is None:
        return refused(f"no receipt for {path}")
    if not receipt.usable or receipt.sha256 != sha256:
        return _as_it_is(receipt)
    if kept := still_needed():
        return refused(f"{path}: {kept}")
    return Change(replace(receipt, state="releasing"), answer={"receipt": "releasing"})


def still_needed(
    path: str, unneeded: Unneeded, source_of: Callable[[str], Source | None], *, release: str, has_warm: bool
) -> str:
    """Returns why a file must stay, by the loop's records of it and of its content's owner; else empty."""
    if release == "never":
        return "shard.release is never"
    safe = {"synced", "released"} if has_warm else {"proven", "released"}
    owner = unneeded.owner
    for each, states in ((path, safe | {"duplicate"} if owner != path else safe), (owner, safe)):
        source = source_of(each)
        if source is None or source.sha256 != unneeded.sha256:
            return f"no source record of {each} speaks of that content"
        if source.state not in states:
            return f"the source {each} is {source.state}"
    return ""


def fetched_again(receipt: Receipt, sha256: str | None, wanted: RemoteFile | None, by: str) -> Change:
    """Returns the change that fetches a removed file again; `sha256` is the content meant, None for any."""
    if receipt.state == "given_up":
        return Change(answer={"receipt": "given_up"})
    if sha256 is not None and receipt.sha256 != sha256:
        return _as_it_is(receipt)
    if wanted is None:
        return refused(f"{receipt.path} is not listed any more, and nothing tells where it is")
    if receipt.state not in ("released", "releasing") or not speaks_of(receipt, wanted):
        return Change(answer={"receipt": receipt.state})
    told, answer = {"path": receipt.path, "by": by}, {"receipt": "disputed"}
    return Change(replace(receipt, state="disputed"), "fetch_asked", told, answer=answer)
