"""Worker: looks through a source folder for `stoker config check`: files, columns, text.

Task: root, include, exclude, text_column, columns (that the filters read, with their kinds). Result:
`problem` (why the folder cannot be read; then it is the only field), or files, bytes, and for the files whose
footers were read: looked, looked_bytes, text_bytes (of the text columns, unpacked), with_text (how many have
the column), flaw ([path, detail, column] of the first file that lacks a column). Damaged files are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from stoker.corpus.source.folder import FileSeen, Selection, look_through
from stoker.corpus.staging.preflight import preflight
from stoker.kit.workers.child import Report, run_worker

ENOUGH = 20  # footers, where one of them has the text column
MOST = 1000  # footers, where none has


def survey(task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Looks through the folder, then into footers."""
    root = Path(task["root"])
    files, refused = [], ""
    try:
        for found in look_through(root, Selection(tuple(task["include"]), tuple(task["exclude"]))):
            if isinstance(found, FileSeen):
                files.append(found)
                if len(files) % 1000 == 0:
                    report("listed", files=len(files))
            elif found.kind != "foreign":
                refused = refused or f" ({found.path}: {found.reason})"
    except OSError as error:
        return {"problem": f"cannot be read: {error.strerror}"}
    if not files:
        return {"problem": f"holds no file to read that matches {{globs}}{refused}"}
    return {
        "files": len(files),
        "bytes": sum(file.size for file in files),
        **_look(root, sorted(files, key=lambda file: file.path)[:MOST], task, report),
    }


def _look(root: Path, files: list[FileSeen], task: dict[str, Any], report: Report) -> dict[str, Any]:
    looked = looked_bytes = text_bytes = with_text = 0
    flaw: list[str] | None = None
    text = task["text_column"]
    for number, file in enumerate(files):
        if number >= ENOUGH and with_text:
            break
        path = root / file.path
        report("looked", files=number)
        try:
            found = preflight(path, text, task["columns"])
            if found is not None and found.reason not in ("missing_column", "column_type"):
                continue
            looked += 1
            if found is not None:
                flaw = flaw or [str(path), found.detail, found.column or ""]
            if found is None or found.column != text:
                with_text += 1
                looked_bytes += file.size
                text_bytes += _text_bytes(path, text)
        except OSError:
            continue
    return {
        "looked": looked,
        "looked_bytes": looked_bytes,
        "text_bytes": text_bytes,
        "with_text": with_text,
        "flaw": flaw,
    }


def _text_bytes(path: Path, column: str) -> int:
    metadata = pq.read_metadata(path)
    return sum(
        chunk.total_uncompressed_size
        for group in map(metadata.row_group, range(metadata.num_row_groups))
        for chunk in map(group.column, range(metadata.num_columns))
        if chunk.path_in_schema == column
    )


if __name__ == "__main__":
    run_worker(survey)
