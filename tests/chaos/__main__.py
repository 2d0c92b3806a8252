"""The command behind scripts/chaos."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from chaos.driver import run_scenario
from chaos.scenarios import find_scenarios
from support.mounts import WHY_NOT, apart, is_apart, unmount_below

EXAMPLES = """examples:
  scripts/chaos                                 every scenario, 10 kills each
  scripts/chaos --scenario store --kills 40     one scenario
  scripts/chaos --seed 7                        the same kills again
  scripts/chaos external --help                 trainers of the user's own, killed while they save slowly"""


def main(argv: list[str]) -> int:
    """Run scenarios; exit 0 when every result was right, 1 when one was not, 64 on an unknown name."""
    scenarios = find_scenarios()
    parser = argparse.ArgumentParser(
        prog="chaos",
        description="Kill real processes with -9 at seeded moments; check that their work comes out right.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scenario", action="append", metavar="NAME", help=f"one of: {', '.join(scenarios)}")
    parser.add_argument(
        "--kills", type=int, default=10, metavar="N", help="kills in each scenario (default 10)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the plan of kills (default 0)")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="where to work (kept); else a temporary directory"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports there too")
    parser.add_argument("--list", action="store_true", help="only name the scenarios")
    options = parser.parse_args(argv)
    if options.list:
        for name, scenario in scenarios.items():
            print(f"{name:20} {(scenario.__doc__ or '').splitlines()[0]}")
        return 0
    chosen = options.scenario or list(scenarios)
    if unknown := sorted(set(chosen) - set(scenarios)):
        print(f"chaos: no scenario {', '.join(unknown)}; there are: {', '.join(scenarios)}", file=sys.stderr)
        return 64
    if any(scenarios[name].mounts for name in chosen) and not is_apart():
        again = apart([sys.executable, "-m", "chaos", *argv])
        if again is not None:
            os.execvp(again[0], again)
        chosen = [name for name in chosen if not scenarios[name].mounts]
        print(f"chaos: SKIPPED what mounts a small disk: {WHY_NOT}", file=sys.stderr)
    return _run([scenarios[name]() for name in chosen], options)


def _run(scenarios: list, options: argparse.Namespace) -> int:
    base = options.dir or Path(tempfile.mkdtemp(prefix="stoker-chaos-"))
    reports, failed = [], []
    for scenario in scenarios:
        directory = base / f"{scenario.name}-{options.seed}"
        try:
            report = run_scenario(scenario, kills=options.kills, seed=options.seed, directory=directory)
        except AssertionError as error:
            failed.append(scenario.name)
            print(
                f"{scenario.name}: FAILED with seed {options.seed}: {error}\n  see {directory}",
                file=sys.stderr,
            )
            continue
        reports.append(report.as_json())
        print(report.table(), flush=True)  # before anything is cleared up
    if options.json:
        options.json.write_text(json.dumps({"reports": reports, "failed": failed}, indent=2) + "\n")
    if not failed and options.dir is None:
        unmount_below(base.resolve())
        shutil.rmtree(base)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
