"""The hourly event of a run that trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EVERY_S = 3600.0


def run_progress(shown: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the event run_progress from a status snapshot; {} while no step is made."""
    if not shown["tokens_per_s"]:
        return {}
    return {
        "step": shown["step"],
        "steps": shown["steps"],
        "loss": shown["loss"],
        "val_loss": shown["val_loss"],
        "tokens_per_s": round(shown["tokens_per_s"]),
        "eta_s": None if shown["eta_s"] is None else round(shown["eta_s"]),
    }
