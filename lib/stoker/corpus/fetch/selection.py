"""Decides how to treat the files of a fetched source: pure functions of the download watchdog.

How many files fill a limit of rows or tokens is known only as they are built. Fetching all that is listed
would bring a terabyte for ten million rows, so the files come in listing order, a bounded stretch ahead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from stoker.config.schema import Pipeline
from stoker.corpus.http.hub import HubRepo
from stoker.corpus.http.remote_file import RemoteFile
from stoker.corpus.records.dataset import choose_training_set, slice_of
from stoker.corpus.records.receipts import Listing, Receipt, ReceiptState
from stoker.corpus.records.sources import TERMINAL, Source
from stoker.corpus.source.arrivals import file_of

VOUCHED: frozenset[ReceiptState] = frozenset({"verified", "unproven", "releasing", "released", "given_up"})

# bring: fetch the file, or hash it in place. release: write the intent to remove it, since other content is
# wanted. remove: carry out an existing intent.
Step = Literal["", "bring", "release", "remove"]


def wanted_again(receipt: Receipt, repo: HubRepo | None) -> RemoteFile | None:
    """Returns the request for content that is no longer listed; None if no address is known."""
    if repo is None or not receipt.revision or not receipt.etag.startswith(("sha256:", "git:")):
        return None
    return RemoteFile(receipt.path, receipt.size, receipt.etag).at(repo, receipt.revision)


def speaks_of(receipt: Receipt, wanted: RemoteFile) -> bool:
    """Whether the receipt is about the wanted content."""
    return receipt.etag == wanted.identity or (
        bool(receipt.sha256) and wanted.identity == f"sha256:{receipt.sha256}"
    )


def landed_before(receipt: Receipt | None, wanted: RemoteFile) -> str | None:
    """Returns the recorded sha256 of the wanted content in the landing; None without a record."""
    return receipt.sha256 or None if receipt is not None and speaks_of(receipt, wanted) else None


def is_settled(receipt: Receipt | None, wanted: RemoteFile) -> bool:
    """Whether no bytes need to come for a wanted file: it is being removed, or was given up and is
    retried rarely."""
    return receipt is not None and receipt.state in ("releasing", "given_up") and speaks_of(receipt, wanted)


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
        """Implements Rules."""
        is_pending = bool(self.step(file, receipt))
        if receipt is None or (is_pending and receipt.state != "disputed" and not is_settled(receipt, file)):
            return "waiting", is_pending
        return receipt.state, is_pending

    def wanted_again(self, receipt: Receipt) -> RemoteFile | None:
        """Returns the request for a disputed file that is no longer listed: the dispute asks for it."""
        return wanted_again(receipt, self._repo) if receipt.state == "disputed" else None


def is_complete(meant: Collection[str], still: Mapping[str, RemoteFile], book: Mapping[str, Receipt]) -> bool:
    """Whether every wanted file has a valid receipt, and at least one came.

    `still` are the open files; it may include files that are no longer wanted.
    """
    settled = (is_settled(book.get(path), each) for path, each in still.items() if path in meant)
    if not meant or not all(settled):
        return False
    return any(path in book and book[path].state != "given_up" for path in meant)


def still_complete(paths: Iterable[str], book: Mapping[str, Receipt]) -> bool:
    """Whether a complete listing can still be complete, before the source is listed again."""
    return all((receipt := book.get(path)) is not None and receipt.state in VOUCHED for path in paths)


@dataclass(frozen=True)
class Stretch:
    """The paths to have now; `is_whole`: the limit will never take more."""

    paths: frozenset[str]
    is_whole: bool


def stretch_of(listing: Listing, sources: Mapping[str, Source], pipeline: Pipeline) -> Stretch:
    """Returns the files of a full slice, else those counted, and so many after the first uncounted file."""
    limit = pipeline.dataset.limit
    part = slice_of(listing.paths, sources, limit)
    if part.full:
        return Stretch(frozenset(part.paths), is_whole=True)
    order = sorted(listing.paths)[: limit.files]
    counted = {path for path in order if path in sources and sources[path].state in TERMINAL}
    ahead = pipeline.stage.queue_files + pipeline.download.files_at_once
    wanted = set(islice((path for path in order if path not in counted), ahead))
    training = pipeline.tokenizer.train
    if training is not None:  # no file is built, and so counted, before all training files are here
        wanted |= choose_training_set(listing, sources, training.train_bytes).wanted.intersection(order)
    paths = frozenset(counted | wanted)
    return Stretch(paths, is_whole=len(paths) == len(order))
