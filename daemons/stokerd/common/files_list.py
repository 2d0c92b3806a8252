"""The daemons' option --files-list: work on these files alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from pathlib import Path

from stoker.corpus.records.files_list import insist_known, read_files_list
from stoker.corpus.records.listing import Listing
from stoker.kit.daemon import DaemonContext, Option
from stoker.store.errors import UnavailableError

FILES_LIST = Option(
    "--files-list", "LIST", "work only on the files that LIST names, one path relative to the source a line"
)


class FilesList:
    """What the option says; without it every file is meant (`names` is None)."""

    def __init__(self, context: DaemonContext) -> None:
        given = context.options.get("files_list")
        self.names = None if given is None else read_files_list(Path(given))
        self._once = context.once
        self._checked = self.names is None

    def takes(self, path: str) -> bool:
        """Whether the path is to be worked on."""
        return self.names is None or path in self.names

    def left_out(self, paths: Collection[str], but: Collection[str] = ()) -> list[str]:
        """The paths that are left alone; those in `but` the others cannot do without."""
        return [path for path in paths if not self.takes(path) and path not in but]

    def check(self, listing: Listing | None, *known: Iterable[str]) -> None:
        """Refuse a list of what is not there, once a listing can tell; --once does not wait for one."""
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
