"""Sources that begin anew when the loop starts, because the configuration asks for something else by now."""

from __future__ import annotations

from collections.abc import Collection

from stoker.corpus.sources import TERMINAL
from stokerd.hot_yard import HotYard
from stokerd.pinning import Pinning
from stokerd.source_book import SourceBook


def begin_new_version(book: SourceBook, pinning: Pinning, yard: HotYard) -> None:
    """Start every source anew when dataset.version was raised: the sets there are are another build's."""
    if pinning.earlier is None or pinning.pin is not None:
        return
    for source in list(book.sources.values()):
        if source.state in TERMINAL or source.state == "building":
            yard.discard_build(source)
            book.renew(source, "new dataset version")


def acquit_for_other_columns(book: SourceBook, columns_read: Collection[str]) -> None:
    """Start sources anew that were quarantined for a column which the configuration no longer reads."""
    for source in list(book.sources.values()):
        blamed = source.column if source.state == "quarantined" else None
        if blamed is not None and blamed not in columns_read:
            book.renew(source, f"it was quarantined for column {blamed!r}, which is not read now")
