"""The start of the loop: sources that begin anew because the configuration asks for something else now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from stoker.corpus.records.sources import PUBLISHED, TERMINAL, Source, former_name
from stokerd.sharding.hot_disk import HotYard
from stokerd.sharding.pinning import Pinning
from stokerd.sharding.source_store import SourceBook


def begin_new_version(book: SourceBook, pinning: Pinning, yard: HotYard) -> None:
    """Start every source anew when dataset.version was raised: the sets there are are another build's."""
    if pinning.earlier is None or pinning.pin is not None:
        return
    for source in list(book.sources.values()):
        if source.former is not None:  # of a content that no file has: nothing can be built of it
            book.forget(source)
        elif source.never_came:
            continue  # it begins anew when its file comes
        elif source.state in TERMINAL or source.state == "building":
            yard.discard_build(source)
            book.renew(replace(source, formers=()), "new dataset version")


def restore_formers(book: SourceBook) -> None:
    """Bring the records of what files held before in line with those of the files.

    A change cut off between the two records is as if it had not begun; a record that was lost is made anew,
    and its shard set is found by its key.
    """
    sources = book.sources
    for former in [sources[path] for path in sources.formers]:
        origin = sources.get(str(former.former))
        both = origin is not None and {origin.state, former.state} <= PUBLISHED
        if both and origin is not None and origin.sha256 == former.sha256:
            plain = Source(former.dataset, former.path, former.size, former.sha256, former=former.former)
            book.write(replace(plain, state="duplicate", reason=f"same content as {origin.path}"))
    for source in [one for one in sources.values() if one.formers]:
        for sha256, size in source.formers:
            if not sources.with_content(sha256):
                lost = Source(source.dataset, source.path, size, sha256)
                book.write(replace(lost, path=former_name(sources, lost), former=source.path))


def acquit_for_other_columns(book: SourceBook, columns_read: Collection[str]) -> None:
    """Start sources anew that were quarantined for a column which the configuration no longer reads."""
    for source in list(book.sources.values()):
        blamed = source.column if source.state == "quarantined" else None
        if blamed is not None and blamed not in columns_read:
            book.renew(source, f"it was quarantined for column {blamed!r}, which is not read now")
