"""scripts/dashboards: writes what is made from the boards, or compares it with the files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dashlib import grafana, page
from dashlib.boards import BOARDS

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def made() -> dict[Path, str]:
    """The text of each file by its path."""
    boards = {f"grafana/dashboards/stoker-{board.name}.json": grafana.text(board) for board in BOARDS}
    files = {**boards, "prometheus/consoles/stoker.html": page.text(BOARDS)}
    return {DEPLOY / name: text for name, text in files.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    check = parser.parse_args().check
    differ = {path: text for path, text in made().items() if not path.exists() or path.read_text() != text}
    for path, text in differ.items():
        print(f"{'differs' if check else 'written'}: {path.relative_to(DEPLOY.parent)}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if check and differ:
        print("dashboards: run scripts/dashboards and commit what it writes")
    return int(check and bool(differ))


if __name__ == "__main__":
    sys.exit(main())
