"""The command behind scripts/bench."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchlib.runner import machine, run, table
from benchlib.scenarios import find_scenarios

EXAMPLES = """examples:
  scripts/bench --list
  scripts/bench start                           each daemon's start: time to READY, memory
  scripts/bench store hash --repeats 9 --json bench.json
  scripts/bench train                           all named train-..."""


def main(argv: list[str]) -> int:
    """Measure; exit 0, 1 when a median is over its limit, 64 on an unknown scenario, 69 if one cannot run."""
    scenarios = find_scenarios()
    parser = argparse.ArgumentParser(
        prog="bench",
        description="Measure things side by side, in turns; tell medians and ratios.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help=f"any of: {', '.join(scenarios)}")
    parser.add_argument("--list", action="store_true", help="only name the scenarios")
    parser.add_argument("--repeats", type=int, metavar="N", help="else each scenario's own number")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="of a scenario that runs for a time (supervise-goodput)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="measure on this file system (default: TMPDIR)"
    )
    options = parser.parse_args(argv)
    if options.list:
        for name, scenario in scenarios.items():
            print(f"{name:15} {(scenario.__doc__ or '').splitlines()[0]}")
        return 0
    wanted = {
        name: [each for each in scenarios if f"{each}-".startswith(f"{name}-")] for name in options.scenario
    }
    if unknown := sorted(name for name, found in wanted.items() if not found):
        print(f"bench: no scenario {', '.join(unknown)}; there are: {', '.join(scenarios)}", file=sys.stderr)
        return 64
    chosen = [each for found in wanted.values() for each in found] if wanted else scenarios
    return _measure([scenarios[name]() for name in chosen], options)


def _measure(scenarios: list, options: argparse.Namespace) -> int:
    results = []
    for scenario in scenarios:
        scenario.seconds = options.seconds or scenario.seconds
        with tempfile.TemporaryDirectory(prefix="stoker-bench-", dir=options.dir) as directory:
            try:
                result = run(scenario, options.repeats or scenario.repeats, Path(directory))
            except (OSError, RuntimeError) as error:
                print(f"bench: {scenario.name} cannot be measured: {error}", file=sys.stderr)
                return 69
        print(table(result))
        results.append(result)
    if options.json:
        figures = {"machine": machine(), "results": [result.as_json() for result in results]}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if any(result.over_limit for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
