"""The builder in a process whose tables have the reader and the step of the test tree, a row each."""

from __future__ import annotations

from stoker.corpus.readers.table import READERS
from stoker.kit.workers.child import run_worker
from stoker.shards.build.build_worker import main
from stoker.shards.format.steps import STEPS
from support.line_reader import READER, STEP

if __name__ == "__main__":
    READERS.update(READER)
    STEPS.update(STEP)
    run_worker(main, many=True)
