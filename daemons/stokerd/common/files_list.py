"""The daemons' option --files-list, which limits their work to the listed files."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from pathlib import Path

from stoker.corpus.records.files_list import insist_known, read_files_list
from stoker.corpus.records.listing import Listing
from stoker.kit.daemon import DaemonContext
from stoker.store.errors import UnavailableError


class FilesList:
    """The files named by the option; `names` is None without the option: every file is selected."""

    def __init__(self, context: DaemonContext) -> None:
        given = context.files_list
        self.names = None if given is None else read_files_list(Path(given))
        self._once = context.once
        self._checked = self.names is None

    def takes(self, path: str) -> bool:
        """Returns whether a path is selected."""
        return self.names is None or path in self.names

    def left_out(self, paths: Collection[str], but: Collection[str] = ()) -> list[str]:
        """Returns the paths that are not selected, except those in `but`, which selected files need."""
        return [path for path in paths if not self.takes(path) and path not in but]

    def check(self, listing: Listing | None, *known: Iterable[str]) -> None:
        """Refuses a list with unknown files, once a listing exists; --once does not wait for a listing."""
        if self._checked or self.names is None:
            return
        if listing is not None:
            insist_known(self.names, {*listing.paths, *chain(*known)}, "the listing of the source")
            self._checked = True
        elif self._once:
            raise UnavailableError(
                "--files-list cannot be checked: no file of the source is listed yet; run "
                "`stoker-download-watchdog FILE --once` first"
            )
