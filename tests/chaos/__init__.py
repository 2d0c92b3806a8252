"""Seeded faults on real processes: kill -9 again and again, go on, and the result is right nevertheless.

A scenario is a class in a module of `chaos.scenarios` (see chaos.driver.Scenario; chaos.scenarios.store is
the smallest one). The modules are found by themselves; run them with `scripts/chaos`, or in a test::

    from chaos.driver import run_scenario
    report = run_scenario(MyScenario(), kills=40, seed=1, directory=tmp_path)
    print(report.table())

Half of the kills (a scenario may say otherwise) fall at a seeded moment, and the phase they hit is the last
one the process told. The others fall inside a chosen system call (strace's injection), and the phase is that
call and the last one told.
A seed gives the same plan of kills again; a timed one may still find the process a little further on.
"""
