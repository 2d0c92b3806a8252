"""The talking worker as one that takes many tasks."""

from __future__ import annotations

from typing import NoReturn

from stoker.kit.workers.child import run_worker
from support.talking_worker import main


def serve() -> NoReturn:
    """Be the worker's process."""
    run_worker(main, many=True)


if __name__ == "__main__":
    serve()
