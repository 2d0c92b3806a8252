"""The command of the stage-shard loop, which is stokerd.sharding.loop."""

from __future__ import annotations

import sys

from stoker.kit.daemon import daemon_main
from stoker.store.layout import STAGE_SHARD
from stokerd.sharding.loop import run


def main() -> int:
    """Runs `stoker-stage-shard FILE [--once] [--files-list LIST]`; returns the exit code."""
    about = "Check and tokenize every verified file, publish its shard set, and keep the sets on their disks."
    return daemon_main(STAGE_SHARD, run, sys.argv[1:], about=about, takes_files_list=True)


if __name__ == "__main__":
    sys.exit(main())
