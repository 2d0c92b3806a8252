"""Decides how to treat the files of a source: pure functions of the download watchdog.

Which files to fetch now, what a file's receipt becomes, and which event to record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

from stoker.config.schema import Pipeline
from stoker.corpus.http.hub import HubRepo
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.records.dataset import choose_training_set, slice_of
from stoker.corpus.records.receipts import Listing, Receipt, ReceiptState, Unneeded
from stoker.corpus.records.sources import TERMINAL, Source
from stoker.corpus.source.folder import FileSeen, file_of, is_rot


@dataclass(frozen=True)
class FetchMessage:
    """One message of the fetch worker: each kind has the fields in its docstring, `cause` for its class."""

    kind: str
    path: str = ""
    bytes: int = 0
    received: int = 0
    offset: int = 0
    # retry, failed, anew, not_removed
    cause: str = ""
    reason: str = ""
    status: int | None = None
    wait_s: float = 0.0
    # done
    how: str = ""
    size: int = 0
    sha256: str = ""
    cached: bool = False
    unproven: bool = False
    fetched: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)  # of a mismatch, for its event
    # ready
    unmanaged: tuple[str, ...] = ()
    device: int = 0


def parse(message: Mapping[str, Any]) -> FetchMessage:
    """Returns the message of a worker's line; raises TypeError for an unknown field."""
    fields = {"cause" if name == "class" else name: value for name, value in message.items()}
    return FetchMessage(**{**fields, "unmanaged": tuple(message.get("unmanaged", ()))})


# Selection

# bring: fetch the file, or hash it in place. release: write the intent to remove it, since other content is
# wanted. remove: carry out an existing intent.
Step = Literal["", "bring", "release", "remove"]


def speaks_of(receipt: Receipt, wanted: RemoteFile) -> bool:
    """Whether the receipt is about the wanted content."""
    return receipt.etag == wanted.identity or (
        bool(receipt.sha256) and wanted.identity == f"sha256:{receipt.sha256}"
    )


def landed_before(receipt: Receipt | None, wanted: RemoteFile) -> str | None:
    """Returns the recorded sha256 of the wanted content in the landing; None without a record."""
    return receipt.sha256 or None if receipt is not None and speaks_of(receipt, wanted) else None


class RemoteRules:
    """The rules for the files of a fetched source, whose landing is `root`."""

    states = ("waiting", "fetching", "verified", "unproven", "releasing", "released", "disputed", "given_up")

    def __init__(self, root: str, repo: HubRepo | None) -> None:
        self._root, self._repo = root, repo

    def step(self, wanted: RemoteFile, receipt: Receipt | None) -> Step:
        """Returns the next step for a listed file; a file that was given up is fetched too, later."""
        if receipt is None:
            return "bring"
        if receipt.state == "releasing":
            return "remove"
        same, here = speaks_of(receipt, wanted), receipt.file == file_of(self._root, wanted.path)
        if receipt.state == "released":
            return "" if same else "bring"
        if same:
            return "" if receipt.usable and here else "bring"
        return "release" if here and receipt.state != "given_up" else "bring"

    def state_of(self, file: RemoteFile, receipt: Receipt | None) -> tuple[str, bool]:
        """Implements Rules; no bytes come for a file that is being removed, or that is retried rarely."""
        is_pending = bool(self.step(file, receipt))
        if receipt is None or (is_pending and receipt.state != "disputed" and not speaks_of(receipt, file)):
            return "waiting", is_pending
        is_to_come = is_pending and receipt.state not in ("disputed", "releasing", "given_up")
        return "waiting" if is_to_come else receipt.state, is_pending

    def wanted_again(self, receipt: Receipt) -> RemoteFile | None:
        """Returns the request for a disputed file that is no longer listed; None if no address is known."""
        has_sum = receipt.etag.startswith(("sha256:", "git:"))
        if receipt.state != "disputed" or self._repo is None or not (receipt.revision and has_sum):
            return None
        return RemoteFile(receipt.path, receipt.size, receipt.etag).at(self._repo, receipt.revision)


def stretch_of(
    listing: Listing, sources: Mapping[str, Source], pipeline: Pipeline
) -> tuple[frozenset[str], bool]:
    """Returns the paths to have now, and whether a limit of rows or tokens will never take more.

    How many files fill the limit is known only as they are built, and fetching all that is listed would bring
    a terabyte for ten million rows. So these are the files of a full slice, else those counted, and so many
    after the first uncounted file.
    """
    limit = pipeline.dataset.limit
    part = slice_of(listing.paths, sources, limit)
    if part.full:
        return frozenset(part.paths), True
    order = sorted(listing.paths)[: limit.files]
    counted = {path for path in order if path in sources and sources[path].state in TERMINAL}
    ahead = pipeline.stage.queue_files + pipeline.download.files_at_once
    wanted = set(islice((path for path in order if path not in counted), ahead))
    training = pipeline.tokenizer.train
    if training is not None:  # no file is built, and so counted, before all training files are here
        wanted |= choose_training_set(listing, sources, training.train_bytes).wanted.intersection(order)
    paths = frozenset(counted | wanted)
    return paths, len(paths) == len(order)


# Receipts


@dataclass(frozen=True)
class Change:
    """A receipt to write, the event to record once it is durable, and the answer to its request."""

    receipt: Receipt | None = None
    event: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
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
    details: dict[str, Any] = {"path": file.path, "size": file.size, "sha256": sha256, "cached": cached}
    if before is not None and is_rot(before, file, sha256):
        reason = (
            "its content changed, its size, time and inode did not; nothing is built of it: put a good copy "
            f"in its place, or take it as it is with stoker verify downloads --accept {file.path}"
        )
        details |= {"before": before.sha256, "reason": reason}
        return Change(replace(before, file=place, state="disputed", found=sha256), "source_rotten", details)
    receipt = Receipt(dataset, file.path, place, file.size, sha256, "", file.etag, "verified")
    if before is None or before.sha256 == sha256:
        return Change(receipt, "file_reverified" if before else "file_verified", details)
    return Change(receipt, "source_changed", {**details, "before": before.sha256})


def fetched(
    before: Receipt | None, dataset: str, place: str, wanted: RemoteFile, done: FetchMessage
) -> Change:
    """Returns the change after a file was fetched, or found whole, at `place` in the landing."""
    state: ReceiptState = "unproven" if done.unproven else "verified"
    identity, revision = wanted.identity, wanted.revision
    receipt = Receipt(dataset, wanted.path, place, done.size, done.sha256, revision, identity, state)
    names = ("path", "size", "sha256", "how", "cached")
    details = {name: getattr(done, name) for name in names}
    if done.unproven:
        details["reason"] = (
            "it came without a length, and no sum is listed: nothing shows whether it is whole"
        )
        return Change(receipt, "file_unproven", details)
    known = before is not None and before.sha256 == done.sha256
    return Change(receipt, "file_reverified" if known else "file_verified", details)


def given_up(before: Receipt | None, dataset: str, place: str, wanted: RemoteFile) -> Change:
    """Returns the change after a file could not be fetched."""
    if before is not None and before.state == "given_up" and speaks_of(before, wanted):
        return Change()
    size, sha256, revision = wanted.size or 0, wanted.sha256 or "", wanted.revision
    return Change(Receipt(dataset, wanted.path, place, size, sha256, revision, wanted.identity, "given_up"))


def listed_otherwise(receipt: Receipt) -> Change:
    """Returns the change that removes a file because other content is listed for it."""
    details = {"path": receipt.path, "before": receipt.sha256, "reason": "listed again"}
    return Change(replace(receipt, state="releasing"), "source_changed", details)


def removed(receipt: Receipt | None) -> Change:
    """Returns the change after a file was unlinked."""
    if receipt is None or receipt.state != "releasing":
        return Change()
    details = {"path": receipt.path, "size": receipt.size}
    return Change(replace(receipt, state="released"), "file_released", details)


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
    return Change(disputed, "receipt_disputed", {"path": receipt.path, "by": by}, answer)


def accepted(receipt: Receipt | None, path: str, sha256: str | None, by: str) -> Change:
    """Returns the change by which an operator accepts a rotten file as it is."""
    if receipt is None or not receipt.rotten or receipt.found != sha256:
        return refused(f"{path} is not rotten with that content")
    details = {"path": path, "sha256": sha256, "before": receipt.sha256, "by": by}
    taken = replace(receipt, state="verified", sha256=receipt.found, found="")
    return Change(taken, "source_changed", details, {"receipt": "verified"})


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
        return refused(f"{receipt.path} is not listed any more, and nothing says where it is")
    if receipt.state not in ("released", "releasing") or not speaks_of(receipt, wanted):
        return Change(answer={"receipt": receipt.state})
    details, answer = {"path": receipt.path, "by": by}, {"receipt": "disputed"}
    return Change(replace(receipt, state="disputed"), "fetch_asked", details, answer=answer)
