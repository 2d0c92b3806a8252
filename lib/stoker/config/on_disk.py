"""Says whether this Stoker reads what lies on disk: `python -m stoker.config.on_disk FILE...`.

FILE is a pipeline's. One that this version refuses is named, and its state is not looked at: its daemons
refuse a reload, too, and go on as they are.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from stoker.config.load import ALLOW_NETWORK, load_pipeline
from stoker.store.errors import ConfigError, UnknownFormat
from stoker.store.record import parse_json, require_version

RECORDS = (
    *("receipts/**/*.json", "sources/*.json", "datasets/*.json", "ledger/*.json"),
    *("runs/*/*.json", "runs/*/*.jsonl", "runs/*/checkpoints/*/checkpoint.json"),
)


def require_known(state: Path) -> None:
    """Raises UnknownFormat where a record or a log below a state directory has a version that is not known.

    What is damaged is left to the daemon that mends it.
    """
    for pattern in RECORDS:
        for path in state.glob(pattern):
            for line in _documents(path):
                with contextlib.suppress(ValueError):
                    body = parse_json(line)
                    if isinstance(body, dict) and "v" in body:
                        require_version(body, path)


def _documents(path: Path) -> Iterator[bytes]:
    """Yields a record, or the last line of a log: the newest code wrote that one."""
    with contextlib.suppress(OSError):  # it has just gone
        data = path.read_bytes()
        yield data.rstrip(b"\n").rpartition(b"\n")[2] if path.suffix == ".jsonl" else data


def main(files: list[str]) -> int:
    """Looks at each pipeline; returns 78 where one of them cannot be read."""
    unknown = []
    for file in files:
        try:
            # Without this process's environment: it is the installer's and not the daemons'.
            require_known(load_pipeline(file, {ALLOW_NETWORK: "1"}).state)
        except ConfigError as refused:
            print(f"warning: this version refuses {file}, and so its daemons a reload:\n{refused}")
        except UnknownFormat as newer:
            unknown.append(str(newer))
    print("\n".join(unknown), file=sys.stderr)
    return UnknownFormat.exit_code if unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
