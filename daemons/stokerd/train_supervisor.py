"""The command of the train supervisor, whose loop is stokerd.supervision.loop."""

from __future__ import annotations

import sys

from stoker.kit.daemon import daemon_main
from stoker.store.layout import TRAIN_SUPERVISOR
from stokerd.supervision.loop import main as supervise


def main() -> int:
    """Runs `stoker-train-supervisor FILE [--once] [--until STEP]`; returns the exit code."""
    about = "Plan the data, launch and watch the trainer, prove its checkpoints, resume after every stop."
    return daemon_main(TRAIN_SUPERVISOR, supervise, sys.argv[1:], about=about, takes_until=True)


if __name__ == "__main__":
    sys.exit(main())
