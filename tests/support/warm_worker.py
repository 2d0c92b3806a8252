"""The talking worker as one that takes many tasks."""

from __future__ import annotations

from stoker.kit.worker_main import run_worker
from support.talking_worker import main

if __name__ == "__main__":
    run_worker(main, many=True)
