"""Reports of the workers that list a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.kit.workers.child import Report

FILES_A_MESSAGE = 500  # well below a message's size limit for names of any length
_REFUSED_SHOWN = 100


def tell_files(
    report: Report, revision: str, files: Sequence[Sequence[Any]], refused: Sequence[list[str]] = ()
) -> dict[str, Any]:
    """Reports the files in batches; returns the worker's result."""
    for start in range(0, len(files), FILES_A_MESSAGE):
        report("files", files=files[start : start + FILES_A_MESSAGE])
    return {
        "status": "listed",
        "revision": revision,
        "files": len(files),
        "refused": list(refused[:_REFUSED_SHOWN]),
        "refused_in_all": len(refused),
    }
