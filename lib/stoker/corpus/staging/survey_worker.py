"""Worker: looks through a source folder for `stoker config check`: files, columns, text.

Task: root, include, exclude, text_column, columns (that the filters read, with their kinds), tokens. Result:
`problem` (why the folder cannot be read; then it is the only field), or files, bytes, and for the files whose
footers were read: looked, looked_bytes, text_bytes (of the text columns, unpacked; or the tokens),
with_text (how many have the column), flaw ([path, detail, column] of the first file that lacks a column).
Damaged files are left out.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from stoker.corpus.readers.reader import reader_of
from stoker.corpus.readers.table import Tokens
from stoker.corpus.source.folder import FileSeen, Selection, look_through
from stoker.kit.workers.child import ALIVE_EVERY_S, Report, paced, run_worker

ENOUGH = 20  # footers, where one of them has the text column
MOST = 1000  # footers, where none has


def survey(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Looks through the folder, then into footers."""
    root, files, refused = Path(task["root"]), [], ""
    alive = paced(lambda: report("alive"), ALIVE_EVERY_S)
    try:
        for found in look_through(root, Selection(task["include"], task["exclude"]), alive):
            if isinstance(found, FileSeen):
                files.append(found)
            elif found.kind != "unmanaged":
                refused = refused or f" ({found.path}: {found.reason})"
    except OSError as error:
        return {"problem": f"cannot be read: {error.strerror}"}
    if not files:
        return {"problem": f"holds no file to read that matches {{globs}}{refused}"}
    counts = dict.fromkeys(("looked", "looked_bytes", "text_bytes", "with_text"), 0)
    seen: dict[str, Any] = {
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "flaw": None,
        **counts,
    }
    for file in sorted(files, key=lambda file: file.path)[:MOST]:
        if seen["looked"] >= ENOUGH and seen["with_text"]:
            break
        alive()
        with contextlib.suppress(OSError):
            _look(root / file.path, file.size, task, seen)
    return seen


def _look(path: Path, size: int, task: dict[str, Any], seen: dict[str, Any]) -> None:
    """Adds a file's footer to what was seen."""
    text = task["text_column"]
    reader, tokens = reader_of(path), Tokens.of(task)
    found = reader.preflight(path, text, task["columns"], tokens=tokens)
    if found is not None and found.reason not in ("missing_column", "column_type"):
        return
    seen["looked"] += 1
    if found is not None:
        seen["flaw"] = seen["flaw"] or [str(path), found.detail, found.column or ""]
    if found is None or found.column != text:
        seen["with_text"] += 1
        seen["looked_bytes"] += size
        seen["text_bytes"] += reader.text_bytes(path, text, tokens)


if __name__ == "__main__":
    run_worker(survey)
