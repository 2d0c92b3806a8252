"""`--files-list`: a text file that limits a daemon to the listed paths; one path of the listing a line."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from stoker.store.errors import DataError, UsageError

_SHOWN = 5


def read_files_list(file: Path) -> frozenset[str]:
    """Returns the paths in a list; empty lines are ignored.

    Raises UsageError where the list is missing or names no path.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--files-list {file}: {error}; name a text file of paths, one a line") from error
    names = frozenset(line.removesuffix("\r") for line in lines if line.strip())
    if not names:
        raise UsageError(f"--files-list {file} names no file; put a path a line into it")
    return names


def insist_known(names: Iterable[str], known: Collection[str], where: str) -> None:
    """Raises a DataError that lists the names that are not known."""
    if unknown := sorted(set(names) - set(known)):
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise DataError(
            f"--files-list names what is not in {where}: {', '.join(unknown[:_SHOWN])}{more}; correct "
            "the list (paths relative to the source, as `stoker events` shows them), or bring the files first"
        )
