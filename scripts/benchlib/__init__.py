"""What scripts/bench runs: measurements side by side, repeated in turns, told as medians and ratios.

A scenario is a class in a module of benchlib.scenarios; see benchlib.runner.Scenario.
"""
