"""The command: scenarios side by side; a row for each, exit code 1 where a law breaks."""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.external_kills.older_transformers import why_not
from support.external_kills.rounds import Report, Rounds, each_line
from support.external_kills.scenario import NAMES, Pace, Scenario

EXAMPLES = """examples:
  scripts/chaos external                                  every scenario, 20 kills, saves of 20 s
  scripts/chaos external hf5/glob --kills 5 --seed 7      one of them
  scripts/chaos external --save 6 --pause 4 --step 0.3    three times as fast"""


def main(argv: list[str]) -> int:
    """Run scenarios; exit 0 when every law held, 1 when one broke, 64 on an unknown name."""
    parser = argparse.ArgumentParser(
        prog="chaos external",
        description="Kill trainers of the user's own at seeded moments; check from what each launch begins.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", nargs="*", help=f"of: {', '.join(NAMES)} (default: all)")
    parser.add_argument("--kills", type=int, default=20, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--save", type=float, default=20.0, metavar="SECONDS", help="that a save takes")
    parser.add_argument("--pause", type=float, default=10.0, metavar="SECONDS", help="within it")
    parser.add_argument("--step", type=float, default=1.0, metavar="SECONDS", help="that a step takes")
    parser.add_argument("--every", type=int, default=25, metavar="STEPS", help="between two saves")
    parser.add_argument("--jobs", type=int, default=6, metavar="N", help="scenarios side by side")
    parser.add_argument("--dir", type=Path, help="where to work (kept); else a temporary directory (kept)")
    options = parser.parse_args(argv)
    names = options.scenario or list(NAMES)
    if unknown := sorted(set(names) - set(NAMES)):
        known = ", ".join(NAMES)
        print(f"external_kills: no scenario {', '.join(unknown)}; there are: {known}", file=sys.stderr)
        return 64
    if any(name.startswith("hf4") for name in names) and (why := why_not()):
        print(f"external_kills: SKIPPED transformers 4: {why}", file=sys.stderr)
        names = [name for name in names if not name.startswith("hf4")]
    base = options.dir or Path(tempfile.mkdtemp(prefix="stoker-kills-"))
    pace = Pace(options.save, options.pause, options.step, options.every)

    def run(name: str) -> Report:
        place, scenario = base / f"{name.replace('/', '-')}-{options.seed}", Scenario.named(name, pace)
        rounds = Rounds(scenario, place, options.seed, lambda line: print(line, flush=True))
        report = rounds.run(options.kills)
        for line in each_line(report):
            print(line, flush=True)
        return report

    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        reports = list(pool.map(run, names))
    print("\n".join(["", *(report.row() for report in reports), f"see {base}"]))
    return 1 if any(report.breaks for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
