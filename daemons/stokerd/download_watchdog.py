"""The command of the download watchdog, whose loop is stokerd.download.loop."""

from __future__ import annotations

import sys

from stoker.kit.daemon import daemon_main
from stoker.store.layout import DOWNLOAD_WATCHDOG
from stokerd.download.loop import run


def main() -> int:
    """Runs `stoker-download-watchdog FILE [--once] [--files-list LIST]`; returns the exit code."""
    about = "Fetch every file of the pipeline's source, prove it by its checksum, and keep a receipt for it."
    return daemon_main(DOWNLOAD_WATCHDOG, run, sys.argv[1:], about=about, takes_files_list=True)


if __name__ == "__main__":
    sys.exit(main())
