"""`--files-list`: a text file that limits a daemon to the listed paths; one path of the listing a line."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from pathlib import Path

from stoker.corpus.records.receipts import Listing
from stoker.kit.daemon import DaemonContext
from stoker.store.errors import DataError, UnavailableError, UsageError
from stoker.store.files import PathEscapes, inside

_SHOWN = 5


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


def read_files_list(file: Path) -> frozenset[str]:
    """Returns the paths in a list; empty lines are ignored.

    Raises UsageError where the list is missing or names no path, DataError for a path that leads out of the
    source.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--files-list {file}: {error}; name a text file of paths, one a line") from error
    names = frozenset(line.removesuffix("\r") for line in lines if line.strip())
    if not names:
        raise UsageError(f"--files-list {file} names no file; put a path a line into it")
    try:
        for name in names:
            inside(Path(), name)
    except PathEscapes as error:
        raise DataError(f"--files-list {file}: {error}") from error
    return names


def insist_known(names: Iterable[str], known: Collection[str], where: str) -> None:
    """Raises a DataError that lists the names that are not known."""
    unknown = sorted(set(names) - set(known))
    if unknown:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise DataError(
            f"--files-list names what is not in {where}: {', '.join(unknown[:_SHOWN])}{more}; correct "
            "the list (paths relative to the source, as `stoker events` shows them), or bring the files first"
        )
