"""What to do about the files of a source that is fetched: pure decisions of the download watchdog.

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
from stoker.corpus.records.limit import slice_of
from stoker.corpus.records.listing import Listing
from stoker.corpus.records.receipts import Receipt, ReceiptState
from stoker.corpus.records.sources import TERMINAL, Source
from stoker.corpus.records.tokenizer_files import choose
from stoker.corpus.source.arrivals import file_of

VOUCHED: frozenset[ReceiptState] = frozenset({"verified", "unproven", "releasing", "released", "given_up"})

# bring: fetch it, or hash what lies there. release: other content is wanted, so an intent to remove this one
# is written. remove: an intent that stands is carried out.
Step = Literal["", "bring", "release", "remove"]


def wanted_again(receipt: Receipt, repo: HubRepo | None) -> RemoteFile | None:
    """The wish for a content that is not listed any more; None where nothing tells how to get it."""
    if repo is None or not receipt.revision or not receipt.etag.startswith(("sha256:", "git:")):
        return None
    return RemoteFile(receipt.path, receipt.size, receipt.etag).at(repo, receipt.revision)


def speaks_of(receipt: Receipt, wanted: RemoteFile) -> bool:
    """Whether the receipt is about the content that is wanted."""
    return receipt.etag == wanted.identity or (
        bool(receipt.sha256) and wanted.identity == f"sha256:{receipt.sha256}"
    )


def landed_before(receipt: Receipt | None, wanted: RemoteFile) -> str | None:
    """The sha256 of what was put into the landing for the content that is wanted, where one is on record."""
    return receipt.sha256 or None if receipt is not None and speaks_of(receipt, wanted) else None


def is_settled(receipt: Receipt | None, wanted: RemoteFile) -> bool:
    """Whether nothing needs to come for a file that something is to be done about: it leaves, or was given
    up and is only tried again now and then."""
    return receipt is not None and receipt.state in ("releasing", "given_up") and speaks_of(receipt, wanted)


class RemoteRules:
    """What is to be done about the files of a fetched source, whose landing is `root`."""

    states = ("waiting", "fetching", "verified", "unproven", "releasing", "released", "disputed", "given_up")

    def __init__(self, root: str, repo: HubRepo | None) -> None:
        self._root, self._repo = root, repo

    def step(self, wanted: RemoteFile, receipt: Receipt | None) -> Step:
        """What to do about a listed file now; one that was given up is brought too, later."""
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
        """As Rules have it."""
        is_pending = bool(self.step(file, receipt))
        if receipt is None or (is_pending and receipt.state != "disputed" and not is_settled(receipt, file)):
            return "waiting", is_pending
        return receipt.state, is_pending

    def wanted_again(self, receipt: Receipt) -> RemoteFile | None:
        """A disputed file that is not listed any more: it is brought because somebody asked for it."""
        return wanted_again(receipt, self._repo) if receipt.state == "disputed" else None


def is_complete(meant: Collection[str], still: Mapping[str, RemoteFile], book: Mapping[str, Receipt]) -> bool:
    """Whether every file meant is vouched for, and at least one of them came; `still` are the open ones, and
    perhaps others that nobody means any more."""
    settled = (is_settled(book.get(path), each) for path, each in still.items() if path in meant)
    if not meant or not all(settled):
        return False
    return any(path in book and book[path].state != "given_up" for path in meant)


def still_complete(paths: Iterable[str], book: Mapping[str, Receipt]) -> bool:
    """Whether a listing that was complete can still be so, before the source was listed anew."""
    return all((receipt := book.get(path)) is not None and receipt.state in VOUCHED for path in paths)


@dataclass(frozen=True)
class Stretch:
    """The paths to have now; `is_whole`: they are all that the limit will ever take."""

    paths: frozenset[str]
    is_whole: bool


def stretch_of(listing: Listing, sources: Mapping[str, Source], pipeline: Pipeline) -> Stretch:
    """The files of a slice that is full, else those counted, and so many behind the first that is not."""
    limit = pipeline.dataset.limit
    part = slice_of(listing.paths, sources, limit)
    if part.full:
        return Stretch(frozenset(part.paths), is_whole=True)
    order = sorted(listing.paths)[: limit.files]
    counted = {path for path in order if path in sources and sources[path].state in TERMINAL}
    ahead = pipeline.stage.queue_files + pipeline.download.files_at_once
    wanted = set(islice((path for path in order if path not in counted), ahead))
    training = pipeline.tokenizer.train
    if training is not None:  # nothing is built, so nothing counted, before its files are here
        wanted |= choose(listing, sources, training.train_bytes).wanted.intersection(order)
    paths = frozenset(counted | wanted)
    return Stretch(paths, is_whole=len(paths) == len(order))
