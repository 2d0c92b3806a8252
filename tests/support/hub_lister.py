"""The hub worker as one that takes many tasks: its client takes ten times as long to load as to list."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from stoker.corpus.source import hub_worker, listing
from stoker.kit.workers.child import run_worker


def listed(*given: Any) -> dict[str, Any]:
    """List with a client that no task before has used."""
    if "huggingface_hub" in sys.modules:
        sys.modules["huggingface_hub"].close_session()
    return hub_worker.listed(*given)


if __name__ == "__main__":
    vars(listing)["run_worker"] = partial(run_worker, many=True)
    listing.run_lister(listed)
